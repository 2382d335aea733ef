"""Links in a run folder: nothing is written through them to a user's own files."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfedfda import FederationConfig, InputError, RunStoppedError, personalize, run
from pfedfda.cli import main
from pfedfda.data import Federation
from pfedfda.methods import Client, Tensors, Update
from pfedfda.methods.ditto import Ditto
from pfedfda.paper import suites
from pfedfda.report import write_report

FEW: dict[str, Any] = {"rounds": 1, "epochs": 1, "workers": 0, "quiet": True}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny_config: FederationConfig) -> Path:
    """A finished run with its report."""
    folder = run("ditto", tiny_config, output=tmp_path_factory.mktemp("runs"), **FEW).folder
    write_report([folder], folder)
    return folder


@pytest.fixture
def evil(whole: Path, tmp_path: Path) -> Path:
    """A copy of the run in which a test may put links."""
    return Path(shutil.copytree(whole, tmp_path / "evil"))


@pytest.fixture
def letter(tmp_path: Path) -> Path:
    """A user's file, alone in its folder."""
    path = tmp_path / "precious" / "letter.txt"
    path.parent.mkdir()
    path.write_text("dear")
    return path


@pytest.fixture
def images(tmp_path: Path, tiny: Federation) -> Path:
    data = tiny.client(0)
    path = tmp_path / "own.npz"
    np.savez(path, images=data.train_inputs, labels=np.arange(len(data.train_labels)) % 2)
    return path


def link(path: Path, target: Path) -> None:
    """Put a link in the place of a file or folder."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def untouched(letter: Path) -> bool:
    return letter.read_text() == "dear" and list(letter.parent.iterdir()) == [letter]


@pytest.mark.parametrize("place", ["report.html", "figures", "figures/time.png"])
def test_a_report_is_not_written_through_links(
    evil: Path, letter: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    link(evil / place, letter.parent if place == "figures" else letter)
    assert main(["report", str(evil)]) == 2
    assert f"{evil / place} is a symbolic link" in capsys.readouterr().err
    assert untouched(letter)


@pytest.mark.parametrize("place", ["report.html.new", "figures/time.png.new"])
def test_links_that_wait_where_a_file_is_made_are_not_followed(
    evil: Path, letter: Path, place: str
) -> None:
    link(evil / place, letter)
    assert main(["report", str(evil)]) == 0
    assert untouched(letter)


def test_a_run_named_by_a_link_gets_its_report(evil: Path, tmp_path: Path) -> None:
    """Which folder it is, is the user's own choice; people keep runs on another disk."""
    (tmp_path / "here").symlink_to(evil)
    (evil / "report.html").unlink()
    assert main(["report", str(tmp_path / "here")]) == 0
    assert (evil / "report.html").is_file()


@pytest.mark.parametrize("place", ["personal", "output", "personal/mine"])
def test_a_personal_model_is_not_written_through_links(
    evil: Path, letter: Path, images: Path, place: str
) -> None:
    empty = letter.parent.parent / "empty"
    empty.mkdir()
    link(evil / place, letter.parent if place == "personal" else empty)
    output = None if place == "personal" else evil / place
    with pytest.raises(InputError, match=f"{evil / place} is a symbolic link"):
        personalize(evil, str(images), output=output)
    if place == "personal":
        with pytest.raises(InputError, match=f"{evil / place} is a symbolic link"):
            personalize(evil, str(images), output=evil / "personal" / "mine")
    assert untouched(letter)
    assert not list(empty.iterdir())


def test_a_comparison_does_not_go_on_through_links(
    tiny_config: FederationConfig, tmp_path: Path, letter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["compare", "--methods", "fedavg", "ditto", "--partition", "iid", "--clients", "3"]
    words += ["--train-fraction", "0.05", "--rounds", "1", "--epochs", "1", "--workers", "0"]
    words += ["--quiet", "--output", str(tmp_path)]

    def stopping(self: Ditto, client: Client, message: Tensors) -> Update:
        raise RunStoppedError("enough")

    with monkeypatch.context() as patched:
        patched.setattr(Ditto, "train", stopping)
        assert main(words) == 1
    folder = tmp_path / "digits-compare"
    link(folder / "comparison.csv", letter)
    assert main(words) == 2
    assert main(["compare", "--resume", str(folder), "--quiet"]) == 2
    assert untouched(letter)


@pytest.mark.parametrize(
    "place",
    ["runs/reproduced", "runs/reproduced/RUN", "runs/reproduced/RUN/federation.json",
     "runs/results/RECORD.json", "runs/table1", "runs/table1/report.html", "runs/table1/figures"],
)  # fmt: skip
def test_a_suite_is_not_reproduced_through_links(
    tmp_path: Path,
    letter: Path,
    place: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    real = suites.federation_settings
    ours = {"source": "digits", "partition": "client-dirichlet", "clients": 3, "samples": 8}
    ours |= {"model": "auto", "shift": "none", "min_samples": None}
    monkeypatch.setattr(suites, "federation_settings", lambda key: real(key) | ours)
    monkeypatch.chdir(tmp_path)
    words = ["reproduce", "table1", "--columns", "cifar10-s@25", "--methods", "fedavg-ft"]
    words += ["--rounds", "1", "--workers", "0", "--quiet"]
    assert main(words) == 0
    (folder,) = (tmp_path / "runs/reproduced").iterdir()
    (record,) = (tmp_path / "runs/results").iterdir()
    shutil.rmtree(folder)  # it is to be made again
    path = Path(place.replace("RUN", folder.name).replace("RECORD", record.stem))
    link(path, letter if path.suffix else letter.parent)
    assert main(words) == 2
    assert f"{path} is a symbolic link" in capsys.readouterr().err
    assert untouched(letter)
