"""The training loop: every method trains with this one."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pfedfda.errors import DivergedRunError
from pfedfda.methods.base import Client


class Batch(NamedTuple):
    """What a loss is computed from."""

    inputs: Tensor
    """What the network takes: float (n, channels, height, width) in [-1, 1] for images."""
    labels: Tensor
    rows: Tensor
    """Which of the client's training samples these are, on the CPU."""


FEATURE_BATCH = 500
Loss = Callable[[Batch], Tensor]


def sgd(
    client: Client,
    parameters: Iterable[nn.Parameter],
    loss: Loss,
    *,
    epochs: int | None = None,
    lr: float | None = None,
    momentum: float | None = None,
    weight_decay: float | None = None,
    drop_last: bool = False,
    max_norm: float = 0.0,
    anchor: list[Tensor] | None = None,
    pull: float = 0.0,
    steps: int = 1,
    after_batch: Callable[[], None] | None = None,
) -> float:
    """Train the given parameters, and nothing else, on the client's samples.

    Parameters
    ----------
    client
        Gives samples, settings and randomness.
    parameters
        What moves, but for those that the model's own program has frozen. All other parameters of
        ``client.model`` are frozen: they get no gradient and no weight decay.
    loss
        The mean loss of a batch.
    epochs, lr, momentum, weight_decay
        In place of those of the task.
    drop_last
        Leave out the last batch of an epoch if it is incomplete and not the only one.
    max_norm
        Shorten the gradient of a step to this norm if it is longer; 0 leaves it as it is.
    anchor, pull
        Hold the parameters near these tensors: with pull μ and anchor w every step descends the
        loss plus μ/2 · ‖v - w‖². The penalty is not part of the mean loss.
    steps
        Gradient steps on each batch.
    after_batch
        Called when the steps on a batch are done.

    Returns
    -------
    float
        The mean loss over all steps.

    Raises
    ------
    DivergedRunError
        If the loss becomes infinite or undefined.
    """
    settings = client.task.training
    movable = list(parameters)
    trained = [p for p in movable if not getattr(p, "frozen", False)]
    if anchor is not None:
        anchor = [a for a, p in zip(anchor, movable, strict=True) if not getattr(p, "frozen", 0)]
    client.model.requires_grad_(False)
    for parameter in trained:
        parameter.requires_grad_(True)
    optimizer = MomentumSGD(
        trained,
        lr=settings.lr if lr is None else lr,
        momentum=settings.momentum if momentum is None else momentum,
        weight_decay=settings.weight_decay if weight_decay is None else weight_decay,
        anchor=anchor,
        pull=pull,
        max_norm=max_norm,
    )
    total = torch.zeros((), device=client.device)
    count = 0
    epochs = settings.epochs if epochs is None else epochs
    with client.timer("network"):
        for _ in range(epochs):
            for batch in batches(client, drop_last):
                for _ in range(steps):
                    value = loss(batch)
                    if trained:
                        value.backward()  # type: ignore[no-untyped-call]
                        optimizer.step()
                    total += value.detach() * len(batch.labels)
                    count += len(batch.labels)
                if after_batch is not None:
                    after_batch()
        mean = total.item() / max(count, 1)
    client.model.requires_grad_(True)
    if not math.isfinite(mean):
        raise DivergedRunError(
            f"Training diverged: the loss of client {client.client_id} is not finite in round "
            f"{client.round}; a smaller --lr usually helps."
        )
    return mean


class MomentumSGD:
    """SGD with momentum and weight decay, equal to ``torch.optim.SGD`` to the bit.

    A client makes one in every round, and takes few steps with it. The first use of torch's own
    optimisers loads its compiler, which costs more than a second in each process.

    Parameters
    ----------
    parameters
        What to move.
    lr, momentum, weight_decay
        The usual ones.
    anchor, pull
        Add the gradient of pull/2 times the squared distance to these tensors.
    max_norm
        Shorten the gradient of the loss to this norm if it is longer; 0 leaves it as it is.
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        lr: float,
        momentum: float,
        weight_decay: float,
        anchor: list[Tensor] | None = None,
        pull: float = 0.0,
        max_norm: float = 0.0,
    ) -> None:
        self.parameters: list[Tensor] = list(parameters)
        self.lr = lr
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.anchor = anchor
        self.pull = pull
        self.max_norm = max_norm
        self.velocity: list[Tensor] = []

    @torch.no_grad()
    def step(self) -> None:
        """Move the parameters along their gradients, and take the gradients away."""
        gradients = []
        for parameter in self.parameters:
            assert parameter.grad is not None, "the loss does not depend on a trained parameter"
            gradients.append(parameter.grad)
            parameter.grad = None
        if self.max_norm:
            # Without asking whether it is longer: an accelerator would have to stop for the answer.
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
            torch._foreach_mul_(gradients, (self.max_norm / (norm + 1e-6)).clamp_(max=1.0))
        torch._foreach_add_(gradients, self.parameters, alpha=self.weight_decay)
        if self.anchor is not None and self.pull:
            torch._foreach_add_(gradients, self.parameters, alpha=self.pull)
            torch._foreach_add_(gradients, self.anchor, alpha=-self.pull)
        if self.velocity:
            torch._foreach_mul_(self.velocity, self.momentum)
            torch._foreach_add_(self.velocity, gradients)
        else:
            self.velocity = gradients
        torch._foreach_add_(self.parameters, self.velocity, alpha=-self.lr)


def batches(client: Client, drop_last: bool = False) -> Iterator[Batch]:
    """Yield the client's training samples once, in a fresh random order."""
    size = client.task.batch_size
    order = torch.randperm(client.num_samples, generator=client.generator)
    on_device = order.to(client.device)  # one copy an epoch
    for rows, there in zip(torch.split(order, size), torch.split(on_device, size), strict=True):
        if drop_last and len(rows) < size < client.num_samples:
            return
        if len(rows) == 1 and size < client.num_samples and has_batch_norm(client.model):
            return  # there is no variance in a batch of one
        # For bytes, index_select copies whole images; plain indexing copies pixel by pixel.
        inputs, labels = (torch.index_select(t, 0, there) for t in client.samples)
        yield Batch(to_input(inputs), labels, rows)


def has_batch_norm(model: nn.Module) -> bool:
    """Tell whether a model normalises over batches."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def to_input(inputs: Tensor) -> Tensor:
    """Turn uint8 images (n, h, w, c) into the network's input in [-1, 1]; leave others as they are.

    Moving the last axis to the second place without copying is exactly the channels-last layout.
    """
    if inputs.dtype != torch.uint8:
        return inputs
    return inputs.permute(0, 3, 1, 2).float().mul_(2 / 255).sub_(1)


def extract_features(client: Client, samples: int | None = None) -> Tensor:
    """Return what the body of the scratch model makes of the client's first training samples."""
    client.model.eval()
    with torch.no_grad():
        parts = torch.split(client.samples.inputs[:samples], FEATURE_BATCH)
        features = torch.cat([client.model.body(to_input(inputs)) for inputs in parts])
    client.model.train()
    return features


def cross_entropy(model: nn.Module) -> Loss:
    """Return the ordinary classification loss of a model."""
    return lambda batch: F.cross_entropy(model(batch.inputs), batch.labels)
