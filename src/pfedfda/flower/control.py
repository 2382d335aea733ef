"""``pfedfda federate check``: tell whether Flower's control interface is open from here.

A SuperLink has one address for all its interfaces, and its open-source edition has no accounts:
whoever reaches the paths under ``/v1/control/`` starts runs, whose code the server and every site
execute, and registers keys. Under ``/v1/runtime/`` tasks of a run are handed out just as freely.
Only ``/v1/fleet/``, where every request is signed with a site's key, is fit for a network.
"""

import http.client
import socket
import ssl
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pfedfda.errors import InputError, quote

# Requests without content, which change nothing: a list of the runs, no task for a worker that can
# do none, and a site without a signature.
CONTROL, RUNTIME, FLEET = (
    "/v1/control/list-runs",
    "/v1/runtime/acquire-task",
    "/v1/fleet/activate-node",
)
PROTOBUF = "application/protobuf"
UNSIGNED = b"SuperNode authentication"  # what the fleet interface says to a request without a key
SECONDS = 5.0

State = Literal["open", "unknown", "closed", "absent"]
WORST_FIRST: tuple[State, ...] = ("open", "unknown", "closed", "absent")


@dataclass(frozen=True)
class Exposure:
    """What was found at an address.

    Parameters
    ----------
    state
        open: the control or the runtime interface answers everybody; unknown: that could not be
        told; closed: a SuperLink is there and refuses; absent: nothing is there, seen from here.
    sentence
        The same for people.
    """

    state: State
    sentence: str

    @property
    def exit_code(self) -> int:
        """0 if the interfaces are closed from here, 1 if one is open, 2 if that is unknown."""
        return {"open": 1, "unknown": 2}.get(self.state, 0)


@dataclass(frozen=True)
class Answer:
    """What a server said to a request.

    Parameters
    ----------
    status
        The status of HTTP.
    kind
        The type of the content.
    text
        The beginning of the content.
    """

    status: int
    kind: str
    text: bytes

    @property
    def is_let_in(self) -> bool:
        """Whether the interface did what was asked."""
        return self.status == 200 and self.kind == PROTOBUF

    @property
    def asks_who(self) -> bool:
        """Whether somebody asked for credentials."""
        return self.status == 401

    @property
    def is_turned_away(self) -> bool:
        """Whether a proxy let nothing through; a SuperLink itself would answer in JSON."""
        return self.status in (403, 404) and self.kind != "application/json"

    @property
    def is_fleet(self) -> bool:
        """Whether the fleet interface missed a site's signature."""
        return self.status == 401 and UNSIGNED in self.text


def check(address: str, root_certificates: Path | None = None) -> Exposure:
    """Tell whether the control interface at an address is open to whoever runs this.

    If a name has several addresses, all are tried, and the worst finding counts.

    Parameters
    ----------
    address
        ``HOST:PORT``, as sites and the command line of Flower have it.
    root_certificates
        The authority that must have signed the server's certificate. Without it nobody's
        certificate is checked: an intruder would not do so either.
    """
    host, port = _host_and_port(address)
    context = _tls(root_certificates)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise InputError(
            f"The host of the address {quote(address)} is unknown ({error})."
        ) from None
    numbers = dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found)
    findings = [_check_one(number, port, host, address, context) for number in numbers]
    return min(findings, key=lambda finding: WORST_FIRST.index(finding.state))


def _host_and_port(address: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port or parts.netloc != address or "@" in address:
        raise InputError(f"The address is {quote(address)}; it must be HOST:PORT.")
    return host, port


def _tls(root_certificates: Path | None) -> ssl.SSLContext:
    if root_certificates is not None:
        try:
            return ssl.create_default_context(cafile=root_certificates)
        except OSError as error:  # a file that is not there, or holds no certificate
            raise InputError(
                f"The certificates in {root_certificates} cannot be read ({error})."
            ) from None
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _check_one(
    number: str, port: int, host: str, address: str, context: ssl.SSLContext
) -> Exposure:
    """Look at one of the numeric addresses of a host."""
    where = address if number == host else f"{address} ({number})"
    try:
        plain = socket.create_connection((number, port), SECONDS)
    except OSError as error:
        return Exposure(
            "absent",
            f"Not reachable: nothing answers at {where} from here ({error}); a SuperLink that is "
            f"not running looks the same.",
        )
    tls: ssl.SSLContext | None = context
    try:
        with plain, context.wrap_socket(plain, server_hostname=host):
            pass
    except ssl.SSLCertVerificationError as error:
        return Exposure(
            "unknown",
            f"Not determined: the server at {where} has no certificate of this authority "
            f"({error.verify_message}); without --root-certificates it is asked all the same.",
        )
    except (ssl.SSLError, ConnectionError):
        tls = None  # it may speak without encryption
    except OSError as error:
        return Exposure("unknown", f"Not determined: {where} does not answer ({error}).")
    try:
        answers = [_ask(number, port, host, tls, path) for path in (CONTROL, RUNTIME, FLEET)]
    except (OSError, http.client.HTTPException) as error:
        return Exposure(
            "unknown",
            f"Not determined: what listens at {where} does not speak HTTP "
            f"({type(error).__name__}).",
        )
    return _judge(where, *answers)


def _ask(number: str, port: int, host: str, tls: ssl.SSLContext | None, path: str) -> Answer:
    """Send a request without content, past any proxy that the environment names."""
    connection = http.client.HTTPConnection(host, port)
    with closing(connection):
        connection.sock = socket.create_connection((number, port), SECONDS)
        if tls is not None:
            connection.sock = tls.wrap_socket(connection.sock, server_hostname=host)
        connection.request("POST", path, b"", {"Content-Type": PROTOBUF, "Connection": "close"})
        with connection.getresponse() as response:
            return Answer(response.status, response.headers.get_content_type(), response.read(1000))


def _judge(where: str, control: Answer, runtime: Answer, fleet: Answer) -> Exposure:
    """Tell from the answers of the three interfaces who is let in."""
    if control.is_let_in:
        return Exposure(
            "open",
            f"OPEN: the control interface at {where} asks for no account, so that from here "
            f"anybody can run code on the server and at every site, and register keys.",
        )
    if runtime.is_let_in:
        return Exposure(
            "open",
            f"OPEN: the runtime interface at {where} asks for no secret, so that from here "
            f"anybody can take over a run and what the server sends to the sites.",
        )
    for_others = all(answer.asks_who or answer.is_turned_away for answer in (control, runtime))
    if for_others and (control.asks_who or fleet.is_fleet):
        how = "asks for an account" if control.asks_who else "cannot be reached"
        return Exposure(
            "closed",
            f"Closed: from here the control interface at {where} {how} (HTTP {control.status}), "
            f"and the runtime interface lets nobody in either (HTTP {runtime.status}).",
        )
    return Exposure(
        "unknown",
        f"Not determined: no SuperLink of a known kind answers at {where} (HTTP {control.status} "
        f"for control, {runtime.status} for runtime, {fleet.status} for the fleet).",
    )
