"""What a real SuperLink lets anybody do, and what the app's proxy keeps from them."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pfedfda[flower]'")

from pfedfda.flower.control import check
from pfedfda.flower.project import TEMPLATE
from tests.flower.loopback import PROGRAMS, QUIET, Loopback, free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("openssl") and shutil.which("ssh-keygen")),
        reason="openssl and ssh-keygen make the certificates and keys, and are not there",
    ),
]


@pytest.fixture
def loopback(tmp_path: Path) -> Iterator[Loopback]:
    federation = Loopback(tmp_path)
    federation.start_link()
    yield federation
    federation.close()


def test_the_control_interface_knows_no_accounts(loopback: Loopback, tmp_path: Path) -> None:
    """With nothing but the authority's certificate: this is what `check` warns of."""
    finding = check(f"127.0.0.1:{loopback.port}", tmp_path / "ca.crt")
    assert finding.exit_code == 1
    assert "OPEN: the control interface" in finding.sentence
    loopback.make_key("mallory")
    assert "registered" in loopback.flwr("supernode", "register", "mallory.pub", "loopback")
    # It listens where it was told to alone.
    assert check(f"127.0.0.2:{loopback.port}").state == "absent"


def test_this_flower_has_no_accounts() -> None:
    """When this fails, docs/deploy.md has accounts to offer."""
    done = subprocess.run(
        [PROGRAMS / "flower-superlink", "--insecure", "--port", str(free_port())],
        env={**os.environ, **QUIET, "FLWR_OIDC_ENABLED": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "account authentication is unavailable" in done.stderr


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_behind_the_proxy_sites_get_in_and_control_is_closed(
    loopback: Loopback, tmp_path: Path
) -> None:
    port = free_port()
    settings = (TEMPLATE / "nginx.conf").read_text()
    settings = settings.replace("127.0.0.1:8123", f"127.0.0.1:{loopback.port}")
    (tmp_path / "nginx.conf").write_text(settings.replace("127.0.0.1:8443", f"127.0.0.1:{port}"))
    nginx = str(shutil.which("nginx"))
    loopback.start("proxy", nginx, "-p", str(tmp_path), "-c", "nginx.conf")

    def reached() -> bool:
        return check(f"127.0.0.1:{port}").state != "absent"

    loopback.wait_for(reached, "the proxy answers", 20)
    finding = check(f"127.0.0.1:{port}", tmp_path / "ca.crt")
    assert (finding.exit_code, finding.state) == (0, "closed"), finding.sentence

    loopback.make_key("kaunas")
    loopback.flwr("supernode", "register", "kaunas.pub", "loopback")
    loopback.start_node("kaunas", 0, port=port)
    loopback.wait_for(lambda: "SuperNode ID" in loopback.log("kaunas"), "the site is in", 60)
