"""``pfedfda federate init``, and the example that uses it."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from pfedfda.cli import main
from pfedfda.flower.app_settings import ServerConfig, read_run_config
from pfedfda.flower.project import TEMPLATE, init
from pfedfda.methods import find_method
from tests.flower.loopback import QUIET

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"


def files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_a_project_is_written_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["federate", "init", str(tmp_path / "mine")]) == 0
    assert files(tmp_path / "mine") == files(TEMPLATE)
    capsys.readouterr()
    assert main(["federate", "init", str(tmp_path / "mine")]) == 2
    assert "is there already" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["initialise"], ["init"], ["init", "a", "b"], ["init", "-x"]])
def test_other_words_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["federate", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_example_makes_its_app_from_the_template() -> None:
    """There is one copy of the app, which is in the package."""
    example = files(EXAMPLE)
    assert list(example) == ["loopback.sh"]
    assert "pfedfda federate init" in example["loopback.sh"]


def superlink_commands() -> list[str]:
    """Every command with which our texts start a SuperLink, on one line."""
    tutorial = EXAMPLE.parents[1] / "docs" / "tutorial-three-sites.md"
    texts = [EXAMPLE / "loopback.sh", TEMPLATE / "README.md", tutorial]
    lines = [
        line.strip()
        for text in texts
        for line in text.read_text().replace("\\\n", " ").splitlines()
    ]
    return [line for line in lines if line.startswith("flower-superlink --")]


def test_the_superlink_is_never_bound_to_a_network() -> None:
    """Its control interface lets everybody in who reaches it."""
    commands = superlink_commands()
    assert len(commands) == 3
    for command in commands:
        assert "--host 127.0.0.1 " in command
    assert "listen 127.0.0.1:8443 ssl;" in (TEMPLATE / "nginx.conf").read_text()


def test_in_containers_the_proxy_alone_is_published() -> None:
    yaml = pytest.importorskip("yaml")
    folder = EXAMPLE.parent / "docker"
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    superlink, proxy = services.pop("superlink"), services.pop("proxy")
    assert {"--host=127.0.0.1", "--enable-supernode-auth"} <= set(superlink["command"])
    assert superlink["ports"] == ["8443:8443"]
    assert proxy["network_mode"] == "service:superlink"
    made = (folder / "prepare.sh").read_text()
    (old, new) = re.findall(r"s/(listen [^/]*)/(listen [^/]*)/", made)[0]
    assert (TEMPLATE / "nginx.conf").read_text().count(f"{old};") == 1
    assert new == "listen 8443 ssl"
    assert len(services) == 3
    for name, site in services.items():
        assert "ports" not in site
        assert "--superlink=superlink:8443" in site["entrypoint"]
        own = (f"./federation/{name}:/site:ro", f"./federation/state/{name}:/state")
        assert tuple(site["volumes"]) == own  # no site sees another's files
        assert f'name="{name}"' in site["command"][0]


def test_the_settings_of_the_project_are_settings_of_ours() -> None:
    project = tomllib.loads((TEMPLATE / "pyproject.toml").read_text())
    run_config = project["tool"]["flwr"]["app"]["config"]
    assert run_config.pop("hyperparameters") == {}
    settings = read_run_config(run_config)
    assert settings.config.methods == {"pfedfda": find_method("pfedfda")()}
    assert settings.config.schedule.rounds == 10
    assert settings.config.output.name is None
    assert settings.server.min_nodes == 3
    assert settings.server.timeout == ServerConfig().timeout <= 600
    assert settings.config.aggregation.min_class_count == 5


def test_nobody_else_needs_flower() -> None:
    """The package and its commands work where Flower cannot be imported."""
    program = (
        "import sys; sys.modules['flwr'] = None\n"
        "import pfedfda.cli; raise SystemExit(pfedfda.cli.main(['methods']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_only_the_programs_travel_to_the_sites(tmp_path: Path) -> None:
    """Keys, results and personal models may lie beside the app when it is packed."""
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pfedfda[flower]'")
    app = tmp_path / "app"
    init(app)
    for name in ("runs/run/roster.json", "sites/a/model.json", "ca.key", "flwr/config.toml"):
        (app / name).parent.mkdir(parents=True, exist_ok=True)
        (app / name).write_text("{}")
    flwr = Path(sys.executable).parent / "flwr"
    environment = {**os.environ, **QUIET, "FLWR_HOME": str(tmp_path / "home")}
    subprocess.run([flwr, "build"], cwd=app, env=environment, check=True, capture_output=True)
    (fab,) = app.glob("*.fab")
    packed = zipfile.ZipFile(fab).namelist()
    programs = {f"federation/{name}.py" for name in ("__init__", "client", "server")}
    assert set(packed) == programs | {"pyproject.toml", ".info/CONTENT"}
