"""Every check finds the mistake that it is for, and proper methods pass."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from pfedfda.cli import main
from pfedfda.experiment.check_method import CHECKS, check_method, find
from pfedfda.methods import Client, Method, Personal, Task, Tensors, Update, load, part, sgd
from pfedfda.methods.fedavg import FedAvg
from pfedfda.methods.training import cross_entropy
from pfedfda.models import model_tensors


@dataclass(frozen=True)
class FedPer(FedAvg):
    """A shared body under own heads, trained together."""

    name: ClassVar[str] = "fedper"
    down: ClassVar[tuple[str, ...]] = ("body",)
    up: ClassVar[tuple[str, ...]] = ("body",)

    def init(self, task: Task) -> Tensors:
        return part(task.initial_tensors(), "body")

    def train(self, client: Client, message: Tensors) -> Update:
        self.start(client, message)
        loss = sgd(client, client.model.parameters(), cross_entropy(client.model))
        tensors = model_tensors(client.model)
        client.state = part(tensors, "head")
        return Update(part(tensors, "body"), client.num_samples, {"train_loss": loss})

    def personalize(self, client: Client, message: Tensors) -> Personal:
        self.start(client, message)
        return Personal(client.model)

    def shared_model(self, client: Client, message: Tensors) -> None:
        return None

    def start(self, client: Client, message: Tensors) -> None:
        load(client.model, message | (client.state or part(client.task.initial_tensors(), "head")))


@dataclass(frozen=True)
class ForgetsNewHeads(FedPer):
    """A client's first head is whatever the scratch model holds."""

    def start(self, client: Client, message: Tensors) -> None:
        load(client.model, message | client.state)


@dataclass(frozen=True)
class ForgetsOldHeads(FedPer):
    """It keeps heads, and never uses them again."""

    def start(self, client: Client, message: Tensors) -> None:
        load(client.model, message)


@dataclass(frozen=True)
class ForgetsWhenPersonalizing(FedPer):
    """It trains as it should, and uses a model without the client's head."""

    def personalize(self, client: Client, message: Tensors) -> Personal:
        load(client.model, message)
        return Personal(client.model)


@dataclass(frozen=True)
class SendsTheModelItself(FedAvg):
    """Its update is the scratch model, which the next client overwrites."""

    def train(self, client: Client, message: Tensors) -> Update:
        super().train(client, message)
        tensors = {n: t.detach() for n, t in client.model.state_dict().items()}
        return Update(tensors, client.num_samples)


@dataclass(frozen=True)
class SendsGradients(FedAvg):
    """It sends parameters that are still part of a computation."""

    def train(self, client: Client, message: Tensors) -> Update:
        update = super().train(client, message)
        return replace(update, tensors={n: t * 1 for n, t in client.model.named_parameters()})


@dataclass(frozen=True)
class ChangesTheMessage(FedAvg):
    """It trains in the message."""

    def train(self, client: Client, message: Tensors) -> Update:
        update = super().train(client, message)
        message["head.bias"].add_(1)
        return update


@dataclass(frozen=True)
class ChangesTheState(FedAvg):
    """It counts its messages in the state."""

    def message(self, state: Tensors, client_id: int) -> Tensors:
        state["head.bias"].add_(1)
        return state


@dataclass(frozen=True)
class AggregatesInPlace(FedAvg):
    """It writes the mean into the old state."""

    def aggregate(self, state: Tensors, updates: Iterable[Update]) -> Tensors:
        for name, tensor in super().aggregate(state, updates).items():
            state[name].copy_(tensor)
        return state


@dataclass(frozen=True)
class ChangesWhenPersonalizing(FedPer):
    """It goes on training the head that it keeps."""

    def personalize(self, client: Client, message: Tensors) -> Personal:
        personal = super().personalize(client, message)
        if client.state:
            client.state["head.bias"].add_(1)
        return personal


@dataclass(frozen=True)
class NewName(FedAvg):
    """Its state grows in the first round."""

    def aggregate(self, state: Tensors, updates: Iterable[Update]) -> Tensors:
        return super().aggregate(state, updates) | {"body.extra": torch.zeros(1)}


@dataclass(frozen=True)
class Median(FedAvg):
    """It needs all updates and says that it does not."""

    additive: ClassVar[bool] = True

    def aggregate(self, state: Tensors, updates: Iterable[Update]) -> Tensors:
        received = list(updates)
        return {
            name: torch.stack([update.tensors[name] for update in received]).median(0).values
            for name in state
        }


@dataclass(frozen=True)
class DividesByClasses(FedAvg):
    """It divides by the classes but one."""

    def train(self, client: Client, message: Tensors) -> Update:
        update = super().train(client, message)
        others = len(client.samples.labels.unique()) - 1
        bias = update.tensors["head.bias"] / torch.tensor(float(others)) * others
        return replace(update, tensors=update.tensors | {"head.bias": bias})


@dataclass(frozen=True)
class NoNewClients(FedPer):
    """It serves only those who have trained."""

    def personalize(self, client: Client, message: Tensors) -> Personal:
        load(client.model, message | {"head.bias": client.state["head.bias"]})
        return super().personalize(client, message)


@dataclass(frozen=True)
class ReturnsAModel(FedAvg):
    """It returns the model alone."""

    def personalize(self, client: Client, message: Tensors) -> Personal:
        return super().personalize(client, message).model  # type: ignore[return-value]


@dataclass(frozen=True)
class Noisy(FedAvg):
    """It takes randomness from where everybody does."""

    source: str = "torch"

    def train(self, client: Client, message: Tensors) -> Update:
        update = super().train(client, message)
        noise = {"torch": torch.rand(1), "numpy": np.random.rand(), "python": random.random()}  # noqa: NPY002
        bias = update.tensors["head.bias"] + float(noise[self.source])
        return replace(update, tensors=update.tensors | {"head.bias": bias})


@dataclass(frozen=True)
class Remembers(FedAvg):
    """It counts clients in a variable of its class."""

    seen: ClassVar[list[int]] = []

    def train(self, client: Client, message: Tensors) -> Update:
        update = super().train(client, message)
        self.seen.append(client.client_id)
        bias = update.tensors["head.bias"] + len(self.seen)
        return replace(update, tensors=update.tensors | {"head.bias": bias})


@dataclass(frozen=True)
class RemembersEvaluation(FedAvg):
    """Personalising leaves a mark that training reads."""

    marks: ClassVar[list[int]] = []

    def train(self, client: Client, message: Tensors) -> Update:
        update = super().train(client, message)
        bias = update.tensors["head.bias"] + len(self.marks)
        return replace(update, tensors=update.tensors | {"head.bias": bias})

    def personalize(self, client: Client, message: Tensors) -> Personal:
        self.marks.append(client.client_id)
        return super().personalize(client, message)


@dataclass(frozen=True)
class KeepsShared(FedPer):
    """It keeps two names for one tensor, which a file does not hold."""

    def train(self, client: Client, message: Tensors) -> Update:
        update = super().train(client, message)
        client.state["again"] = client.state["head.bias"]
        return update


class NoDataclass(FedAvg):
    """It lacks the decorator."""


@dataclass(frozen=True)
class NoTitle(FedAvg):
    """It has no title."""

    title: ClassVar[str] = ""


MISTAKES = [
    (ForgetsNewHeads(), "scratch_model_is_loaded"),
    (ForgetsOldHeads(), "scratch_model_is_loaded"),
    (ForgetsWhenPersonalizing(), "scratch_model_is_loaded"),
    (SendsTheModelItself(), "scratch_model_is_loaded"),
    (SendsTheModelItself(), "tensors_can_be_sent"),
    (SendsGradients(), "tensors_can_be_sent"),
    (ChangesTheMessage(), "arguments_stay"),
    (ChangesTheState(), "arguments_stay"),
    (AggregatesInPlace(), "arguments_stay"),
    (ChangesWhenPersonalizing(), "personalizing_changes_nothing"),
    (NewName(), "names_are_stable"),
    (Median(), "updates_add_up"),
    (DividesByClasses(), "small_clients_train"),
    (NoNewClients(), "everybody_has_a_model"),
    (ReturnsAModel(), "everybody_has_a_model"),
    (Noisy("torch"), "seed_decides"),
    (Noisy("numpy"), "seed_decides"),
    (Noisy("python"), "seed_decides"),
    (Remembers(), "seed_decides"),
    (Remembers(), "workers_do_not_matter"),
    (RemembersEvaluation(), "evaluation_changes_nothing"),
    (KeepsShared(), "tensors_survive_files"),
    (NoDataclass(), "describes_itself"),
    (NoTitle(), "describes_itself"),
]


@pytest.mark.parametrize(
    ("method", "name"), MISTAKES, ids=[f"{type(m).__name__}-{n}" for m, n in MISTAKES]
)
def test_the_mistake_is_found(method: Method, name: str) -> None:
    (check,) = [check for check in CHECKS if check.__name__ == name]
    finding = find(check, method)
    assert finding.violation is not None
    assert str(finding).startswith("failed  ")
    assert finding.remedy in str(finding)
    assert "\n" not in str(finding)


def test_every_check_has_its_mistake() -> None:
    assert {check.__name__ for check in CHECKS} == {name for _, name in MISTAKES}


def test_a_proper_method_passes() -> None:
    findings = list(check_method(FedPer()))
    assert len(findings) == len(CHECKS)
    assert [str(f) for f in findings if f.violation] == []


def test_the_global_generators_are_left_alone() -> None:
    (check,) = [check for check in CHECKS if check.__name__ == "seed_decides"]
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore # noqa: NPY002
    find(check, Noisy())
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore # noqa: NPY002
    assert before == after


FILE = '''
from dataclasses import dataclass
from typing import ClassVar

from pfedfda.methods import register
from pfedfda.methods.fedavg import FedAvg


@register
@dataclass(frozen=True)
class Mine(FedAvg):
    """FedAvg, once more."""

    name: ClassVar[str] = "mine"
    title: ClassVar[str] = "TITLE"
'''


@pytest.mark.parametrize(("title", "code"), [("Mine", 0), ("", 1)])
def test_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], title: str, code: int
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(FILE.replace("TITLE", title))
    assert main(["check-method", str(path)]) == code
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(CHECKS)
    assert [line.split()[0] for line in lines].count("failed") == code


def test_the_command_refuses_what_is_no_method(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-method", str(tmp_path / "nothing.py")]) == 2
    assert "nothing.py" in capsys.readouterr().err
