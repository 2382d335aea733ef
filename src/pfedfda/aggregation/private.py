"""Differential privacy for each client: clipped contributions, and noise on their sum.

Two federations are neighbours if one has a client that the other lacks; how many clients there are
is no secret. A client's contribution is shortened to at most C, so that sums of neighbours differ
by at most C, and each number of the sum gets Gaussian noise of standard deviation σC. The σ is
found before the first round, such that all rounds together cost at most ε.
"""

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfedfda.aggregation.accountant import ACCOUNTANT, Rounds, noise_for, rounds_of, spent
from pfedfda.aggregation.base import Aggregation
from pfedfda.errors import InputError
from pfedfda.methods import Method, Tensors, Update
from pfedfda.methods.base import add
from pfedfda.runs.config import Config
from pfedfda.seeding import torch_generator

CLIP = 1.0
UNIT = "client"
Draw = Callable[[torch.Size], Tensor]


def clipped(method: Method, state: Tensors, update: Update, clip: float) -> Tensors:
    """Return a client's contribution, shortened to a length of at most `clip`.

    All of it is known to the client, so that a client can do this itself.

    Parameters
    ----------
    method
        The method, which says what a client contributes (`Method.private_contribution`).
    state
        The server's state before the round.
    update
        What the client has to send.
    clip
        The greatest length of all numbers together.
    """
    parts = method.private_contribution(state, update)
    length = math.sqrt(sum(float(tensor.square().sum()) for tensor in parts.values()))
    if not math.isfinite(length):  # whatever a user's method makes of an odd update
        return {name: torch.zeros_like(tensor) for name, tensor in parts.items()}
    factor = clip / length if length > clip else 1.0
    return {name: factor * tensor.double() for name, tensor in parts.items()}


def noise_like(tensors: Mapping[str, Tensor], deviation: float, draw: Draw) -> Tensors:
    """Return Gaussian noise of these names and shapes.

    A client that adds a share of the noise, one of k, draws it with the deviation / √k.
    """
    return {name: deviation * draw(tensors[name].shape) for name in sorted(tensors)}


def seeded_draw(*name: str | int) -> Draw:
    """Return a source of standard normal numbers that is fixed by a name."""
    generator = torch_generator(*name)
    return lambda shape: torch.randn(shape, generator=generator, dtype=torch.float64)


def secure_draw(shape: torch.Size) -> Tensor:
    """Return standard normal numbers from the operating system's secure generator."""
    from scipy.special import ndtri

    whole = np.frombuffer(os.urandom(8 * shape.numel()), dtype=np.uint64)
    uniform = ((whole >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return torch.from_numpy(ndtri(uniform)).reshape(shape)


@dataclass(frozen=True)
class Budget:
    """What a run promises, and the noise that keeps the promise.

    Parameters
    ----------
    epsilon, delta
        The most that all rounds may cost.
    clip
        The greatest length of a client's contribution.
    noise_multiplier
        The standard deviation of the noise, in clips.
    total_rounds
        The rounds of the run.
    participation
        The probability with which a client takes part in a round, as the accountant counts it.
    """

    epsilon: float
    delta: float
    clip: float
    noise_multiplier: float
    total_rounds: int
    participation: float

    def spent(self, rounds: int) -> float:
        """Return the ε that so many rounds have cost."""
        of_run = rounds_of(self.total_rounds, self.participation, rounds)
        return spent(self.noise_multiplier, of_run, self.delta)


class PrivateSum(Aggregation):
    """The sum of clipped contributions with Gaussian noise.

    Parameters
    ----------
    config
        The settings, with an ε.
    method
        The method, which must be content with a sum.
    """

    fills_empty_rounds = True

    def __init__(self, config: Config, method: Method) -> None:
        if not method.additive:
            raise InputError(
                f"{method.title} looks at single updates, and dp-epsilon adds noise to their sum: "
                f"choose a method for which 'pfedfda methods' says that only the sum is needed."
            )
        self.method = method
        self.settings = config.aggregation
        self.schedule = config.schedule
        self.layout: Tensors = {}
        self.budget: Budget | None = None

    @property
    def is_secret(self) -> bool:
        """Whether nobody can repeat the noise."""
        return self.settings.dp_randomness == "system"

    @property
    def clip(self) -> float:
        """The greatest length of a client's contribution."""
        return CLIP if self.settings.dp_clip is None else self.settings.dp_clip

    @property
    def counted_rate(self) -> float:
        """The probability with which a client takes part in a round, as the accountant counts it.

        Who takes part follows from the seed. Where the noise is a secret the seed is none, and
        taking part by chance hides nobody.
        """
        return 1.0 if self.is_secret else self.schedule.participation

    def prepare(self, clients: int, initial: Tensors, expected: Tensors | None) -> None:
        """Find the noise for all rounds."""
        if expected is None:
            raise InputError(
                f"dp-epsilon needs to know what {self.method.title} sends before the first round, "
                f"and its training on made-up samples failed."
            )
        zeros = {name: torch.zeros(t.shape, dtype=t.dtype) for name, t in expected.items()}
        self.layout = self.method.private_contribution(initial, Update(zeros, 1.0))
        settings, schedule = self.settings, self.schedule
        epsilon, delta = settings.dp_epsilon, settings.dp_delta
        assert epsilon is not None
        delta = min(1 / clients**1.1, 0.5) if delta is None else delta
        rate = self.counted_rate
        rounds = rounds_of(schedule.rounds, rate)
        self.clients = clients
        self.budget = Budget(
            epsilon,
            delta,
            self.clip,
            noise_for(epsilon, delta, rounds),
            schedule.rounds,
            rate,
        )

    def aggregate(
        self, method: Method, state: Tensors, updates: Iterable[Update], round_number: int
    ) -> Tensors:
        """Return the state from the noisy sum of clipped contributions."""
        assert self.budget is not None
        clip, noise = self.budget.clip, self.budget.noise_multiplier
        total = {name: torch.zeros(t.shape, dtype=torch.float64) for name, t in self.layout.items()}
        for update in updates:
            add(total, clipped(method, state, update, clip))
        seeded = seeded_draw("privacy", self.schedule.seed, round_number)
        draw = secure_draw if self.is_secret else seeded
        add(total, noise_like(total, noise * clip, draw))
        last = round_number == self.schedule.rounds
        expected = self.clients * (1.0 if last else self.schedule.participation)
        return method.finish(state, method.private_total(state, total, expected, noise * clip))

    def commitment(self) -> Mapping[str, Any]:
        """Return all that the promise depends on."""
        assert self.budget is not None
        return {**vars(self.budget), "clients": self.clients}

    def refuse_resume(self) -> None:
        """Refuse to draw other noise for a round whose result has been seen."""
        if self.is_secret:
            raise InputError(
                "A private run with secret noise cannot be resumed: a round that is repeated with "
                "other noise costs twice. Start a new run, with a budget of its own."
            )

    def summary(self, rounds: int) -> Mapping[str, Any]:
        """Return what was promised and spent."""
        assert self.budget is not None
        budget = self.budget
        return {
            "privacy": {
                "unit": UNIT,
                "epsilon": budget.spent(rounds),
                "epsilon_budget": budget.epsilon,
                "delta": budget.delta,
                "clip": budget.clip,
                "noise_multiplier": budget.noise_multiplier,
                "clients": self.clients,
                "participation": budget.participation,
                "randomness": self.settings.dp_randomness,
                "accountant": ACCOUNTANT,
            }
        }

    def closing_words(self, rounds: int) -> str:
        """Return the promise as a sentence."""
        assert self.budget is not None
        budget = self.budget
        return (
            f"differential privacy for each client: ε = {budget.spent(rounds):.3g} of "
            f"{budget.epsilon:g} spent at δ = {budget.delta:.2g}, with clip {budget.clip:g} and "
            f"noise multiplier {budget.noise_multiplier:g}."
        )


__all__ = ["Budget", "PrivateSum", "Rounds", "clipped", "noise_like", "secure_draw", "seeded_draw"]
