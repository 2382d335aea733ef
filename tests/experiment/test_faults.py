"""Clients that fail, and updates that must not count."""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from pfedfda import FederationConfig, InputError, RunResult, RunStoppedError, load_run, run
from pfedfda.errors import DivergedRunError
from pfedfda.experiment import rounds
from pfedfda.experiment.checks import fault_of
from pfedfda.gaussian import pack_symmetric, unpack_symmetric
from pfedfda.methods import (
    Client,
    Personal,
    Tensors,
    Update,
    all_methods,
    cross_entropy,
    dry_run,
    part,
    sgd,
)
from pfedfda.methods.ditto import Ditto
from pfedfda.methods.fedavg import FedAvg
from pfedfda.methods.lg_fedavg import LGFedAvg
from pfedfda.methods.pfedfda import PFedFDA
from tests.experiment.files import final_state
from tests.methods.toy import TASK, make_client, same

FEDERATION = FederationConfig(partition="client-dirichlet", clients=40, samples=10, alpha=5.0)
POISONED = {3: "nan", 11: "infinite", 20: "shape", 31: "huge"}
SETTINGS: dict[str, Any] = {"rounds": 3, "participation": 0.7, "lr": 0.05, "quiet": True}


def poison(tensors: Tensors, how: str) -> Tensors:
    name = "head.weight"
    if how == "shape":
        return tensors | {name: tensors[name][:, :3].contiguous()}
    value = {"nan": float("nan"), "infinite": float("inf"), "huge": 1e30}[how]
    spoiled = tensors[name].clone()
    spoiled[0, 0] = value
    return tensors | {name: spoiled}


@dataclass(frozen=True)
class Poisoned(Ditto):
    """Ditto with some clients who send what they should not."""

    name: ClassVar[str] = "poisoned"

    def train(self, client: Client, message: Tensors) -> Update:
        update = super().train(client, message)
        how = POISONED.get(client.client_id)
        return update if how is None else Update(poison(update.tensors, how), update.weight)


def failures(result: RunResult) -> list[dict[str, Any]]:
    text = (result.folder / "failures.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("workers", [0, 2])
def test_poisoned_updates_are_as_if_their_clients_were_not_there(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SETTINGS | {"workers": workers}
    poisoned = run(Poisoned(), FEDERATION, output=tmp_path / "poisoned", **settings)
    draw = rounds.draw_participants
    with monkeypatch.context() as patched:
        patched.setattr(
            rounds,
            "draw_participants",
            lambda *args: [client for client in draw(*args) if client not in POISONED],
        )
        without = run("ditto", FEDERATION, output=tmp_path / "without", **settings)
    assert same(final_state(poisoned.folder), final_state(without.folder))  # to the bit
    # Who was left out keeps no personal model either: it is as it was.
    clients = {p.parent.name for p in (poisoned.folder / "checkpoint").rglob("0*.safetensors")}
    assert clients == {f"{c:06d}" for c in range(40) if c not in POISONED}
    left_out = failures(poisoned)
    assert poisoned.summary["failures"] == len(left_out) >= 8
    reasons = {line["client"]: line["reason"] for line in left_out}
    assert set(reasons) == set(POISONED)
    assert "head.weight is not finite" in reasons[3]
    assert "head.weight is not finite" in reasons[11]
    assert "of shape (10, 3) instead of float32 of shape (10, " in reasons[20]
    assert "norm 1e+30, above max-update-norm 1e+06" in reasons[31]
    assert abs(poisoned.mean_accuracy - without.mean_accuracy) < 0.05


@dataclass(frozen=True)
class Lying(PFedFDA):
    """pFedFDA with a client that sends what cannot be."""

    name: ClassVar[str] = "lying"
    lie: str = ""

    def train(self, client: Client, message: Tensors) -> Update:
        update = super().train(client, message)
        return told(update, self.lie) if client.client_id == LIAR else update


LIAR = 2
LIES = {
    "huge loss": "its train_loss is 1.7e+308",
    "infinite loss": "its train_loss is not finite",
    "strange loss": "its train_loss is 'much'",
    "strange name": "a number called 'a,b'",
    "many names": "21 numbers",
    "huge weight": "its weight is 1.7e+308; it must be above 0 and at most 8",
    "larger weight": "its weight is 9; it must be above 0 and at most 8",
    "negative count": "its class counts range from -3",
    "half a count": "its class counts are not whole numbers",
    "more counts": "its class counts sum to 9, and its weight is 8",
    "negative variance": "its covariance is not positive semi-definite",
    "indefinite": "its covariance is not positive semi-definite",
}


def told(update: Update, lie: str) -> Update:
    tensors, weight = dict(update.tensors), update.weight
    metrics: dict[str, Any] = dict(update.metrics)
    if lie.endswith("loss"):
        values: dict[str, Any] = {"huge": 1.7e308, "infinite": float("inf"), "strange": "much"}
        metrics["train_loss"] = values[lie.split()[0]]
    elif lie == "strange name":
        metrics["a,b"] = 1.0
    elif lie == "many names":
        metrics |= {f"number_{n}": 1.0 for n in range(20)}
    elif lie.endswith("weight"):
        weight = 1.7e308 if "huge" in lie else 9
    elif "count" in lie:
        first = {"negative count": [-3.0, 3.0], "half a count": [0.5, -0.5], "more counts": [1, 0]}
        counts = tensors["counts"].clone()
        counts[:2] += torch.tensor(first[lie]) - (counts[0] if "negative" in lie else 0)
        if lie == "half a count":
            counts = counts.abs()
        tensors["counts"] = counts
    else:
        covariance = unpack_symmetric(tensors["covariance"]).clone()
        if lie == "negative variance":
            covariance[3, 3] = -100.0
        else:  # a correlation above 1
            covariance[3, 4] = covariance[4, 3] = 2 * covariance[3, 3].maximum(covariance[4, 4])
        tensors["covariance"] = pack_symmetric(covariance)
    return Update(tensors, weight, metrics)


@pytest.mark.parametrize("lie", LIES)
def test_one_client_that_lies_is_named_and_nothing_else_changes(
    lie: str, tiny_config: FederationConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"rounds": 2, "participation": 1.0, "workers": 0, "quiet": True}
    result = run(Lying(lie=lie), tiny_config, output=tmp_path / "lying", **settings)
    assert result.summary["status"] == "complete"
    assert {(f["client"], f["step"], f["round"]) for f in failures(result)} == {
        (LIAR, "train", 1), (LIAR, "train", 2),
    }  # fmt: skip
    assert all(LIES[lie] in f["reason"] for f in failures(result))
    draw = rounds.draw_participants
    monkeypatch.setattr(
        rounds, "draw_participants", lambda *args: [c for c in draw(*args) if c != LIAR]
    )
    without = run("pfedfda", tiny_config, output=tmp_path / "without", **settings)
    assert same(final_state(result.folder), final_state(without.folder))
    assert result.metrics[-1]["train_loss"] == without.metrics[-1]["train_loss"]


@dataclass(frozen=True)
class Diverging(FedAvg):
    """FedAvg whose training diverges at some clients."""

    name: ClassVar[str] = "diverging"
    clients: tuple[int, ...] = ()
    step: str = "train"

    def train(self, client: Client, message: Tensors) -> Update:
        return super().train(self._steep(client, "train"), message)

    def personalize(self, client: Client, message: Tensors) -> Personal:
        personal = super().personalize(client, message)
        if client.client_id in self.clients and self.step == "evaluate":
            sgd(
                self._steep(client, "evaluate"),
                client.model.parameters(),
                cross_entropy(client.model),
            )
        return personal

    def _steep(self, client: Client, step: str) -> Client:
        if client.client_id not in self.clients or step != self.step:
            return client
        training = replace(client.task.training, lr=1e30)
        return replace(client, task=replace(client.task, training=training))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("step", ["train", "evaluate"])
def test_training_that_diverges_at_one_client_leaves_that_client_out(
    step: str, workers: int, tiny_config: FederationConfig, tmp_path: Path
) -> None:
    settings = {"rounds": 2, "participation": 1.0, "batch_size": 2, "quiet": True}
    method = Diverging(clients=(4,), step=step)
    result = run(method, tiny_config, output=tmp_path, workers=workers, **settings)
    left_out = failures(result)
    assert {(f["client"], f["step"]) for f in left_out} == {(4, step)}
    assert {f["reason"] for f in left_out} == {"its training loss is not finite"}
    assert result.summary["status"] == "complete"


@pytest.mark.parametrize("clients", [(0, 1, 2, 3), tuple(range(6))])
def test_training_that_diverges_at_most_clients_ends_the_run(
    clients: tuple[int, ...], tiny_config: FederationConfig, tmp_path: Path
) -> None:
    """At once, since nothing will be better in later rounds."""
    settings = {"participation": 1.0, "batch_size": 2, "workers": 0, "quiet": True}
    with pytest.raises(
        DivergedRunError, match=r"diverged.*of 6 clients.*client \d: .*smaller --lr.* 0 of 9"
    ):
        run(Diverging(clients=clients), tiny_config, rounds=9, output=tmp_path, **settings)


def test_evaluation_that_diverges_everywhere_is_said_plainly(
    tiny_config: FederationConfig, tmp_path: Path
) -> None:
    method = Diverging(clients=tuple(range(6)), step="evaluate")
    with pytest.raises(DivergedRunError, match="no client could be evaluated.*smaller --lr"):
        run(method, tiny_config, rounds=1, batch_size=2, workers=0, output=tmp_path, quiet=True)


@dataclass(frozen=True)
class Reporting(FedAvg):
    """FedAvg whose third client reports a number about its model."""

    name: ClassVar[str] = "reporting"
    number: str = ""
    value: float = 1.0
    logit: float = 0.0

    def personalize(self, client: Client, message: Tensors) -> Personal:
        model = super().personalize(client, message).model
        if client.client_id != LIAR:
            return Personal(model)
        with torch.no_grad():
            model.head.bias += self.logit  # type: ignore[union-attr, operator]
        return Personal(model, {self.number: self.value} if self.number else {})


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (Reporting(number="accuracy"), "'accuracy', which is another column"),
        (Reporting(number="corruption"), "'corruption', which is another column"),
        (Reporting(number="beta", value=float("inf")), "its beta is not finite"),
        (Reporting(logit=float("nan")), "its test loss is not finite"),
        (Reporting(logit=float("inf")), "its test loss is not finite"),
    ],
)
def test_what_cannot_stand_in_the_results_is_left_out(
    method: Reporting, said: str, tmp_path: Path
) -> None:
    federation = FederationConfig(clients=6, alpha=5.0, shift="paper", train_fraction=0.2)
    result = run(method, federation, rounds=1, workers=0, output=tmp_path, quiet=True)
    (line,) = failures(result)
    assert (line["client"], line["step"]) == (LIAR, "evaluate")
    assert said in line["reason"]
    assert result.summary["evaluated_clients"] == 5
    assert math.isfinite(result.summary["test_loss"])


@pytest.mark.parametrize("name", list(all_methods()))
def test_every_method_is_checked_and_its_own_updates_pass(name: str) -> None:
    method = all_methods()[name]()
    state = method.init(TASK)
    expected = dry_run(method, TASK, state).up
    update = method.train(make_client([0, 1, 1, 2, 0, 1, 2, 2, 0]), method.message(state, 0))
    assert fault_of(update, method, expected, 1e6, 9) is None
    for weight in (0.0, -1.0, 9.5, 10**400, float("nan"), float("inf"), "1", None):
        assert "weight" in str(fault_of(Update(update.tensors, weight), method, expected, 1e6, 9))  # type: ignore[arg-type]
    extra = update.tensors | {"extra": torch.zeros(1)}
    assert "'extra'" in str(fault_of(Update(extra, 9), method, expected, 1e6, 9))
    for tensor in update.tensors:  # whichever tensor it is
        rest = {n: t for n, t in update.tensors.items() if n != tensor}
        assert f"{tensor} is missing" in str(fault_of(Update(rest, 9), method, expected, 1e6, 9))
        like = update.tensors[tensor]
        for bad, words in {
            like.half(): "float16",
            torch.zeros(2, 2, 2): "shape (2, 2, 2)",
            torch.full_like(like, float("nan")): "not finite",
            torch.full_like(like, 1e30): "norm",
        }.items():
            fault = fault_of(Update(rest | {tensor: bad}, 9), method, expected, 1e6, 9)
            assert fault is not None
            assert tensor in fault
            assert words in fault


def test_layers_that_a_hyper_parameter_adds_are_checked_too() -> None:
    method = LGFedAvg(shared="dense")
    state = method.init(TASK)
    expected = dry_run(method, TASK, state).up
    update = method.train(make_client([0, 1, 2]), state)
    assert fault_of(update, method, expected, 1e6, 3) is None
    head = part(update.tensors, "head")
    assert "body.linear.weight is missing" in str(
        fault_of(Update(head, 3.0), method, expected, 1e6, 3)
    )


@dataclass(frozen=True)
class Picky(FedAvg):
    """FedAvg that does not train on two samples, and says whom it has met."""

    name: ClassVar[str] = "picky"

    def train(self, client: Client, message: Tensors) -> Update:
        if client.num_samples == 2:
            raise RuntimeError("two are too few")
        return super().train(client, message)


def test_a_method_that_needs_real_samples_runs_and_it_is_said_what_is_not_checked(
    tiny_config: FederationConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"rounds": 2, "workers": 0}
    picky = run(Picky(), tiny_config, output=tmp_path / "picky", **settings)
    said = capsys.readouterr().err
    assert "updates are not checked by name and shape" in said
    assert "(RuntimeError: two are too few)" in said
    plain = run("fedavg", tiny_config, output=tmp_path / "plain", **settings)
    assert same(final_state(picky.folder), final_state(plain.folder))
    assert "not checked" not in capsys.readouterr().err


@dataclass(frozen=True)
class Failing(FedAvg):
    """FedAvg whose clients fail where a test says so."""

    name: ClassVar[str] = "failing"
    rounds: tuple[int, ...] = ()
    clients: tuple[int, ...] = ()
    step: str = "train"

    def train(self, client: Client, message: Tensors) -> Update:
        self._maybe_fail(client, "train")
        return super().train(client, message)

    def personalize(self, client: Client, message: Tensors) -> Personal:
        self._maybe_fail(client, "evaluate")
        return super().personalize(client, message)

    def _maybe_fail(self, client: Client, step: str) -> None:
        here = client.round in (self.rounds or (client.round,))
        if step == self.step and here and client.client_id in self.clients:
            raise MemoryError("out of memory")


def test_failing_clients_are_left_out_and_named(
    tiny_config: FederationConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    method = Failing(clients=(2,))
    result = run(method, tiny_config, rounds=3, participation=1.0, output=tmp_path, workers=2)
    assert result.summary["failures"] == 3
    assert "client 2 is left out of the train step of round 1: MemoryError" in (
        capsys.readouterr().err
    )
    assert {(f["client"], f["step"]) for f in failures(result)} == {(2, "train")}
    assert "_maybe_fail" in failures(result)[0]["trace"]


def test_a_client_that_cannot_be_evaluated_does_not_count(
    tiny_config: FederationConfig, tmp_path: Path
) -> None:
    settings = {"rounds": 1, "workers": 0, "quiet": True}
    result = run(Failing(clients=(0, 4), step="evaluate"), tiny_config, output=tmp_path, **settings)
    assert result.summary["evaluated_clients"] == 4
    rows = (result.folder / "clients.csv").read_text().splitlines()[1:]
    assert [row.split(",")[0] for row in rows] == ["1", "2", "3", "5"]
    everybody = tuple(range(6))
    with pytest.raises(RunStoppedError, match="No client could be evaluated"):
        run(Failing(clients=everybody, step="evaluate"), tiny_config, output=tmp_path, **settings)


def test_a_round_without_a_usable_update_changes_nothing(
    tiny_config: FederationConfig, tmp_path: Path
) -> None:
    settings = {"participation": 1.0, "workers": 0, "quiet": True}
    method = Failing(rounds=(2, 3), clients=tuple(range(6)))
    result = run(method, tiny_config, rounds=3, output=tmp_path, max_failures=1.0, **settings)
    once = run("fedavg", tiny_config, rounds=1, output=tmp_path, **settings)
    assert same(final_state(result.folder), final_state(once.folder))


def test_too_many_failures_end_the_run(tiny_config: FederationConfig, tmp_path: Path) -> None:
    method = Failing(clients=tuple(range(6)))
    settings = {"participation": 1.0, "workers": 0, "quiet": True}
    with pytest.raises(RunStoppedError, match=r"12 of 12 .*client 5: MemoryError") as caught:
        run(method, tiny_config, rounds=9, output=tmp_path, **settings)
    assert "--resume" not in str(caught.value)  # it would fail again
    with pytest.raises(InputError, match="max-failures is 2"):
        run(method, tiny_config, max_failures=2.0, output=tmp_path)
    with pytest.raises(InputError, match="max-update-norm is 0"):
        run(method, tiny_config, max_update_norm=0.0, output=tmp_path)
    with pytest.raises(InputError, match="checkpoint-every is -1"):
        run(method, tiny_config, checkpoint_every=-1, output=tmp_path)


def test_the_bound_can_be_set(tiny_config: FederationConfig, tmp_path: Path) -> None:
    """Where it leaves everybody out, nothing was learned, and the run does not count as one."""
    with pytest.raises(RunStoppedError, match="No client could be trained .client 5: "):
        run(
            "fedavg", tiny_config, rounds=1, max_update_norm=1e-3, workers=0, output=tmp_path,
            name="bound", quiet=True,
        )  # fmt: skip
    summary = load_run(tmp_path / "bound").summary
    assert (summary["status"], summary["failures"]) == ("stopped", 6)
