"""The engine of a real federation: every client is a site that answers messages."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from flwr.app import Message, MessageType
from numpy.typing import NDArray

from pfedfda.data.shift import Shift
from pfedfda.engine import ClientStates, Outcome
from pfedfda.engine.runner import JobKind, num_bytes
from pfedfda.errors import PfedfdaError
from pfedfda.experiment.checks import PLAIN
from pfedfda.experiment.config import Config
from pfedfda.flower.exchange import GRACE, Exchange, Sites, clean, content_of
from pfedfda.flower.jobs import job_settings
from pfedfda.flower.records import MalformedError, metrics_of, pack, tensors_of
from pfedfda.flower.roster import Roster
from pfedfda.flower.site import Job
from pfedfda.methods import Method, Task, Tensors, Update

MAX_WAITING_BYTES = 2**30


class FlowerEngine:
    """Runs clients at the sites of a federation.

    Parameters
    ----------
    sites
        The connected sites.
    roster
        The sites of this run.
    task
        What everybody knows.
    config
        The settings of the run.
    timeout
        Seconds that a site has for its part in a round.
    """

    def __init__(
        self, sites: Sites, roster: Roster, task: Task, config: Config, timeout: float
    ) -> None:
        self.sites = sites
        self.federation = roster
        self.task = task
        self.config = config
        self.timeout = timeout

    def train(
        self,
        method: Method,
        state: Tensors,
        client_ids: Sequence[int],
        round_number: int,
        states: ClientStates,
    ) -> Iterator[Outcome]:
        """Train these clients; yield their outcomes in the order in which a local engine does.

        Parameters
        ----------
        method, state, client_ids, round_number
            What to do, from which state, with whom and when.
        states
            Tells the round of the last checkpoint; the clients' tensors stay with them.
        """
        return self._run("train", method, state, client_ids, round_number, states, None)

    def evaluate(
        self,
        method: Method,
        state: Tensors,
        client_ids: Sequence[int],
        round_number: int,
        states: ClientStates,
        shift: Shift | None = None,
        frost: list[NDArray[np.uint8]] | None = None,
    ) -> Iterator[Outcome]:
        """Personalise and test these clients; in the last round they keep their models.

        Parameters
        ----------
        method, state, client_ids, round_number, states
            As for `train`.
        shift
            Corrupt all images of these clients.
        frost
            Not used: a site takes its own photographs of frost.
        """
        return self._run("evaluate", method, state, client_ids, round_number, states, shift)

    def close(self) -> None:
        """Nothing is held that Flower does not close itself."""

    def _run(
        self,
        kind: JobKind,
        method: Method,
        state: Tensors,
        client_ids: Sequence[int],
        round_number: int,
        states: ClientStates,
        shift: Shift | None,
    ) -> Iterator[Outcome]:
        sizes = self.federation.train_sizes
        order = sorted(client_ids, key=lambda client_id: (-int(sizes[client_id]), client_id))
        last = round_number == self.config.schedule.rounds
        job = Job(
            kind=kind,
            config=replace(self.config, methods={method.name: method}),
            client_id=-1,
            num_clients=len(self.federation),
            class_names=self.federation.class_names,
            image_shape=self.federation.image_shape,
            round=round_number,
            checkpoint=states.checkpoint,
            run=self.federation.run,
            keep_model=kind == "evaluate" and last and shift is None,
            shift=shift,
        )
        self.sites.refresh(self.federation.client_names)
        bytes_down: dict[int, int] = {}

        def question(client_id: int) -> Message | None:
            node = self.sites.node_of(self.federation.client_names[client_id])
            if node is None:
                return None
            message = method.message(state, client_id)
            bytes_down[client_id] = num_bytes(message)
            return Message(
                pack(message, settings=job_settings(replace(job, client_id=client_id))),
                node,
                MessageType.TRAIN if kind == "train" else MessageType.EVALUATE,
                ttl=self.timeout + GRACE,
                group_id=str(round_number),
            )

        window = max(2, min(256, MAX_WAITING_BYTES // max(num_bytes(state), 1)))
        pending = deque(order)
        arrived: dict[int, Outcome] = {}
        replies = Exchange(self.sites.grid, self.timeout, self.sites.poll)
        for position, client_id in enumerate(order):
            while client_id not in arrived:
                while pending and len(order) - len(pending) < position + window:
                    asked = pending.popleft()
                    message = question(asked)
                    if message is None:
                        arrived[asked] = Outcome(asked, failure="it is not connected")
                    else:
                        replies.ask(asked, message)
                for who, reply in replies.collect(wait=client_id not in arrived):
                    arrived[who] = self._outcome(kind, who, reply, bytes_down[who])
            yield arrived.pop(client_id)

    def _outcome(
        self, kind: JobKind, client_id: int, reply: Message | str, bytes_down: int
    ) -> Outcome:
        """Read an answer; nothing in it is trusted."""
        try:
            content = content_of(reply)
            numbers = metrics_of(content)
            outcome = Outcome(
                client_id,
                metrics=_named(numbers, "metric"),
                seconds=self._seconds(numbers),
                bytes_down=bytes_down,
            )
            if kind == "train":
                tensors = tensors_of(content)
                if "weight" not in numbers:
                    raise MalformedError("its weight is missing")
                update = Update(tensors, numbers["weight"], outcome.metrics, client_id)
                return replace(outcome, update=update, bytes_up=num_bytes(tensors))
            correct, tested = (numbers.get(name, 0.5) for name in ("correct", "tested"))
            if not (correct.is_integer() and tested.is_integer()):
                raise MalformedError("its test result cannot be read")
            if "loss" not in numbers:
                raise MalformedError("its test loss is missing")
            return replace(outcome, correct=int(correct), tested=int(tested), loss=numbers["loss"])
        except PfedfdaError as error:
            return Outcome(client_id, failure=clean(str(error)), bytes_down=bytes_down)

    def _seconds(self, numbers: dict[str, float]) -> dict[str, float]:
        """Return where a site's time went; it cannot have taken longer than we waited."""
        found = _named(numbers, "seconds")
        for name, seconds in found.items():
            if not PLAIN.fullmatch(name):
                raise MalformedError(f"it timed {name[:80]!r}, which is not a plain name")
            if not 0 <= seconds <= self.timeout + GRACE:
                raise MalformedError(f"its seconds for {name!r} are {seconds:.3g}")
        return found


def _named(numbers: dict[str, float], prefix: str) -> dict[str, float]:
    """Return the numbers with this prefix."""
    return {
        name.removeprefix(f"{prefix}."): value
        for name, value in numbers.items()
        if name.startswith(f"{prefix}.")
    }
