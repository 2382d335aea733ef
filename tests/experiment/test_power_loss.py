"""Nothing is lost when the power is: what counts is on the disk before it counts."""

import os
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pfedfda import FederationConfig, compare, resume, run
from pfedfda.experiment import rounds
from pfedfda.runs.checkpoint import Checkpoint, read_checkpoint
from pfedfda.runs.config import OutputConfig, read_config
from tests.experiment.files import comparable_files
from tests.power import CUTS, Disk

# One of them with clients that join after the training, whose evaluation takes longest.
METHODS = {"fedavg": 0.2, "ditto": 0.0, "pfedfda": 0.0, "fedpac": 0.0}
SETTINGS: dict[str, Any] = {
    "rounds": 3,
    "participation": 0.6,
    "eval_every": 1,
    "checkpoint_every": 2,
    "epochs": 1,
    "batch_size": 4,
    "workers": 0,
    "quiet": True,
}


def what_counts(folder: Path) -> dict[str, bytes]:
    """Return the files of a finished run without states of earlier rounds.

    They are removed when nothing needs them any more, and a power cut may undo that.
    """
    newest: dict[str, str] = {}
    files = comparable_files(folder)
    for name in sorted(files):
        if name.endswith(".safetensors"):
            place = name.removesuffix(".safetensors").rstrip("0123456789")
            if place in newest:
                del files[newest[place]]
            newest[place] = name
    return files


class Trial:
    """Runs of one method whose power is cut.

    Parameters
    ----------
    method
        Its name.
    federation
        Who the clients are.
    folder
        Where everything goes.
    """

    def __init__(self, method: str, federation: FederationConfig, folder: Path) -> None:
        self.method, self.federation, self.folder = method, federation, folder
        self.settings = SETTINGS | {"new_clients": METHODS[method]}
        whole = run(method, federation, output=folder / "whole", **self.settings)
        self.files = what_counts(whole.folder)
        self.config = self._config(whole.folder)
        (folder / "first").mkdir()
        self.first = self._record(folder / "first")

    def _config(self, folder: Path) -> Any:
        return replace(read_config(folder / "config.toml"), output=OutputConfig())

    def _record(self, place: Path, promised: int | None = None) -> Disk:
        """Bring the run in a place to its end, and return what the disk was told."""
        disk = Disk(place)
        disk.note(promised)
        write = rounds.RunWriter.write_checkpoint

        def noting(writer: Any, checkpoint: Checkpoint) -> None:
            write(writer, checkpoint)
            disk.note(checkpoint.round)

        with pytest.MonkeyPatch.context() as patched, disk.watched():
            patched.setattr(rounds.RunWriter, "write_checkpoint", noting)
            self._finish(place)
        return disk

    def _finish(self, place: Path) -> Path:
        if begun := list(place.glob("runs/*/config.toml")):
            return resume(begun[0].parent, workers=0, quiet=True).folder
        assert not list(place.rglob("manifest.json")), "a checkpoint without its settings"
        return run(self.method, self.federation, output=place / "runs", **self.settings).folder

    def cut(self, number: int, twice: bool) -> None:
        """Cut the power of the run, perhaps once more while it goes on, and check how it ends."""
        chance = random.Random(f"{self.method} {number}")
        disk, place = self.first, self.folder / "cut"
        for _ in range(1 + twice):
            at = chance.randint(disk.begin, len(disk.log))
            disk.cut(at, CUTS[number % len(CUTS)], number, place)
            promised = disk.noted(at)
            if promised is not None:
                manifests = list(place.glob("runs/*/checkpoint/manifest.json"))
                assert manifests, "a checkpoint that counted is gone"
                reached = read_checkpoint(manifests[0].parent).round
                assert reached >= promised, f"back at {reached} although {promised} counted"
            if twice:
                disk, place = self._record(place, promised), self.folder / "cut again"
        folder = self._finish(place)
        files = what_counts(folder)
        names = sorted({*files, *self.files})
        other = [name for name in names if files.get(name) != self.files.get(name)]
        assert not other, f"other bytes in {', '.join(other)}"
        assert self._config(folder) == self.config, "other settings"


def failures(trial: Trial, numbers: Iterable[int]) -> list[str]:
    """Return what went wrong after the cuts of these numbers; every third run is cut twice."""
    found = []
    for number in numbers:
        try:
            trial.cut(number, twice=number % 3 == 2)
        except Exception as error:
            found.append(f"{trial.method}, cut {number}: {str(error).splitlines()[0]}")
    return found


@pytest.mark.parametrize("method", METHODS)
def test_after_a_power_cut_a_run_ends_with_the_same_bytes(
    method: str, tiny_config: FederationConfig, tmp_path: Path
) -> None:
    assert failures(Trial(method, tiny_config, tmp_path), range(8)) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("method", METHODS)
def test_after_many_power_cuts_a_run_ends_with_the_same_bytes(
    method: str, tiny_config: FederationConfig, tmp_path: Path
) -> None:
    found = failures(Trial(method, tiny_config, tmp_path), range(8, 88))
    assert not found, f"{len(found)} of 80 cuts: " + "; ".join(found)


def test_what_is_finished_is_on_the_disk(tiny_config: FederationConfig, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    disk = Disk(tmp_path / "runs")
    with disk.watched():
        settings = SETTINGS | {"output": tmp_path / "runs" / "many", "rounds": 2}
        compare(["ditto", "local"], tiny_config, **settings)
    disk.cut(len(disk.log), "lost", 0, tmp_path / "after")
    files = what_counts(tmp_path / "runs")
    assert "many/digits-compare/comparison.csv" in files
    assert what_counts(tmp_path / "after") == files
    for config in (tmp_path / "runs").rglob("config.toml"):
        after = tmp_path / "after" / config.relative_to(tmp_path / "runs")
        assert after.read_bytes() == config.read_bytes()


def test_a_round_without_a_checkpoint_waits_for_no_disk(
    tiny_config: FederationConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    real = os.fsync

    def counting(descriptor: int) -> None:
        flushed[-1] += 1
        real(descriptor)

    monkeypatch.setattr(os, "fsync", counting)
    for last in (2, 4):
        flushed.append(0)
        settings = SETTINGS | {"rounds": last, "checkpoint_every": 0}
        run("fedavg", tiny_config, output=tmp_path, **settings)
    assert flushed[0] == flushed[1] > 0
