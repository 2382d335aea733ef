"""``pfedfda federate check``: is Flower's control interface open from here?"""

import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pfedfda import InputError
from pfedfda.cli import main
from pfedfda.flower.control import CONTROL, FLEET, RUNTIME, check
from tests.flower.loopback import free_port, make_certificates

# What a SuperLink of Flower 1.41 and proxies answer; tests/flower/test_exposure.py asks real ones.
Answers = dict[str, tuple[int, str, str]]
PROTOBUF, JSON, HTML = "application/protobuf", "application/json", "text/html"
DONE = (200, PROTOBUF, "")
NO_ACCOUNT = (401, JSON, '{"detail":"Not authenticated"}')
NO_SECRET = (401, JSON, '{"code":1,"detail":"Authentication failed."}')
NO_KEY = (401, JSON, '{"detail":"Invalid SuperNode authentication"}')
NOT_FOUND = (404, JSON, '{"detail":"Not Found"}')
FORBIDDEN = (403, HTML, "<h1>403 Forbidden</h1>")


@contextmanager
def serving(
    answers: Answers, tls: Path | None = None, host: str = "127.0.0.1", port: int = 0
) -> Iterator[str]:
    """Give the address of a server that answers like this."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.headers["Content-Length"] == "0"
            status, kind, text = answers.get(self.path, NOT_FOUND)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *arguments: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, *arguments: object) -> None:
            pass  # handshakes that fail are part of the test

    server = Quiet((host, port), Handler)
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls / "superlink.crt", tls / "superlink.key")
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"{host}:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("control", "runtime", "fleet", "code", "said"),
    [
        (DONE, DONE, NO_KEY, 1, "OPEN: the control interface"),
        (DONE, FORBIDDEN, NO_KEY, 1, "OPEN: the control interface"),
        (NO_ACCOUNT, DONE, NO_KEY, 1, "OPEN: the runtime interface"),
        (FORBIDDEN, DONE, FORBIDDEN, 1, "OPEN: the runtime interface"),
        (NO_ACCOUNT, NO_SECRET, NO_KEY, 0, "asks for an account"),
        (FORBIDDEN, FORBIDDEN, NO_KEY, 0, "cannot be reached"),
        ((404, HTML, ""), (404, HTML, ""), NO_KEY, 0, "cannot be reached"),
        # A SuperLink whose paths are others than those that were tried.
        (NOT_FOUND, NOT_FOUND, NO_KEY, 2, "Not determined"),
        (FORBIDDEN, FORBIDDEN, FORBIDDEN, 2, "Not determined"),
        ((200, HTML, "welcome"), FORBIDDEN, FORBIDDEN, 2, "Not determined"),
        ((502, HTML, ""), (502, HTML, ""), (502, HTML, ""), 2, "HTTP 502"),
        ((302, HTML, ""), FORBIDDEN, NO_KEY, 2, "HTTP 302"),
        ((500, JSON, ""), NO_SECRET, NO_KEY, 2, "HTTP 500"),
    ],
)
def test_the_answers_tell_who_is_let_in(
    control: tuple[int, str, str],
    runtime: tuple[int, str, str],
    fleet: tuple[int, str, str],
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serving({CONTROL: control, RUNTIME: runtime, FLEET: fleet}) as address:
        assert main(["federate", "check", address]) == code
    output = capsys.readouterr().out
    assert said in output
    assert address in output
    assert output.count("\n") == 1


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    try:
        make_certificates(folder)
    except FileNotFoundError:
        pytest.skip("openssl makes the certificates, and is not there")
    return folder


def test_tls_with_and_without_the_authority(certificates: Path, tmp_path: Path) -> None:
    with serving({CONTROL: DONE}, certificates) as address:
        assert check(address).state == "open"  # an intruder does not ask for a certificate
        assert check(address, certificates / "ca.crt").state == "open"
        other = tmp_path / "other"
        other.mkdir()
        make_certificates(other)
        finding = check(address, other / "ca.crt")
        assert (finding.state, finding.exit_code) == ("unknown", 2)
        assert "certificate" in finding.sentence


def test_an_authority_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.crt", Path(__file__)):
        with pytest.raises(InputError, match="cannot be read"):
            check("127.0.0.1:1", path)


def test_where_nothing_listens_nothing_is_open(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["federate", "check", f"127.0.0.1:{free_port()}"]) == 0
    assert "not running looks the same" in capsys.readouterr().out


def test_what_speaks_another_language_is_unknown() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            for _ in range(2):  # the attempts with and without TLS
                with server.accept()[0] as connection:
                    connection.sendall(b"220 mail.example ready\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        finding = check(f"127.0.0.1:{server.getsockname()[1]}")
        thread.join()
    assert finding.exit_code == 2
    assert "does not speak HTTP" in finding.sentence


@pytest.mark.skipif(sys.platform != "linux", reason="others lack 127.0.0.2")
def test_all_addresses_of_a_name_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter is easily set up for one family of addresses and forgotten for the other."""
    look_up = socket.getaddrinfo

    def two_addresses(host: str, *rest: Any, **more: Any) -> list[Any]:
        hosts = ["127.0.0.1", "127.0.0.2"] if host == "server.example" else [host]
        return [found for name in hosts for found in look_up(name, *rest, **more)]

    monkeypatch.setattr(socket, "getaddrinfo", two_addresses)
    with serving({CONTROL: FORBIDDEN, RUNTIME: FORBIDDEN, FLEET: NO_KEY}) as address:
        port = int(address.rpartition(":")[2])
        assert check(f"server.example:{port}").state == "closed"
        with serving({CONTROL: DONE}, host="127.0.0.2", port=port):
            finding = check(f"server.example:{port}")
        assert finding.state == "open"
        assert "127.0.0.2" in finding.sentence


@pytest.mark.parametrize(
    "address", ["", "server", "server:", ":8123", "server:x", "server:99999", "http://server:1",
                "server:1/x", "me@server:1", "[::1", "server:0"]
)  # fmt: skip
def test_wrong_addresses_are_refused(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["federate", "check", address]) == 2
    assert "HOST:PORT" in capsys.readouterr().err


def test_an_unknown_host_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["federate", "check", "no-such-host.invalid:8123"]) == 2
    assert "no-such-host.invalid" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [[], ["a:1", "b:2"], ["--root-certificates"], ["-x"], ["a:1", "--root-certificates"]]
)
def test_other_words_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["federate", "check", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1
