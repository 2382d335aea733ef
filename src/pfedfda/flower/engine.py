"""The engine of a real federation: every client is a site that answers messages."""

import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from pfedfda.data.shift import Shift
from pfedfda.engine import ClientStates, Outcome
from pfedfda.engine.runner import JobKind, num_bytes
from pfedfda.errors import PfedfdaError, RunStoppedError
from pfedfda.experiment.config import Config
from pfedfda.flower.jobs import job_settings, read_description
from pfedfda.flower.records import (
    FAILURE,
    SETTINGS,
    MalformedError,
    metrics_of,
    pack,
    settings_of,
    tensors_of,
)
from pfedfda.flower.roster import Roster
from pfedfda.flower.settings import to_settings
from pfedfda.flower.site import Description, Job
from pfedfda.methods import Method, Task, Tensors, Update

MAX_FAILURE = 300
MAX_METRICS = 100
MAX_WAITING_BYTES = 2**30
DESCRIBE_TIMEOUT = 300.0
GRACE = 60.0  # how much longer Flower keeps a message than we wait for its answer


@dataclass
class Sites:
    """The sites that are connected now, by name.

    A node of Flower may have another number when it comes back; its site keeps its name.

    Parameters
    ----------
    grid
        The connection to the nodes.
    config
        What a site must know to prepare its data.
    timeout
        Seconds that a site has to describe itself.
    poll
        Seconds between two looks for answers.
    say
        Is told about sites that cannot take part.
    """

    grid: Grid
    config: Config
    timeout: float = DESCRIBE_TIMEOUT
    poll: float = 0.5
    say: Callable[[str], None] = lambda text: None
    described: dict[int, Description] = field(default_factory=dict)
    told: set[tuple[int, str]] = field(default_factory=set)

    def node_of(self, name: str) -> int | None:
        """Return the node of a site, None if it is not connected."""
        nodes = [node for node, site in self.described.items() if site.name == name]
        return nodes[0] if nodes else None

    def refresh(self, again: bool = False) -> None:
        """Forget nodes that have gone, and ask those that are new to describe themselves.

        Parameters
        ----------
        again
            Also ask those whose answer was of no use.
        """
        with reaching():
            online = set(self.grid.get_node_ids())
        self.described = {n: site for n, site in self.described.items() if n in online}
        known = set(self.described) | (set() if again else {node for node, _ in self.told})
        content = pack(settings=to_settings(self.config))
        questions = {
            node: Message(
                content, node, MessageType.QUERY, ttl=self.timeout + GRACE, group_id="describe"
            )
            for node in sorted(online - known)
        }
        for node, reply in exchange(self.grid, questions, self.timeout, self.poll):
            try:
                site = read_description(settings_of(content_of(reply)))
                if self.node_of(site.name) is not None:
                    raise MalformedError(f"the site {site.name} is connected already")
                self.described[node] = site
            except PfedfdaError as error:
                if (node, str(error)) not in self.told:
                    self.told.add((node, str(error)))
                    self.say(f"Node {node} cannot take part: {error}")

    def gather(self, enough: Callable[[Sequence[str]], bool], seconds: float) -> bool:
        """Wait until enough sites are there; tell whether they are.

        Parameters
        ----------
        enough
            Judges the names of the connected sites.
        seconds
            How long to wait.
        """
        deadline = time.monotonic() + seconds
        asked = time.monotonic()
        while True:
            # A node whose configuration was mended is asked again, though not all the time.
            again = time.monotonic() - asked > 30
            asked = time.monotonic() if again else asked
            self.refresh(again)
            if enough([site.name for site in self.described.values()]):
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(self.poll)


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
        self.sites.refresh()
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
                    arrived[who] = _outcome(kind, who, reply, bytes_down[who])
            yield arrived.pop(client_id)


def _outcome(kind: JobKind, client_id: int, reply: Message | str, bytes_down: int) -> Outcome:
    """Read an answer; nothing in it is trusted."""
    try:
        content = content_of(reply)
        numbers = metrics_of(content)
        outcome = Outcome(
            client_id,
            metrics=_named(numbers, "metric"),
            seconds=_named(numbers, "seconds"),
            bytes_down=bytes_down,
        )
        if kind == "train":
            tensors = tensors_of(content)
            if "weight" not in numbers:
                raise MalformedError("its weight is missing or not finite")
            update = Update(tensors, numbers["weight"], outcome.metrics, client_id)
            return replace(outcome, update=update, bytes_up=num_bytes(tensors))
        correct, tested = numbers.get("correct", -1), numbers.get("tested", 0)
        if not (0 <= correct <= tested <= 10**9 and tested >= 1):
            raise MalformedError("its test result cannot be read")
        if "loss" not in numbers:
            raise MalformedError("its test loss is not finite")
        return replace(outcome, correct=int(correct), tested=int(tested), loss=numbers["loss"])
    except PfedfdaError as error:
        return Outcome(client_id, failure=clean(str(error)), bytes_down=bytes_down)


def _named(numbers: dict[str, float], prefix: str) -> dict[str, float]:
    """Return the numbers with this prefix; names that no method of ours would use are left out."""
    found = {
        name.removeprefix(f"{prefix}."): value
        for name, value in numbers.items()
        if re.fullmatch(rf"{prefix}\.[\w-]{{1,60}}", name)
    }
    return found if len(found) <= MAX_METRICS else {}


def content_of(reply: Message | str) -> RecordDict:
    """Return the content of an answer, or raise what was the matter with it."""
    if isinstance(reply, str):
        raise MalformedError(reply)
    if reply.has_error():
        raise MalformedError(clean(reply.error.reason or f"error {reply.error.code}"))
    if not reply.has_content():
        raise MalformedError("its answer is empty")
    settings = reply.content.config_records.get(SETTINGS)
    if settings is not None and FAILURE in settings:
        raise MalformedError(clean(str(settings[FAILURE])))
    return reply.content


def clean(text: str) -> str:
    """Return foreign text as one line of printable characters, not too long."""
    line = "".join(c if c.isprintable() else " " for c in " ".join(text.split()))
    return line if len(line) <= MAX_FAILURE else line[:MAX_FAILURE] + "…"


class Exchange:
    """Questions that have been sent and not been answered.

    Parameters
    ----------
    grid
        The connection to the nodes.
    timeout
        Seconds to wait for each answer.
    poll
        Seconds between two looks for answers.
    """

    def __init__(self, grid: Grid, timeout: float, poll: float) -> None:
        self.grid = grid
        self.timeout = timeout
        self.poll = poll
        self._open: dict[str, tuple[int, float]] = {}
        self._failed: list[tuple[int, str]] = []

    def ask(self, who: int, message: Message) -> None:
        """Send a question."""
        with reaching():
            ids = list(self.grid.push_messages([message]))
        if ids and ids[0]:
            self._open[ids[0]] = (who, time.monotonic() + self.timeout)
        else:
            self._failed.append((who, "the message could not be sent"))

    def collect(self, wait: bool) -> list[tuple[int, Message | str]]:
        """Return the answers that are there, or why there will be none.

        Parameters
        ----------
        wait
            Wait until there is at least one.
        """
        while True:
            answers: list[tuple[int, Message | str]] = list(self._failed)
            self._failed.clear()
            for message_id, (who, deadline) in list(self._open.items()):
                reply = self._pull(message_id)
                if reply is None and time.monotonic() > deadline:
                    reply = f"it did not answer within {self.timeout:.0f} s"
                if reply is not None:
                    del self._open[message_id]
                    answers.append((who, reply))
            if answers or not wait or not self._open:
                return answers
            time.sleep(self.poll)

    def _pull(self, message_id: str) -> Message | str | None:
        """Return one answer; each is taken alone, so that a broken one breaks no other."""
        with reaching():
            try:
                replies = list(self.grid.pull_messages([message_id]))
            except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
                return f"its answer cannot be read ({type(error).__name__})"
        return replies[0] if replies else None


def exchange(
    grid: Grid, questions: dict[int, Message], timeout: float, poll: float
) -> Iterator[tuple[int, Message | str]]:
    """Send questions and yield the answers, in the order of the questions' keys."""
    replies = Exchange(grid, timeout, poll)
    for who, message in questions.items():
        replies.ask(who, message)
    answers: dict[int, Message | str] = {}
    while len(answers) < len(questions):
        answers |= dict(replies.collect(wait=True))
    yield from sorted(answers.items())


@contextmanager
def reaching() -> Iterator[None]:
    """Turn the loss of the connection to the SuperLink into the end of the run."""
    import httpx

    try:
        yield
    except httpx.HTTPError as error:
        raise RunStoppedError(f"The SuperLink does not answer ({type(error).__name__}).") from error
