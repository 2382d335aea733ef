"""Nothing is lost: a run may be stopped at any moment and ends as if it never had been."""

import json
import os
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import pfedfda
from pfedfda import FederationConfig, InputError, Method, RunStoppedError, compare, resume, run
from pfedfda.cli import main
from pfedfda.data import prepare
from pfedfda.experiment import rounds
from pfedfda.methods import Client, Tensors, Update, all_methods, registry
from pfedfda.methods.ditto import Ditto
from pfedfda.methods.fedavg import FedAvg
from pfedfda.runs import is_complete
from pfedfda.runs.checkpoint import sole_use
from tests.conftest import write_image
from tests.experiment.files import comparable_files

SETTINGS: dict[str, Any] = {
    "rounds": 8,
    "participation": 0.5,
    "eval_every": 3,
    "epochs": 1,
    "batch_size": 4,
    "quiet": True,
}


def in_a_process(work: Callable[[], object]) -> int:
    """Do something in a forked process; return its number."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return pid


def go_on(folder: Path, start: Callable[[], object]) -> Callable[[], object]:
    """Return what brings a run one process further: its start, or its resumption."""
    has_begun = (folder / "config.toml").exists() and (folder / "checkpoint").exists()
    return (lambda: resume(folder, quiet=True)) if has_begun else start


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "checkpoint_every", "workers"),
    [("pfedfda", 1, 2), ("pfedfda-paper", 3, 2), ("ditto", 0, 2), ("fedrep", 2, 0)],
)
def test_killed_at_any_moment_it_ends_with_the_same_bytes(
    name: str,
    checkpoint_every: int,
    workers: int,
    tiny_config: FederationConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rounds, "CHECKPOINT_SECONDS", 0.1)
    settings = SETTINGS | {"checkpoint_every": checkpoint_every, "workers": workers}
    whole = run(name, tiny_config, output=tmp_path / "whole", **settings)
    seconds = whole.summary["seconds"]["total"]
    folder = tmp_path / "killed" / whole.folder.name

    def start() -> None:
        if folder.exists():  # killed before there was anything to go on from
            folder.rename(folder.with_name(f"stillborn-{time.monotonic_ns()}"))
        run(name, tiny_config, output=tmp_path / "killed", **settings)

    moments = random.Random(name)
    kills = 0
    while not is_complete(folder):
        pid = in_a_process(go_on(folder, start))
        # Five times it is killed before a seventh of the run; then it may get further each time.
        time.sleep(moments.uniform(0.0, (0.15 + 0.1 * max(kills - 5, 0)) * seconds))
        finished, status = os.waitpid(pid, os.WNOHANG)
        if not finished:
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            kills += os.WIFSIGNALED(status)
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    assert kills >= 5
    assert comparable_files(folder) == comparable_files(whole.folder)


@contextmanager
def interrupted_ditto(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the user interrupt Ditto in its fifth round."""
    train = Ditto.train

    def stopping(self: Ditto, client: Client, message: Tensors) -> Update:
        if client.round == 5:
            raise KeyboardInterrupt
        return train(self, client, message)

    with monkeypatch.context() as patched:
        patched.setattr(Ditto, "train", stopping)
        yield


def stopped_run(
    tiny_config: FederationConfig, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Return the folder of a Ditto run that was interrupted in its fifth round."""
    with (
        interrupted_ditto(monkeypatch),
        pytest.raises(RunStoppedError, match="interrupted. 4 of 8 rounds"),
    ):
        run("ditto", tiny_config, output=folder, workers=0, **SETTINGS)
    return folder / "digits-ditto"


def test_full_disk_keeps_the_last_checkpoint(
    tiny_config: FederationConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run("ditto", tiny_config, output=tmp_path / "whole", workers=0, **SETTINGS)
    folder = stopped_run(tiny_config, tmp_path, monkeypatch)

    def with_a_full_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        try:
            resume(folder, workers=0, quiet=True)
        except RunStoppedError as error:
            (tmp_path / "said").write_text(str(error))

    assert os.waitpid(in_a_process(with_a_full_disk), 0)[1] == 0
    said = (tmp_path / "said").read_text()
    assert "cannot be written" in said
    assert "4 of 8 rounds are complete" in said
    assert "\n" not in said
    assert comparable_files(resume(folder, quiet=True).folder) == comparable_files(whole.folder)


def test_full_disk_at_the_first_checkpoint(tiny_config: FederationConfig, tmp_path: Path) -> None:
    def with_a_full_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        try:
            run("ditto", tiny_config, output=tmp_path / "runs", workers=0, **SETTINGS)
        except RunStoppedError as error:
            (tmp_path / "said").write_text(str(error))

    prepare(tiny_config)
    assert os.waitpid(in_a_process(with_a_full_disk), 0)[1] == 0
    assert "cannot be written" in (tmp_path / "said").read_text()


def test_lost_files_are_noticed(
    tiny_config: FederationConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = stopped_run(tiny_config, tmp_path, monkeypatch)
    (clients,) = (folder / "checkpoint" / "clients").iterdir()
    first = sorted(clients.iterdir())[0]
    first.rename(tmp_path / "state")
    with pytest.raises(InputError, match=r"is damaged: it has states of \d clients instead of"):
        resume(folder, workers=0, quiet=True)
    (tmp_path / "state").rename(first)
    (folder / "metrics.jsonl").rename(tmp_path / "log")
    with pytest.raises(InputError, match="shorter than the checkpoint says"):
        resume(folder, workers=0, quiet=True)
    (tmp_path / "log").rename(folder / "metrics.jsonl")
    assert resume(folder, workers=0, quiet=True).summary["status"] == "complete"


def test_damaged_checkpoints_are_refused_and_left_alone(
    tiny_config: FederationConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = stopped_run(tiny_config, tmp_path, monkeypatch)
    state = folder / "checkpoint" / "server-000004.safetensors"
    manifest = folder / "checkpoint" / "manifest.json"
    whole = {path: path.read_bytes() for path in (state, manifest)}
    flipped = bytearray(whole[state])
    flipped[-100] ^= 4
    content = json.loads(whole[manifest])
    damages: list[tuple[Path, bytes]] = [
        (state, bytes(flipped)),
        (state, whole[state][:-7]),
        (state, b"\xff" * 8 + whole[state][8:]),  # declares a header of 2^64 bytes
        (state, b""),
        (manifest, whole[manifest][:-9]),
        (manifest, b"[" * 100_000),
        (manifest, b"[]"),
        (manifest, json.dumps(content | {"round": "../../../etc/passwd"}).encode()),
        (manifest, json.dumps(content | {"round": -1}).encode()),
        (manifest, json.dumps(content | {"round": 10**30}).encode()),
        (manifest, json.dumps(content | {"log_sizes": {"metrics.jsonl": 10**9}}).encode()),
        (manifest, json.dumps(content | {"tally": {"asked": "many"}}).encode()),
        (manifest, json.dumps(content | {"tally": {"seconds": {"clients": []}}}).encode()),
        (manifest, json.dumps(content | {"about": {}}).encode()),
        (manifest, b'{"format": 1}'),
    ]
    for path, damage in damages:
        path.write_bytes(damage)
        with pytest.raises(InputError) as caught:
            resume(folder, workers=0, quiet=True)
        assert "\n" not in str(caught.value)
        assert str(folder) in str(caught.value)
        assert path.read_bytes() == damage  # nothing was made worse
        path.write_bytes(whole[path])
    state.unlink()
    with pytest.raises(InputError, match=r"is not a run"):
        resume(folder, workers=0, quiet=True)
    state.write_bytes(whole[state])
    assert resume(folder, workers=0, quiet=True).summary["status"] == "complete"


def test_what_a_kill_leaves_half_written_is_removed(
    tiny_config: FederationConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = stopped_run(tiny_config, tmp_path, monkeypatch)
    (folder / "checkpoint" / ".tmp4711").write_bytes(b"half")
    (folder / "checkpoint" / "server-000005.safetensors").write_bytes(b"half")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"round": 5, "mean_acc')
    whole = run("ditto", tiny_config, output=tmp_path / "whole", workers=0, **SETTINGS)
    assert comparable_files(resume(folder, quiet=True).folder) == comparable_files(whole.folder)


def test_places_that_cannot_be_written(tiny_config: FederationConfig) -> None:
    with pytest.raises(InputError, match="cannot be written to /proc"):
        run("local", tiny_config, rounds=1, workers=0, output=Path("/proc/runs"), quiet=True)


def test_two_processes_do_not_share_a_run(
    tiny_config: FederationConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = stopped_run(tiny_config, tmp_path, monkeypatch)
    ready, go = os.pipe(), os.pipe()

    def hold() -> None:
        with sole_use(folder / "checkpoint"):
            os.write(ready[1], b"x")
            os.read(go[0], 1)

    pid = in_a_process(hold)
    os.read(ready[0], 1)
    with pytest.raises(InputError, match="Another process is at work"):
        resume(folder, workers=0, quiet=True)
    os.write(go[1], b"x")
    os.waitpid(pid, 0)
    for end in (*ready, *go):
        os.close(end)
    assert resume(folder, workers=0, quiet=True).summary["rounds"] == 8


def test_a_comparison_goes_on_by_itself(
    tiny_config: FederationConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods: list[str | Method] = ["fedavg", "ditto", "local"]
    settings = SETTINGS | {"workers": 0, "output": tmp_path}
    with (
        interrupted_ditto(monkeypatch),
        pytest.raises(RunStoppedError, match="To go on: pfedfda compare --resume"),
    ):
        compare(methods, tiny_config, **settings)
    folder = tmp_path / "digits-compare"
    first = (folder / "fedavg" / "summary.json").stat().st_mtime_ns
    other = compare(methods, tiny_config, **settings | {"rounds": 2})
    assert other.folder.name == "digits-compare-2"  # other settings are another comparison
    (tmp_path / "digits-compare-2").rename(tmp_path / "elsewhere")

    again = compare(methods, tiny_config, **settings | {"workers": 1})
    assert again.folder == folder
    assert (folder / "fedavg" / "summary.json").stat().st_mtime_ns == first  # not run again
    assert [r.method for r in again.results] == ["fedavg", "ditto", "local"]
    assert [r.summary["rounds"] for r in again.results] == [8, 8, 8]
    whole = run("ditto", tiny_config, **settings | {"output": tmp_path / "whole"})
    files = comparable_files(whole.folder)
    del files["federation.json"]  # a comparison has it once, for all methods
    assert comparable_files(folder / "ditto") == files
    # Once it is complete, the same command starts a new one.
    assert compare(methods, tiny_config, **settings).folder.name == "digits-compare-2"


def test_a_comparison_with_a_method_of_ones_own_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from pfedfda.methods import register\n"
        "from pfedfda.methods.fedavg import FedAvg\n"
        "@register\n"
        "class Mine(FedAvg):\n"
        "    name, title, paper, year = 'mine', 'Mine', 'none', 2026\n"
    )
    words = ["compare", "--methods", "ditto", str(path), "--clients", "4", "--rounds", "8"]
    words += ["--train-fraction", "0.05", "--epochs", "1", "--workers", "0", "--quiet"]
    words += ["--output", str(tmp_path)]
    monkeypatch.setattr(registry, "_registry", all_methods())  # ours is forgotten afterwards
    with interrupted_ditto(monkeypatch):
        assert main(words) == 130
    told = capsys.readouterr().err.strip()
    advice = told.partition("To go on: pfedfda ")[2]
    assert advice == f"compare --resume {tmp_path / 'digits-compare'} --methods {path}"
    monkeypatch.setattr(registry, "_user_files", {})  # as in a new process
    assert main([*advice.split()[:3], "--quiet"]) == 2  # the file must be named
    assert "with --method (run) or --methods (compare)" in capsys.readouterr().err
    assert main([*advice.split(), "--quiet"]) == 0
    assert pfedfda.load_run(tmp_path / "digits-compare" / "mine").summary["rounds"] == 8


def test_resume_on_the_command_line(
    tiny_config: FederationConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = stopped_run(tiny_config, tmp_path, monkeypatch)
    words = ["run", "--resume", str(folder), "--quiet"]
    assert main([*words, "--lr", "0.5"]) == 2
    assert "keeps its settings" in capsys.readouterr().err
    assert main(["compare", "--resume", str(folder)]) == 2
    assert f"pfedfda run --resume {folder}" in capsys.readouterr().err
    assert main(["run", "--resume", str(tmp_path)]) == 2
    assert "no run in" in capsys.readouterr().err
    assert main([*words, "--workers", "1"]) == 0
    assert capsys.readouterr().out.strip() == str(folder)
    assert main(words) == 0  # complete already
    (folder / "checkpoint").rename(tmp_path / "lost")
    assert main(words) == 2
    assert "has lost its checkpoint" in capsys.readouterr().err
    assert pfedfda.load_run(folder).summary["rounds"] == 8


@pytest.mark.parametrize("every", [1, 5])
def test_checkpoints_by_rounds(
    every: int, tiny_config: FederationConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    real = rounds.RunWriter.write_checkpoint

    def noting(self: Any, checkpoint: Any) -> None:
        written.append(checkpoint.round)
        real(self, checkpoint)

    monkeypatch.setattr(rounds.RunWriter, "write_checkpoint", noting)
    run(FedAvg(), tiny_config, rounds=7, checkpoint_every=every, workers=0, output=tmp_path,
        quiet=True)  # fmt: skip
    assert written == (list(range(8)) if every == 1 else [0, 5, 7])


@pytest.mark.parametrize("participation", [1.0, 0.9, 0.5])
@pytest.mark.parametrize("moment", ["log_sizes", "_save"])
def test_interrupted_while_a_round_is_written_down_it_ends_with_the_same_bytes(
    tiny_config: FederationConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    participation: float,
    moment: str,
) -> None:
    """Clients keep what they had in the round that the interrupted run goes back to."""
    settings = SETTINGS | {"participation": participation, "checkpoint_every": 2, "workers": 0}
    whole = run("local", tiny_config, output=tmp_path / "whole", **settings)
    owner = rounds.RunWriter if moment == "log_sizes" else rounds.Run
    usual, reach = getattr(owner, moment), rounds.Run._reach

    def stopping(self: Any) -> Any:
        monkeypatch.setattr(owner, moment, usual)  # once
        raise KeyboardInterrupt

    def reaching(self: rounds.Run, round_number: int) -> None:
        if round_number == 4:
            monkeypatch.setattr(owner, moment, stopping)
        reach(self, round_number)

    with monkeypatch.context() as patched:
        patched.setattr(rounds.Run, "_reach", reaching)
        with pytest.raises(RunStoppedError, match="of 8 rounds"):
            run("local", tiny_config, output=tmp_path, **settings)
    folder = tmp_path / "digits-local"
    resume(folder, workers=0, quiet=True)
    assert comparable_files(folder) == comparable_files(whole.folder)


def test_a_client_that_trains_first_in_the_interrupted_round_is_not_missed(
    tiny_config: FederationConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state of that round is removed again, and the checkpoint does not count on it."""
    train = Ditto.train

    def failing_and_stopping(self: Ditto, client: Client, message: Tensors) -> Update:
        if client.client_id == 0 and client.round == 1:
            raise ValueError("not today")
        if client.client_id == 3 and client.round == 2:
            raise KeyboardInterrupt
        return train(self, client, message)

    settings = SETTINGS | {"participation": 1.0, "workers": 0}
    with monkeypatch.context() as patched:
        patched.setattr(Ditto, "train", failing_and_stopping)
        with pytest.raises(RunStoppedError, match="1 of 8 rounds"):
            run("ditto", tiny_config, output=tmp_path, **settings)
    assert resume(tmp_path / "digits-ditto", workers=0, quiet=True).summary["rounds"] == 8


def test_other_images_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is not taken up with clients that hold something else than before."""
    for client, name in product(range(3), ("a", "b")):
        for number in range(10):
            write_image(tmp_path / "images" / f"{client}" / name / f"{number}.png", 20 * number)
    federation = FederationConfig(source=str(tmp_path / "images"))
    with (
        interrupted_ditto(monkeypatch),
        pytest.raises(RunStoppedError, match="4 of 8 rounds"),
    ):
        run("ditto", federation, output=tmp_path, name="run", workers=0, **SETTINGS)
    removed = tmp_path / "images" / "1" / "b" / "3.png"
    content = removed.read_bytes()
    removed.unlink()
    with pytest.raises(InputError, match="other images than those"):
        resume(tmp_path / "run", workers=0, quiet=True)
    removed.write_bytes(content)
    assert resume(tmp_path / "run", workers=0, quiet=True).summary["rounds"] == 8
