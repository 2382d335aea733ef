"""Files that are whole or not there, and folders that nobody is waiting for any more."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pfedfda import FederationConfig, InputError, prepare
from pfedfda.data import Federation
from pfedfda.engine import LocalEngine, Step
from pfedfda.engine import local as local_engine
from pfedfda.errors import PfedfdaError
from pfedfda.files import FolderLock, json_text, remove_abandoned, write_text
from pfedfda.methods import Task, TrainingConfig
from pfedfda.methods.fedavg import FedAvg
from pfedfda.models import ModelConfig
from pfedfda.runs import ClientStates, EngineConfig
from tests.power import CUTS, Disk


def make_old(folder: Path) -> Path:
    """Let a folder look as if nothing had happened in it for a day."""
    day_ago = time.time() - 86_400
    os.utime(folder, (day_ago, day_ago))
    return folder


@contextmanager
def another_process(folder: Path) -> Iterator[int]:
    """A process that holds the lock of a folder until it is killed."""
    ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        held = FolderLock(folder)
        os.write(ready[1], b"x" if held.held else b"")
        while True:
            time.sleep(60)
    os.read(ready[0], 1)
    yield pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    for end in ready:
        os.close(end)


def test_folders_go_when_nobody_holds_them(tmp_path: Path) -> None:
    for name in ("work-held", "work-left", "work-young", "other-left"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
        if name != "work-young":
            make_old(tmp_path / name)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "work-link").symlink_to(tmp_path / "elsewhere")
    with another_process(tmp_path / "work-held"):
        remove_abandoned(tmp_path, "work-", seconds=60)
        left = {path.name for path in tmp_path.iterdir()}
        assert left == {"work-held", "work-young", "other-left", "elsewhere", "work-link"}
    remove_abandoned(tmp_path, "work-", seconds=60)  # its holder was killed
    assert not (tmp_path / "work-held").exists()


def test_a_folder_is_held_as_long_as_a_child_lives(tmp_path: Path) -> None:
    """Workers outlive a process that is killed, and still write to its folder."""
    folder = tmp_path / "work-1"
    folder.mkdir()
    lock = FolderLock(folder)
    end, ours = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        os.read(end, 1)
        os._exit(0)
    lock.close()
    make_old(folder)
    remove_abandoned(tmp_path, "work-", seconds=60)
    assert folder.exists()
    os.close(ours)
    os.waitpid(pid, 0)
    os.close(end)
    remove_abandoned(tmp_path, "work-", seconds=60)
    assert not folder.exists()


def is_free(folder: Path) -> bool:
    with FolderLock(folder) as lock:
        return lock.held


def test_scratch_of_a_killed_group_of_processes_is_removed(
    tiny: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_engine, "SHARED_MEMORY", tmp_path)
    training = TrainingConfig(epochs=1, batch_size=4)
    task = Task(ModelConfig(), tiny.input_shape, len(tiny.class_names), len(tiny), training)

    def train(engine: LocalEngine) -> None:
        states = ClientStates(tmp_path / "states")
        list(engine.run(Step("train", FedAvg(), 1, states), task.initial_tensors(), range(6)))

    pid = os.fork()
    if pid == 0:
        os.setsid()
        engine = LocalEngine(tiny, task, EngineConfig(workers=1))  # kept, or its worker would leave
        train(engine)
        os.killpg(0, signal.SIGKILL)
    os.waitpid(pid, 0)
    (left,) = tmp_path.glob("pfedfda-*")
    with LocalEngine(tiny, task, EngineConfig(workers=1)) as engine:
        train(engine)  # too early: it might be one that is being made
        assert left.exists()
    while not is_free(left):  # the killed worker, which is not our child, may not have ended yet
        time.sleep(0.01)
    make_old(left)
    with LocalEngine(tiny, task, EngineConfig(workers=1)) as engine:
        train(engine)
        scratch = engine._scratch
        assert scratch is not None
        make_old(scratch)
        assert not left.exists()
        with LocalEngine(tiny, task, EngineConfig(workers=1)) as other:
            train(other)
            assert scratch.exists()
    assert not list(tmp_path.glob("pfedfda-*"))


def test_half_made_folders_of_the_cache_are_removed(tmp_path: Path) -> None:
    federation = prepare(FederationConfig(clients=3, partition="iid"), tmp_path)
    half = federation.folder.parent / ".preparing-killed"
    half.mkdir()
    (half / "images.npy").touch()
    make_old(half)
    prepare(FederationConfig(clients=4, partition="iid"), tmp_path)
    assert len(list(federation.folder.parent.iterdir())) == 2
    assert not half.exists()


def test_after_a_power_cut_a_prepared_federation_is_whole_or_not_there(tmp_path: Path) -> None:
    config = FederationConfig(clients=3, partition="iid")
    (tmp_path / "cache").mkdir()
    disk = Disk(tmp_path / "cache")
    with disk.watched():
        whole = prepare(config, tmp_path / "cache")
    files = {path.name: path.read_bytes() for path in whole.folder.iterdir()}
    last = len(disk.log)
    for at in range(disk.begin, last + 1):
        for how in CUTS if at == last else CUTS[1:4]:
            disk.cut(at, how, 0, tmp_path / "after")
            there = [f for f in tmp_path.glob("after/federations/*") if f.name[0] != "."]
            assert there or at < last  # once it was made it stays
            for folder in there:
                assert {path.name: path.read_bytes() for path in folder.iterdir()} == files


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "half \udc80")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "old"
    write_text(path, "new")
    assert path.read_text() == "new"


def test_links_are_not_written_to(tmp_path: Path) -> None:
    letter = tmp_path / "letter"
    letter.write_text("dear")
    (tmp_path / "file").symlink_to(letter)
    with pytest.raises(InputError, match=f"{tmp_path / 'file'} is a symbolic link"):
        write_text(tmp_path / "file", "new")
    (tmp_path / "file").unlink()
    (tmp_path / "file.new").symlink_to(letter)  # it waits where the new file is made
    write_text(tmp_path / "file", "new")
    assert letter.read_text() == "dear"
    assert not (tmp_path / "file").is_symlink()


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_what_json_lacks_is_not_written(value: float) -> None:
    assert json_text({"a": [1.5, None]}) == '{"a": [1.5, null]}'
    with pytest.raises(PfedfdaError, match="cannot be written as JSON"):
        json_text({"loss": [value]})
