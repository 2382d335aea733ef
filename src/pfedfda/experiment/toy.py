"""A tiny federation without an engine, for checking methods."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from pfedfda.methods import Client, Method, Samples, Task, Tensors, TrainingConfig, Update
from pfedfda.models import ModelConfig
from pfedfda.seeding import torch_generator

TASK = Task(
    model=ModelConfig(),
    input_shape=(28, 28, 1),
    num_classes=4,
    num_clients=3,
    training=TrainingConfig(epochs=2, batch_size=5, lr=0.05),
    seed=0,
)
LABELS = ([0, 1, 1, 2, 0, 1, 2, 2, 0], [0, 1, 2, 3, 0, 1], [3, 3, 1, 0, 2])
PARTICIPANTS = ((0, 1), (0, 2))  # of two rounds: one client returns, one is new in the second
NEWCOMER = TASK.num_clients + 5


def make_client(
    labels: list[int],
    client_id: int = 0,
    state: Tensors | None = None,
    task: Task = TASK,
    round_number: int = 1,
    purpose: str = "train",
) -> Client:
    """Return a client without an engine, whose images are noise that depends on the label."""
    generator = torch_generator("toy", client_id)
    base = torch.randint(0, 200, (task.num_classes, *task.input_shape), generator=generator)
    noise = torch.randint(0, 55, (len(labels), *task.input_shape), generator=generator)
    images = (base[labels] + noise).to(torch.uint8)
    return Client(
        client_id=client_id,
        round=round_number,
        task=task,
        samples=Samples(images, torch.tensor(labels)),
        state={} if state is None else state,
        model=task.build_model(),
        generator=torch_generator(purpose, 0, round_number, client_id),
    )


def snapshot(tensors: Tensors) -> Tensors:
    """Return copies of tensors."""
    return {name: tensor.clone() for name, tensor in tensors.items()}


def same(first: Tensors, second: Tensors) -> bool:
    """Tell whether two sets of tensors have the same names and bits."""
    return difference(first, second) is None


def poison(model: nn.Module) -> None:
    """Fill a model with NaN, so that whatever is computed from it shows."""
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.fill_(torch.nan)


@dataclass
class Play:
    """Two rounds with three clients, and what they leave.

    Parameters
    ----------
    method
        The method.
    poisoned
        Fill the scratch model with NaN before a client gets it, and after it has trained.
    saved
        Write every dictionary that travels or is kept, and read it again.
    """

    method: Method
    poisoned: bool = False
    saved: bool = False

    def __post_init__(self) -> None:
        # What was sent, kept and computed, by a description of what it is.
        self.left: dict[str, Tensors] = {}
        self.state = self._note("the initial state", self.method.init(TASK))
        self.kept: dict[int, Tensors] = {}
        for round_number, participants in enumerate(PARTICIPANTS, start=1):
            updates = [self._train(client_id, round_number) for client_id in participants]
            after = self.method.aggregate(self.state, iter(updates))
            self.state = self._note(f"the state after round {round_number}", after)
        for client_id in (*range(TASK.num_clients), NEWCOMER):
            self._personalize(client_id)

    def _train(self, client_id: int, round_number: int) -> Update:
        client = self._client(client_id, round_number, "train")
        of_whom = f"of client {client_id} in round {round_number}"
        message = self.method.message(self.state, client_id)
        message = self._note(f"the message {of_whom}", message)
        update = self.method.train(client, message)
        if self.poisoned:
            poison(client.model)
        sent = self._note(f"the update {of_whom}", update.tensors)
        self.kept[client_id] = self._note(f"client.state {of_whom}", client.state)
        self._note_numbers(f"the metrics {of_whom}", {"weight": update.weight, **update.metrics})
        return replace(update, tensors=sent, client_id=client_id)

    def _personalize(self, client_id: int) -> None:
        client = self._client(client_id, len(PARTICIPANTS), "evaluate")
        message = self.method.message(self.state, client_id)
        shared = self.method.shared_model(client, message)
        if shared is not None:
            self._note(f"the shared model at client {client_id}", {"logits": logits(shared)})
        client = self._client(client_id, len(PARTICIPANTS), "evaluate")
        personal = self.method.personalize(client, message)
        whose = "a new client" if client_id == NEWCOMER else f"client {client_id}"
        self._note(f"the model that {whose} uses", {"logits": logits(personal.model)})
        self._note_numbers(f"the metrics when {whose} is personalised", personal.metrics)

    def _client(self, client_id: int, round_number: int, purpose: str) -> Client:
        labels = LABELS[client_id % len(LABELS)]
        state = self.kept.get(client_id, {})
        client = make_client(labels, client_id, state, TASK, round_number, purpose)
        if self.poisoned:
            poison(client.model)
        return client

    def _note(self, what: str, tensors: Tensors) -> Tensors:
        if self.saved and tensors:
            tensors = load(save(tensors))
        self.left[what] = snapshot(tensors)
        return tensors

    def _note_numbers(self, what: str, numbers: Mapping[str, float]) -> None:
        self._note(what, {name: torch.tensor(float(value)) for name, value in numbers.items()})


def logits(model: nn.Module) -> Tensor:
    """Return what a model makes of grey images."""
    model.eval()
    with torch.no_grad():
        outputs: Tensor = model(torch.linspace(-1, 1, 3)[:, None, None, None].expand(3, 1, 28, 28))
    if outputs.shape != (3, TASK.num_classes):
        raise ValueError(
            f"the model turns 3 images into an output of shape {tuple(outputs.shape)} instead of "
            f"(3, {TASK.num_classes})"
        )
    return outputs


def difference(first: Tensors, second: Tensors) -> str | None:
    """Return the name of a tensor in which two dictionaries differ, None if there is none."""
    for name in sorted(first.keys() | second.keys()):
        one, other = first.get(name), second.get(name)
        if one is None or other is None or one.dtype != other.dtype or not torch.equal(one, other):
            return name
    return None
