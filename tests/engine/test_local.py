import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from pfedfda.data import CORRUPTIONS, Federation, FederationConfig, prepare
from pfedfda.data.shift import Shift
from pfedfda.data.views import ShiftedView
from pfedfda.engine import LocalEngine, Step, pool
from pfedfda.engine import local as local_engine
from pfedfda.engine.pool import Worker
from pfedfda.errors import InputError, RunStoppedError
from pfedfda.methods import Client, Personal, Task, Tensors, TrainingConfig, Update
from pfedfda.methods.fedavg import FedAvg
from pfedfda.methods.local import Local
from pfedfda.models import ModelConfig, model_tensors
from pfedfda.runs import ClientStates, EngineConfig, Outcome


@pytest.fixture
def task(tiny: Federation) -> Task:
    training = TrainingConfig(epochs=1, batch_size=4)
    return Task(ModelConfig(), tiny.input_shape, len(tiny.class_names), len(tiny), training)


@dataclass(frozen=True)
class Scripted(FedAvg):
    """Does what a test asks for instead of training."""

    name: ClassVar[str] = "scripted"
    script: str = "echo"

    def train(self, client: Client, message: Tensors) -> Update:
        if self.script == "pids":
            time.sleep(0.05)
            return Update({"pid": torch.tensor([os.getpid()])}, 1.0)
        if self.script.startswith("die") and client.client_id == 3:
            mark = Path(self.script.removeprefix("die once ")) if "once" in self.script else None
            if mark is None or not mark.exists():
                if mark:
                    mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        if self.script.startswith("stop") and client.client_id == 3:
            mark = Path(self.script.removeprefix("stop once ")) if "once" in self.script else None
            if mark is None or not mark.exists():
                if mark:
                    mark.touch()
                os.kill(os.getpid(), signal.SIGSTOP)
        if self.script == "busy" and client.client_id == 3:
            end = time.process_time() + 2
            while time.process_time() < end:
                pass
        if self.script == "infinite state":
            kept = torch.tensor([1.0 if client.client_id != 3 else float("inf")])
            client.state = {"kept": kept}
        if self.script == "raise" and client.client_id == 3:
            raise ZeroDivisionError("one over nothing")
        if self.script == "slow first" and client.client_id == 0:
            time.sleep(0.3)
        if self.script == "own weights":  # what the scratch model holds, and something left in it
            start = model_tensors(client.model)
            flags = [float(p.requires_grad and p.grad is None) for p in client.model.parameters()]
            for parameter in client.model.parameters():
                parameter.grad = torch.ones_like(parameter)
                parameter.requires_grad_(False).add_(client.client_id + 1)
            return Update(start | {"flags": torch.tensor(flags)}, 1.0)
        if self.script == "transposed":
            return Update({"w": torch.ones(2, 3).T}, 1.0)
        if self.script == "shared":
            w = torch.ones(3)
            return Update({"v": w[:2], "w": w}, 1.0)
        if self.script == "list":
            return Update({"w": [1.0]}, 1.0)  # type: ignore[dict-item]
        if self.script == "transposed state":
            client.state = {"w": torch.ones(2, 3).T}
        if self.script == "threads":
            return Update({"threads": torch.tensor([torch.get_num_threads()])}, 1.0)
        return Update({"id": torch.tensor([float(client.client_id)])}, 1.0)

    def personalize(self, client: Client, message: Tensors) -> Personal:
        client.state["spoiled"] = torch.ones(1)
        client.model.load_state_dict(message)
        return Personal(client.model, {"answer": 42.0})


@dataclass(frozen=True)
class Counting(Local):
    """Counts in its own state how often a client has trained."""

    def train(self, client: Client, message: Tensors) -> Update:
        client.state = {"trained": client.state.get("trained", torch.zeros(1)) + 1}
        return Update({}, 1.0)

    def personalize(self, client: Client, message: Tensors) -> Personal:
        return Personal(client.model, {"trained": float(client.state["trained"])})


def engines(tiny: Federation, task: Task) -> Iterator[LocalEngine]:
    for workers in (0, 1, 2):
        with LocalEngine(tiny, task, EngineConfig(workers=workers)) as engine:
            yield engine


def workers_of(engine: LocalEngine) -> list[Worker]:
    assert engine.pool is not None
    return engine.pool.workers


def train(engine: LocalEngine, script: str, states: ClientStates) -> list[Outcome]:
    return list(
        engine.run(Step("train", Scripted(script), 1, states), {"w": torch.ones(3)}, range(6))
    )


def run(engine: LocalEngine, script: str, states: ClientStates) -> list[Update]:
    return [outcome.update for outcome in train(engine, script, states) if outcome.update]


def test_order_is_largest_first_whoever_is_quicker(
    tiny: Federation, task: Task, tmp_path: Path
) -> None:
    uneven = Federation(tiny.folder)
    uneven.__dict__["train_sizes"] = np.array([5, 9, 2, 9, 7, 1])
    for engine in engines(uneven, task):
        updates = run(engine, "slow first", ClientStates(tmp_path))
        assert [u.client_id for u in updates] == [1, 3, 4, 0, 2, 5]
        assert [u.tensors["id"].item() for u in updates] == [1, 3, 4, 0, 2, 5]


def test_noise_of_new_clients_does_not_depend_on_the_share_of_training_images(
    tiny_config: FederationConfig, task: Task, tmp_path: Path
) -> None:
    """FedAvg makes no use of a new client's training images, so its loss must be the same."""
    losses = []
    for share in (1.0, 0.5):
        federation = prepare(replace(tiny_config, train_fraction=share))
        with LocalEngine(federation, task, EngineConfig(workers=0)) as engine:
            state, states = task.initial_tensors(), ClientStates(tmp_path)
            for corruption in CORRUPTIONS:
                view = ShiftedView(Shift(corruption, 3), task.seed)
                step = Step("evaluate", FedAvg(), 1, states, view)
                outcomes = list(engine.run(step, state, range(6)))
                losses.append([outcome.loss for outcome in outcomes])
    half = len(CORRUPTIONS)
    assert losses[:half] == losses[half:]


def test_work_is_spread_over_persistent_processes(
    tiny: Federation, task: Task, tmp_path: Path
) -> None:
    with LocalEngine(tiny, task, EngineConfig(workers=2)) as engine:
        pids = [
            {int(u.tensors["pid"]) for u in run(engine, "pids", ClientStates(tmp_path))}
            for _ in range(2)
        ]
    assert len(pids[0]) == 2
    assert pids[0] == pids[1]
    assert os.getpid() not in pids[0]


def test_one_compute_thread_everywhere(tiny: Federation, task: Task, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    for engine in engines(tiny, task):
        updates = run(engine, "threads", ClientStates(tmp_path))
        assert {int(u.tensors["threads"]) for u in updates} == {1}
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


def test_killed_worker_is_replaced_and_its_client_tries_again(
    tiny: Federation, task: Task, tmp_path: Path
) -> None:
    with LocalEngine(tiny, task, EngineConfig(workers=2)) as engine:
        script = f"die once {tmp_path / 'died'}"
        assert len(run(engine, script, ClientStates(tmp_path))) == 6
        assert (tmp_path / "died").exists()
        assert len(workers_of(engine)) == 2
        # A client at which every worker dies, for example for want of memory, is given up.
        outcomes = train(engine, "die", ClientStates(tmp_path))
        assert [o.client_id for o in outcomes if o.failure] == [3]
        assert "SIGKILL" in next(o.failure for o in outcomes if o.failure)
        assert len(run(engine, "echo", ClientStates(tmp_path))) == 6


@pytest.mark.parametrize("workers", [1, 3])
def test_clients_given_in_advance_survive_their_worker(
    tiny: Federation, task: Task, tmp_path: Path, workers: int
) -> None:
    """The next client of a worker that dies at this one goes to somebody else, once."""
    with LocalEngine(tiny, task, EngineConfig(workers=workers)) as engine:
        outcomes = train(engine, "die", ClientStates(tmp_path))
        assert sorted(o.client_id for o in outcomes) == list(range(6))
        assert [o.client_id for o in outcomes if o.failure] == [3]
        assert not any(worker.items for worker in workers_of(engine))


def test_a_busy_worker_has_its_next_client_but_not_the_last_ones(
    tiny: Federation, task: Task, tmp_path: Path
) -> None:
    with LocalEngine(tiny, task, EngineConfig(workers=2)) as engine:
        step = Step("train", Scripted("pids"), 1, ClientStates(tmp_path))
        outcomes = engine.run(step, task.initial_tensors(), range(6))
        next(outcomes)
        given = sum(len(worker.items) for worker in workers_of(engine))
        assert given <= 4  # two are at work or done, two are in advance; two wait for the quickest
        assert max(len(worker.items) for worker in workers_of(engine)) <= 2
        assert len(list(outcomes)) == 5


needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")


@needs_proc
@pytest.mark.timeout(60)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_stopped_worker_is_replaced_and_its_client_tries_again(
    tiny: Federation, task: Task, tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "LIFELESS_SECONDS", 0.5)
    with LocalEngine(tiny, task, EngineConfig(workers=workers)) as engine:
        script = f"stop once {tmp_path / 'stopped'}"
        assert len(run(engine, script, ClientStates(tmp_path))) == 6
        assert (tmp_path / "stopped").exists()
        # A client at which every worker stops is given up.
        outcomes = train(engine, "stop", ClientStates(tmp_path))
        assert [o.client_id for o in outcomes if o.failure] == [3]
        failure = next(o.failure for o in outcomes if o.failure)
        assert failure == "its worker process did nothing for 0.5 s, 2 times"
        assert len(run(engine, "echo", ClientStates(tmp_path))) == 6
        processes = [w.process for w in workers_of(engine)]
    assert not any(process.is_alive() for process in processes)


@needs_proc
@pytest.mark.timeout(60)
def test_a_worker_that_was_stopped_while_idle_is_replaced(
    tiny: Federation, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many rounds pass in which it is not needed."""
    monkeypatch.setattr(pool, "LIFELESS_SECONDS", 0.5)
    states = ClientStates(tmp_path / ("long " * 40))
    with LocalEngine(tiny, task, EngineConfig(workers=2)) as engine:
        run(engine, "echo", states)
        pid = workers_of(engine)[1].process.pid or 0
        os.kill(pid, signal.SIGSTOP)
        for number in range(500):
            assert (
                len(list(engine.run(Step("train", Scripted(), number + 1, states), {}, [0]))) == 1
            )
        assert len(run(engine, "echo", states)) == 6
        assert workers_of(engine)[1].process.pid != pid


@needs_proc
def test_a_worker_that_computes_for_long_is_waited_for(
    tiny: Federation, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "LIFELESS_SECONDS", 0.5)
    with LocalEngine(tiny, task, EngineConfig(workers=2)) as engine:
        run(engine, "echo", ClientStates(tmp_path))
        pids = [worker.process.pid for worker in workers_of(engine)]
        assert len(run(engine, "busy", ClientStates(tmp_path))) == 6
        assert [worker.process.pid for worker in workers_of(engine)] == pids


def test_idle_worker_that_died_is_replaced(tiny: Federation, task: Task, tmp_path: Path) -> None:
    with LocalEngine(tiny, task, EngineConfig(workers=2)) as engine:
        run(engine, "echo", ClientStates(tmp_path))
        for worker in workers_of(engine):
            os.kill(worker.process.pid or 0, signal.SIGKILL)
            worker.process.join()
        assert len(run(engine, "echo", ClientStates(tmp_path))) == 6


def test_exception_at_a_client_is_its_outcome(tiny: Federation, task: Task, tmp_path: Path) -> None:
    for engine in engines(tiny, task):
        outcomes = train(engine, "raise", ClientStates(tmp_path))
        failed = next(o for o in outcomes if o.failure)
        assert failed.failure == "ZeroDivisionError: one over nothing"
        assert "in train" in failed.trace  # where it happened
        assert (failed.client_id, failed.update) == (3, None)
        assert sum(o.update is not None for o in outcomes) == 5


def test_own_tensors_that_are_not_finite_are_not_kept(
    tiny: Federation, task: Task, tmp_path: Path
) -> None:
    for engine in engines(tiny, task):
        states = ClientStates(tmp_path / str(engine.num_workers))
        outcomes = train(engine, "infinite state", states)
        assert [o.client_id for o in outcomes if o.failure] == [3]
        assert states.load(2, before=2)["kept"] == 1
        assert states.load(3, before=2) == {}


def test_nothing_is_left_behind(tiny: Federation, task: Task, tmp_path: Path) -> None:
    engine = LocalEngine(tiny, task, EngineConfig(workers=2))
    run(engine, "echo", ClientStates(tmp_path))
    scratch, processes = engine._scratch, [w.process for w in workers_of(engine)]
    assert scratch is not None
    assert list(scratch.iterdir()) == []  # states and updates are removed at once
    step = Step("train", Scripted(), 1, ClientStates(tmp_path))
    stream = engine.run(step, {"w": torch.ones(1)}, range(6))
    next(stream)
    stream.close()  # a consumer that loses interest
    engine.close()
    assert not scratch.exists()
    assert not any(process.is_alive() for process in processes)


@pytest.mark.parametrize("busy", [False, True])
def test_workers_leave_when_their_parent_is_killed(
    tiny: Federation, task: Task, tmp_path: Path, busy: bool
) -> None:
    pid = os.fork()
    if pid == 0:  # a parent that dies without cleaning up
        engine = LocalEngine(tiny, task, EngineConfig(workers=2))
        run(engine, "echo", ClientStates(tmp_path))
        if busy:
            step = Step("train", Scripted("pids"), 1, ClientStates(tmp_path))
            outcomes = engine.run(step, task.initial_tensors(), range(6))
            next(outcomes)
        pids = " ".join(str(w.process.pid) for w in workers_of(engine))
        (tmp_path / "pids").write_text(f"{pids} {engine._scratch}")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    first, second, scratch = (tmp_path / "pids").read_text().split()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if not (_alive(int(first)) or _alive(int(second)) or Path(scratch).exists()):
            return
        time.sleep(0.05)
    pytest.fail("the workers are still there")


def _alive(pid: int) -> bool:
    """Tell whether a process runs; one that has ended but was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_state_is_written_once_a_round(
    tiny: Federation, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    real = local_engine.save_file

    def counting(tensors: Tensors, path: Path) -> None:
        written.append(path.name)
        real(tensors, path)

    monkeypatch.setattr(local_engine, "save_file", counting)
    with LocalEngine(tiny, task, EngineConfig(workers=2)) as engine:
        for _ in range(3):
            run(engine, "echo", ClientStates(tmp_path))
    assert [name.split("-")[0] for name in written] == ["state"] * 3  # in this process


def test_evaluation_keeps_no_state(tiny: Federation, task: Task, tmp_path: Path) -> None:
    states = ClientStates(tmp_path)
    for engine in engines(tiny, task):
        step = Step("evaluate", Scripted(), 1, states)
        outcomes = list(engine.run(step, task.initial_tensors(), range(6)))
        assert all(o.metrics == {"answer": 42.0} for o in outcomes)
        assert sorted(o.tested for o in outcomes) == sorted(tiny.test_sizes)
    assert list(tmp_path.rglob("*.safetensors*")) == []


def test_training_sees_the_state_before_its_round_and_evaluation_that_after(
    tiny: Federation, task: Task, tmp_path: Path
) -> None:
    states = ClientStates(tmp_path)
    for engine in engines(tiny, task):
        for round_number in (1, 2, 2, 3):  # a round that is run again starts from the same
            step = Step("train", Counting(), round_number, states)
            list(engine.run(step, {}, [0]))
            assert states.load(0, before=round_number + 1)["trained"] == round_number
            (outcome,) = engine.run(replace(step, kind="evaluate"), {}, [0])
            assert outcome.metrics == {"trained": float(round_number)}


def test_states_of_few_rounds_are_kept(tmp_path: Path) -> None:
    states = ClientStates(tmp_path, checkpoint=2)
    for round_number in range(1, 8):
        states.save(5, round_number, {"round": torch.tensor([round_number])})
    states.prune([5], 6)  # the seventh round is not complete
    assert sorted(p.stem for p in tmp_path.rglob("*.safetensors")) == [
        "000002", "000006", "000007",
    ]  # fmt: skip
    assert states.load(5, before=3)["round"] == 2  # where the checkpoint finds it
    assert states.load(5, before=7)["round"] == 6
    assert states.load(5, before=1) == {}
    (tmp_path / "000" / "000005" / "000008.safetensors.123").write_bytes(b"half")
    states.rewind()
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["000002.safetensors"]
    (tmp_path / "000" / "000005" / "000002.safetensors").write_bytes(b"damaged")
    with pytest.raises(RunStoppedError, match="client 5 .*cannot be read"):
        states.load(5, before=3)


def test_bytes_are_those_of_the_tensors(tiny: Federation, task: Task, tmp_path: Path) -> None:
    model = 4 * sum(p.numel() for p in task.build_model().parameters())
    with LocalEngine(tiny, task, EngineConfig(workers=1)) as engine:
        states = ClientStates(tmp_path)
        step = Step("train", FedAvg(), 1, states)
        outcome = next(engine.run(step, task.initial_tensors(), [0]))
        assert (outcome.bytes_down, outcome.bytes_up) == (model, model)
        outcome = next(engine.run(replace(step, method=Local()), {}, [0]))
        assert (outcome.bytes_down, outcome.bytes_up) == (0, 0)


def test_window_bounds_what_waits(
    tiny: Federation, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for few waiting updates the result is the same."""
    monkeypatch.setattr(local_engine, "MAX_WAITING_BYTES", 1)
    with LocalEngine(tiny, task, EngineConfig(workers=1)) as engine:
        assert len(run(engine, "slow first", ClientStates(tmp_path))) == 6


def test_a_worker_that_starts_late_misses_nothing(
    tiny: Federation, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds with one client are over before the second worker has looked at them."""

    class SlowStart(local_engine.ClientRunner):
        def __init__(self, *arguments: Any) -> None:
            if multiprocessing.current_process().name.endswith("1"):
                time.sleep(0.5)
            super().__init__(*arguments)

    monkeypatch.setattr(local_engine, "ClientRunner", SlowStart)
    with LocalEngine(tiny, task, EngineConfig(workers=2)) as engine:
        for clients in ([0], [1], range(6)):
            step = Step("train", Scripted("pids"), 1, ClientStates(tmp_path))
            outcomes = engine.run(step, {"w": torch.ones(1)}, clients)
            assert len(list(outcomes)) == len(clients)


def test_spawned_workers_give_the_same(
    tiny: Federation, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where forking is not possible (macOS, CUDA), fresh processes do the same work."""

    def train(platform: str) -> Tensors:
        monkeypatch.setattr(local_engine.sys, "platform", platform)
        with LocalEngine(tiny, task, EngineConfig(workers=1)) as engine:
            start = task.initial_tensors()
            step = Step("train", FedAvg(), 1, ClientStates(tmp_path))
            outcomes = engine.run(step, start, [2])
            return FedAvg().aggregate(start, [o.update for o in outcomes if o.update])

    forked, spawned = train("linux"), train("darwin")
    assert all(torch.equal(forked[name], spawned[name]) for name in forked)


@pytest.mark.parametrize("device", ["cuda", "cuda:7", "mps", "tpu", "meta", "nonsense"])
def test_missing_devices_are_refused(device: str) -> None:
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    if device == "mps" and torch.backends.mps.is_available():
        pytest.skip("this machine has MPS")
    with pytest.raises(InputError, match="device"):
        EngineConfig(device=device)


def test_number_of_workers() -> None:
    assert EngineConfig().num_workers == len(os.sched_getaffinity(0))
    assert EngineConfig(workers=0).num_workers == 0
    with pytest.raises(InputError, match="-1"):
        EngineConfig(workers=-1)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="not the GNU C library")
def test_memory_is_kept_for_the_next_step() -> None:
    """Blocks of many sizes come from the heap, not from maps of their own, and stay there."""
    program = """if True:
        import ctypes, torch
        from pfedfda.machine import keep_memory
        class Info(ctypes.Structure):
            _fields_ = [(name, ctypes.c_size_t) for name in (
                "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
                "fordblks", "keepcost")]
        mallinfo = ctypes.CDLL(None).mallinfo2
        mallinfo.restype = Info
        keep_memory()
        maps, heap = mallinfo().hblks, mallinfo().arena
        blocks = [torch.empty(2**n, dtype=torch.uint8) for n in range(10, 28)]
        assert mallinfo().hblks == maps
        grown = mallinfo().arena
        assert grown >= heap + 2**27
        del blocks
        assert mallinfo().arena == grown
    """
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)


@pytest.mark.parametrize("workers", [0, 1])
def test_no_client_sees_what_another_left_in_the_model(
    tiny: Federation, task: Task, tmp_path: Path, workers: int
) -> None:
    """A method that forgets to load weights gives the same results for any number of workers."""
    method, initial = Scripted(script="own weights"), task.initial_tensors()
    with LocalEngine(tiny, task, EngineConfig(workers=workers)) as engine:
        states = ClientStates(tmp_path)
        step = Step("train", method, 1, states)
        outcomes = list(engine.run(step, initial, range(len(tiny))))
    assert len(outcomes) == len(tiny)
    for outcome in outcomes:
        assert outcome.update is not None
        held = dict(outcome.update.tensors)
        assert held.pop("flags").all()
        assert held.keys() == initial.keys()
        assert all(torch.equal(held[name], initial[name]) for name in initial)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("script", ["transposed", "shared", "list", "transposed state"])
def test_tensors_that_no_file_can_hold_are_the_fault_of_the_client(
    tiny: Federation, task: Task, tmp_path: Path, script: str, workers: int
) -> None:
    """They are named, whatever the number of workers, and no worker ends because of them."""
    with LocalEngine(tiny, task, EngineConfig(workers=workers)) as engine:
        states = ClientStates(tmp_path)
        step = Step("train", Scripted(script=script), 1, states)
        outcomes = list(engine.run(step, {}, range(3)))
    assert len(outcomes) == 3
    for outcome in outcomes:
        assert outcome.failure is not None
        assert "tensor w" in outcome.failure
        assert "model_tensors" in outcome.failure
