"""The contract between a method and whatever runs it.

Everything that crosses between server and client is a flat ``dict[str, Tensor]`` of CPU tensors
with stable names: that is what a wire format, a checkpoint and a test can all carry. A method never
knows which engine runs it; an engine knows a method only through this contract.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from pfedfda.errors import InputError, unknown
from pfedfda.inputs import InputType
from pfedfda.methods.space import Search
from pfedfda.methods.summands import Summand
from pfedfda.models import Body, Model, ModelConfig, build_model, model_tensors

Tensors = dict[str, Tensor]
BATCH_SIZE = 50  # of the paper, and of every task that says nothing else
WEIGHT = "update_weight"
"""The name of an update's weight in its contribution; no tensor of an update has it."""


@dataclass(frozen=True)
class TrainingConfig:
    """How a client trains: plain SGD, the same for every method.

    Parameters
    ----------
    epochs
        Passes over the client's training samples in a round.
    batch_size
        Samples a step; the last batch of an epoch may be smaller and is used too. By default 50, as
        in the paper; with data of your own a tenth of the median client's training samples, but at
        least 10 and at most 50.
    lr
        Learning rate.
    momentum
        Momentum of SGD; the velocity starts at zero in every round.
    weight_decay
        L2 penalty on the trained parameters.
    precision
        What convolutions compute in: float32, or bfloat16, which is quicker on many accelerators.
        Weights, linear layers and features are float32 in any case.
    """

    epochs: int = 5
    batch_size: int | None = None
    lr: Annotated[float, Search(1e-3, 0.3, log=True)] = 0.01
    momentum: float = 0.5
    weight_decay: float = 5e-4
    precision: Literal["float32", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise InputError(f"The number of epochs is {self.epochs}; it must be at least 1.")
        if self.batch_size is not None and self.batch_size < 1:
            raise InputError(f"The batch size is {self.batch_size}; it must be at least 1.")
        if not 0 < self.lr < float("inf"):
            raise InputError(f"The learning rate is {self.lr}; it must be finite and above 0.")
        if not 0 <= self.momentum < 1:
            raise InputError(f"The momentum is {self.momentum}; it must lie in [0, 1).")
        if not 0 <= self.weight_decay < float("inf"):
            raise InputError(f"The weight decay is {self.weight_decay}; it must be 0 or more.")
        if self.precision not in ("float32", "bfloat16"):
            raise unknown("precision", self.precision, ["float32", "bfloat16"])


@dataclass(frozen=True)
class Task:
    """What the server and all clients know before the first round.

    Parameters
    ----------
    model
        The network.
    input_shape
        The shape of one input; height, width and channels for images.
    num_classes
        The number of classes of the whole federation.
    num_clients
        The number of clients.
    training
        How a client trains.
    seed
        Determines every random decision of the run.
    input_type
        What inputs are: uint8 (images), float32 (vectors, or arrays of any shape) or int64
        (indices, such as tokens).
    rounds
        The number of rounds, 0 if it is not known.
    min_class_count
        The samples of a class that a client must have to send statistics of it
        (`pfedfda.methods.rare_classes`); 1 sends all.
    """

    model: ModelConfig
    input_shape: tuple[int, ...]
    num_classes: int
    num_clients: int
    training: TrainingConfig = TrainingConfig()
    seed: int = 0
    input_type: InputType = "uint8"
    rounds: int = 0
    min_class_count: int = 1

    @property
    def batch_size(self) -> int:
        """Samples a step."""
        return self.training.batch_size or BATCH_SIZE

    def build_model(self) -> Model:
        """Return a new model with the initial weights, which are the same for every method."""
        model = build_model(
            self.model, self.input_shape, self.num_classes, self.seed, self.input_type
        )
        if isinstance(model.body, Body):
            model.body.precision = getattr(torch, self.training.precision)
        return model

    def initial_tensors(self) -> Tensors:
        """Return the initial weights by name; anybody can compute them, so they need no sending."""
        return dict(cached_initial_tensors(self))


@lru_cache(maxsize=2)
def cached_initial_tensors(task: Task) -> Tensors:
    """Return the initial weights, which are computed once; nobody may change them."""
    return model_tensors(task.build_model())


class Samples(NamedTuple):
    """Labelled samples of a client."""

    inputs: Tensor
    """uint8 (n, height, width, channels) for images, float32 (n, …), or int64 (n, …) indices."""
    labels: Tensor
    """int64 (n,)."""


@dataclass
class Client:
    """What a method may use on the client's side.

    Parameters
    ----------
    client_id
        The number of the client.
    round
        The current round, from 1.
    task
        Settings shared by the server and all clients.
    samples
        The client's training samples, on the device.
    state
        The client's own tensors, which outlive the round; the server never sees them. A method
        changes them in `Method.train`; changes in `Method.personalize` are not kept.
    model
        A scratch model on the device, with the initial weights. Load all that is used of it:
        ``pfedfda check-method`` fills it with NaN to find what was not.
    generator
        The source of randomness for this client in this round.
    seconds
        Where the time went, by component.
    """

    client_id: int
    round: int
    task: Task
    samples: Samples
    state: Tensors
    model: Model
    generator: torch.Generator
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def num_samples(self) -> int:
        """The number of training samples."""
        return len(self.samples.labels)

    @property
    def device(self) -> torch.device:
        """Where the samples and the scratch model are."""
        return self.samples.labels.device

    @contextmanager
    def timer(self, component: str) -> Iterator[None]:
        """Add the time that the block takes to a component of `seconds`."""
        start = time.perf_counter()
        yield
        passed = time.perf_counter() - start
        self.seconds[component] = self.seconds.get(component, 0.0) + passed


@dataclass(frozen=True)
class Update:
    """What a client sends up after training.

    Parameters
    ----------
    tensors
        What crosses to the server.
    weight
        The weight of this client in averages, its number of training samples as a rule and not
        more.
    metrics
        Numbers for the log, e.g. the training loss.
    client_id
        Who sent it; filled in by the engine.
    """

    tensors: Tensors
    weight: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    client_id: int = -1


class Personal(NamedTuple):
    """The model that a client uses, and numbers about how it was made (e.g. ``beta``)."""

    model: nn.Module
    metrics: Mapping[str, float] = {}


@dataclass(frozen=True)
class Method(ABC):
    """A federated learning method; its hyper-parameters are its dataclass fields.

    A subclass is registered with `pfedfda.methods.register`. It has four functions to write:
    `init`, `message`, `train` and `personalize`. The server then averages what the clients send,
    weighted by their samples; a method that forms its state from the sum in another way overrides
    `finish`, one that adds up something else `contribution` too, and one that must see single
    updates `aggregate`.

    No function has hidden state: what the server knows is the state that `aggregate` returns, and
    what a client knows is ``client.state``.
    """

    name: ClassVar[str]
    """The name on the command line and in files."""
    title: ClassVar[str]
    """The name in tables."""
    paper: ClassVar[str]
    """Where the method was published."""
    year: ClassVar[int]
    """When; lists of methods are in this order."""
    is_preset: ClassVar[bool] = False
    """Whether it is another method with other hyper-parameters; ``all`` leaves presets out."""
    removed: ClassVar[Mapping[str, Any]] = {}
    """Hyper-parameters that an earlier version had, with the value that now always holds. Settings
    and records of that version may still have them."""
    added: ClassVar[Mapping[str, Any]] = {}
    """Hyper-parameters that came later, with the value that all records without them had."""
    training_free: ClassVar[bool] = False
    """Whether clients send moments and train nothing, so that one round is all there is."""
    reveals: ClassVar[str] = "weights trained on its samples"
    """What the update of one client tells about its samples, as a short phrase."""
    additive: ClassVar[bool] = True
    """Whether the sum of contributions is all that the server needs, so that whoever adds up (a
    tree of machines, a secure aggregation) need not show it single updates."""
    summands: ClassVar[Mapping[str, Summand]] = {}
    """What parts of a contribution are, by the first part of their names, where they are not simply
    values times the update's weight. Rules that compare clients need to know."""

    def __init_subclass__(cls, **keywords: object) -> None:
        super().__init_subclass__(**keywords)
        if "aggregate" in vars(cls) and "additive" not in vars(cls):
            cls.additive = False

    @classmethod
    def without_removed(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return hyper-parameters less those that were removed and have the value that holds."""
        return {
            name: value
            for name, value in values.items()
            if name not in cls.removed or value != cls.removed[name]
        }

    @classmethod
    def of_record(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the hyper-parameters of a record, also an old one, as they are named today."""
        return {**cls.added, **cls.without_removed(values)}

    @abstractmethod
    def init(self, task: Task) -> Tensors:
        """Return the server's state before the first round."""

    @abstractmethod
    def message(self, state: Tensors, client_id: int) -> Tensors:
        """Return what goes down to a client. It must not change the state."""

    @abstractmethod
    def train(self, client: Client, message: Tensors) -> Update:
        """Train at the client and return what goes up. It must not change the message.

        The names, shapes and types of the tensors are the same for all clients and rounds. What
        they are is seen before the first round (`pfedfda.methods.dry_run`), and an update that
        differs is left out.
        """

    @abstractmethod
    def personalize(self, client: Client, message: Tensors) -> Personal:
        """Return the model that the client uses; nothing that training sees may change."""

    def contribution(self, update: Update, total: Tensors | None = None) -> Tensors:
        """Return what is added up over clients, in double precision.

        By default that is each tensor times the update's weight, and the weight itself under the
        name `WEIGHT`. It must not change the update.

        Parameters
        ----------
        update
            What a client sent.
        total
            The sum of other contributions, to which this one is added in place; without it the
            contribution comes alone. Both ways give the same sum: to the bit if weights are whole
            numbers and tensors in single precision, whose products are exact.
        """
        total = {} if total is None else total
        add(total, update.tensors, update.weight)
        add(total, {WEIGHT: torch.tensor(update.weight, dtype=torch.float64)})
        return total

    def finish(self, state: Tensors, total: Tensors) -> Tensors:
        """Return the server's state after a round, from the sum of contributions alone.

        By default that is the mean of the clients' tensors, in the types that they have in the
        state. It must not change the state or the sum.
        """
        weight = float(total[WEIGHT])
        return {
            name: as_type(tensor / weight, state[name].dtype)
            for name, tensor in total.items()
            if name != WEIGHT
        }

    def private_contribution(self, state: Tensors, update: Update) -> Tensors:
        """Return what is clipped and added up in place of `contribution` in a private run.

        Whoever adds up shortens all numbers together to a given length, and adds the same noise to
        each of them. So they should be small where little is learned, and of comparable size. They
        depend on this client alone, which counts as one whatever its weight: the number of samples
        is its own business. It must not change the update, and the names and shapes must not depend
        on its content.

        By default these are differences from the state; of a method with a contribution of its own,
        that contribution per unit of weight.
        """
        if self._sums_in_its_own_way():
            own = self.contribution(update)
            return {name: t / update.weight for name, t in own.items() if name != WEIGHT}
        return differences(update.tensors, state)

    def private_total(
        self, state: Tensors, noisy: Tensors, clients: float, noise: float
    ) -> Tensors:
        """Return what `finish` takes, from a private sum.

        It mends what noise breaks and `finish` relies on, such as counts that are not negative.

        Parameters
        ----------
        state
            The server's state before the round.
        noisy
            The sum of private contributions, with noise.
        clients
            How many clients take part: on average, where it is secret how many did.
        noise
            The standard deviation of the noise on each number.
        """
        total = {WEIGHT: torch.tensor(clients, dtype=torch.float64)}
        if self._sums_in_its_own_way():
            return total | noisy
        return total | from_differences(noisy, state, clients)

    def _sums_in_its_own_way(self) -> bool:
        return type(self).contribution is not Method.contribution

    def aggregate(self, state: Tensors, updates: Iterable[Update]) -> Tensors:
        """Return the server's state after a round.

        `updates` is a stream: while one update is taken in, clients still train, and memory does
        not grow with the number of clients. Its order is the same whatever the engine, so a sum
        over it is reproducible to the bit.
        """
        total: Tensors = {}
        for update in updates:
            total = self.contribution(update, total)
        return self.finish(state, total)

    def fault(self, update: Update) -> str | None:
        """Return why an update cannot be that of a proper client, None if it can.

        The method alone knows what its tensors mean, for example that counts are not negative. It
        is asked after everything else has been found in order: weight, names, shapes and types,
        and that all numbers are finite. Whose update has a fault is left out of the round and named
        with it.
        """
        return None

    def shared_model(self, client: Client, message: Tensors) -> nn.Module | None:
        """Return the model that all clients have in common, None if there is no such model."""
        return None


def as_type(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a tensor in another type; whole numbers are rounded."""
    return tensor.to(dtype) if dtype.is_floating_point else tensor.round().to(dtype)


def part(tensors: Tensors, *names: str) -> Tensors:
    """Return the tensors whose names begin with one of these parts, e.g. ``body``."""
    return {name: tensor for name, tensor in tensors.items() if name.split(".")[0] in names}


def load(model: nn.Module, tensors: Tensors) -> None:
    """Copy tensors into a model by their names; what they do not mention stays as it is."""
    unexpected = model.load_state_dict(tensors, strict=False).unexpected_keys
    if unexpected:
        raise KeyError(f"the model has no tensor {unexpected[0]!r}")


def add(total: Tensors, tensors: Tensors, weight: float = 1.0) -> None:
    """Add tensors times a weight to a sum in double precision, in place."""
    for name, tensor in tensors.items():
        if name not in total:
            total[name] = torch.zeros(tensor.shape, dtype=torch.float64)
        # Whole numbers, such as the counters of batch norm, cannot be scaled as they are.
        total[name].add_(tensor if tensor.is_floating_point() else tensor.double(), alpha=weight)


def differences(tensors: Tensors, state: Tensors) -> Tensors:
    """Return how tensors differ from those of the state, without counters such as batch norm's."""
    return {
        name: tensor.double() - state.get(name, 0.0)
        for name, tensor in tensors.items()
        if tensor.is_floating_point()
    }


def from_differences(summed: Tensors, state: Tensors, clients: float) -> Tensors:
    """Return the sum over clients whose differences have this sum; counters stay as they are."""
    total = {name: tensor + clients * state.get(name, 0.0) for name, tensor in summed.items()}
    counters = {name: t for name, t in state.items() if not t.is_floating_point()}
    return total | {name: clients * tensor.double() for name, tensor in counters.items()}


def wrong_counts(counts: Tensor, weight: float) -> str | None:
    """Return why these cannot be class counts of as many samples as the weight says.

    They may be of fewer: a client keeps classes to itself of which it has few samples.
    """
    counts = counts.double()
    lowest, total = float(counts.min()), float(counts.sum())
    if lowest < 0:
        return f"its class counts range from {lowest:g}"
    if not bool((counts == counts.round()).all()):
        return "its class counts are not whole numbers"
    if total - weight > 1e-6 * weight:  # in single precision large counts are rounded
        return f"its class counts sum to {total:g}, and its weight is {weight:g}"
    return None
