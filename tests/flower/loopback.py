"""A federation on this machine: a SuperLink and SuperNodes with TLS and keys, in a folder."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROGRAMS = Path(sys.executable).parent
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
# Runs first in every Python process of the federation.
AUDIT = """
import os, sys

def watch(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo"):
        address = arguments[1] if event == "socket.connect" else arguments[:2]
        host = address[0] if isinstance(address, tuple) else address
        here = ("127.0.0.1", "localhost", "::1", "", None)
        if host not in here and host not in seen:
            seen.add(host)
            with open({path!r}, "a") as file:
                file.write(f"{{sys.argv[0]}} {{event}} {{address}}\\n")

seen = set()
sys.addaudithook(watch)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def make_certificates(folder: Path) -> None:
    """Make an authority and a certificate for a server on loopback, as docs/deploy.md does."""
    names = "subjectAltName=IP:127.0.0.1,IP:127.0.0.2,DNS:superlink"
    for command in (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -days 2 "
        "-subj /CN=ca -keyout ca.key -out ca.crt",
        "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -subj /CN=superlink "
        f"-addext {names} -keyout superlink.key -out superlink.csr",
        "openssl x509 -req -in superlink.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 "
        "-copy_extensions copy -out superlink.crt",
    ):
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)


class Loopback:
    """Starts and ends the processes of a federation.

    Parameters
    ----------
    folder
        For keys, logs and the states of the sites.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {
            **os.environ,
            **QUIET,
            "FLWR_HOME": str(folder / "home"),
            "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([str(folder / "audit"), *filter(None, sys.path)]),
        }
        self.outside = folder / "outside.txt"
        """Names every address outside this machine that a process has turned to."""
        (folder / "audit").mkdir()
        (folder / "audit" / "sitecustomize.py").write_text(AUDIT.format(path=str(self.outside)))
        make_certificates(folder)
        (folder / "home").mkdir()
        (folder / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "loopback"\n\n[superlink.loopback]\n'
            f'address = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{folder / "ca.crt"}"\n'
        )

    def make_key(self, name: str) -> Path:
        key = self.folder / name
        command = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(key)]
        subprocess.run(command, check=True)
        return key

    def start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(PROGRAMS / command[0]), *command[1:]],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def start_link(self) -> None:
        self.start(
            "link",
            "flower-superlink",
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "superlink.crt"),
            *("--ssl-keyfile", "superlink.key", "--enable-supernode-auth", "--database", "link.db"),
        )
        self.wait_for(self._answers, "the SuperLink answers")

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def start_node(
        self, name: str, number: int, extra: str = "", *, tls: bool = True, port: int = 0
    ) -> None:
        config = f'name="{name}" partition-id={number} state-dir="{self.folder / "sites"}" {extra}'
        security = ["--insecure"]
        if tls:
            security = ["--root-certificates", "ca.crt", "--auth-supernode-private-key", name]
        self.start(
            name,
            "flower-supernode",
            *security,
            *("--superlink", f"127.0.0.1:{port or self.port}", "--port", str(free_port())),
            *("--node-config", config),
        )

    def kill(self, name: str) -> None:
        """End a process and everything it started, at once and without notice."""
        process = self.processes.pop(name)
        # SuperExec and the apps have the same session; each has a group of its own at most.
        for pid in _session(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        for name in list(self.processes):
            self.kill(name)

    def flwr(self, *words: str) -> str:
        result = subprocess.run(
            [str(PROGRAMS / "flwr"), *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def wait_for(self, fact: Callable[[], Any], what: str, seconds: float = 240) -> Any:
        deadline = time.monotonic() + seconds
        while not (found := fact()):
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {n}\n{self.log(n)[-3000:]}" for n in self.processes)
                raise AssertionError(f"{what}: not within {seconds:.0f} s\n{logs}")
            time.sleep(0.3)
        return found


def _session(leader: int) -> list[int]:
    """Return the processes of a session, its leader first."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = re.sub(r"\(.*\)", "-", stat.read_text()).split()
        except OSError:
            continue
        if int(fields[5]) == leader:
            members.append(int(fields[0]))
    return sorted(members, key=lambda pid: pid != leader)


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
