"""Asking sites and taking their answers, which may be wrong, late or never come."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from pfedfda.errors import PfedfdaError, RunStoppedError
from pfedfda.flower.app_settings import is_plain, to_settings
from pfedfda.flower.messages import read_description
from pfedfda.flower.site import Description
from pfedfda.flower.wire import FAILURE, NAME, SETTINGS, MalformedError, pack, settings_of
from pfedfda.runs.config import Config

MAX_FAILURE = 300
DESCRIBE_TIMEOUT = 300.0
GRACE = 60.0  # how much longer Flower keeps a message than we wait for its answer
MOST_MISSED = 2  # questions in a row; whoever has let so many pass is not waited for any more


class NoAnswer(str):
    """Why there is no answer to a question."""

    __slots__ = ()


@dataclass
class Sites:
    """The sites that are connected now, by name.

    A node of Flower may have another number when it comes back; its site keeps its name. A node
    that has let two questions in a row pass is silent: it gets no work. It is asked to describe
    itself again and again, nobody waits for that, and when it answers it is as before.

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
    described, last
        What the connected nodes told, and the last node of every name.
    refused
        When and why nodes were refused.
    missed
        How many questions in a row the nodes have let pass.
    """

    grid: Grid
    config: Config
    timeout: float = DESCRIBE_TIMEOUT
    poll: float = 0.5
    say: Callable[[str], None] = lambda text: None
    described: dict[int, Description] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    refused: dict[int, tuple[float, str]] = field(default_factory=dict)
    missed: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._calls = Exchange(self.grid, self.timeout, self.poll)  # to the silent nodes

    @property
    def answering(self) -> list[str]:
        """The names of the connected sites that are not silent."""
        return [site.name for node, site in self.described.items() if not self.is_silent(node)]

    def is_silent(self, node: int) -> bool:
        """Tell whether a node is not worth waiting for."""
        return self.missed.get(node, 0) >= MOST_MISSED

    def note(self, node: int, reply: Message | str) -> None:
        """Remember whether a node has answered; Flower's own errors say nothing about it."""
        if isinstance(reply, NoAnswer):
            self.missed[node] = self.missed.get(node, 0) + 1
        elif isinstance(reply, Message) and reply.has_content():
            self.missed.pop(node, None)

    def node_of(self, name: str) -> int | None:
        """Return the node of a site, None if it is not connected."""
        nodes = [node for node, site in self.described.items() if site.name == name]
        return nodes[0] if nodes else None

    def refresh(self, wanted: Sequence[str] | None = None, patience: float = 300.0) -> None:
        """Forget nodes that have gone, and ask those that are new to describe themselves.

        Nobody is waited for twice: who did not describe itself in time is silent.

        Parameters
        ----------
        wanted
            The sites that matter; if all of them are connected, no new node is asked.
        patience
            A node whose answer was of no use is asked again after so many seconds: its
            configuration may have been mended.
        """
        with reaching():
            online = set(self.grid.get_node_ids())
        self.described = {n: site for n, site in self.described.items() if n in online}
        self.refused = {n: why for n, why in self.refused.items() if n in online}
        self.missed = {n: times for n, times in self.missed.items() if n in online}
        answers: list[tuple[int, Message | str]] = []
        for node, reply in self._calls.collect(wait=False):
            self.note(node, reply)
            if node in online - set(self.described) and not self.is_silent(node):
                answers.append((node, reply))
        asked = {node for node, _ in answers}
        new: set[int] = set()
        if wanted is None or any(self.node_of(name) is None for name in wanted):
            tired = time.monotonic() - patience
            recent = {node for node, (when, _) in self.refused.items() if when > tired}
            new = online - set(self.described) - recent - asked
        for node in sorted(new | set(self.described)):
            if self.is_silent(node) and not self._calls.is_open(node):
                self._calls.ask(node, self._question(node))
        questions = {node: self._question(node) for node in sorted(new) if not self.is_silent(node)}
        answers += exchange(self.grid, questions, self.timeout, self.poll)
        claims: dict[str, dict[int, Description]] = {}
        for node, reply in answers:
            if isinstance(reply, NoAnswer):
                self.missed[node] = MOST_MISSED
            try:
                site = read_description(settings_of(content_of(reply)))
                claims.setdefault(site.name, {})[node] = site
            except PfedfdaError as error:
                self._refuse(node, str(error), _name_in(reply))
        for name, nodes in claims.items():
            self._settle(name, nodes)

    def _question(self, node: int) -> Message:
        """Return the question who a node is."""
        content = pack(settings=to_settings(self.config))
        return Message(
            content, node, MessageType.QUERY, ttl=self.timeout + GRACE, group_id="describe"
        )

    def _settle(self, name: str, claims: dict[int, Description]) -> None:
        """Give a name to the one node that claims it, or to the one that had it before."""
        node = self.last.get(name, -1) if len(claims) > 1 else next(iter(claims))
        why = "a site of this name is connected already"
        if self.node_of(name) is None:
            if node in claims:
                self.described[node] = claims.pop(node)
                self.last[name] = node
            else:  # which of them is the site, their numbers do not tell
                why = f"{len(claims)} nodes have this name"
        for other in claims:
            self._refuse(other, why, name)

    def _refuse(self, node: int, why: str, name: str | None = None) -> None:
        if self.refused.get(node, (0.0, ""))[1] != why:
            known = name or next((n for n, last in self.last.items() if last == node), None)
            who = f"Site {known} (node {node})" if known else f"Node {node}"
            self.say(f"{who} cannot take part: {why}")
        self.refused[node] = (time.monotonic(), why)

    def gather(self, enough: Callable[[Sequence[str]], bool], seconds: float) -> bool:
        """Wait until enough sites are there; tell whether they are.

        Parameters
        ----------
        enough
            Judges the names of the sites that answer.
        seconds
            How long to wait.
        """
        deadline = time.monotonic() + seconds
        while True:
            self.refresh(patience=30.0)
            if enough(self.answering):
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(self.poll)


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


def _name_in(reply: Message | str) -> str | None:
    """Return the name that a site gave with its failure, if it is a plain one."""
    if isinstance(reply, str) or reply.has_error() or not reply.has_content():
        return None
    settings = reply.content.config_records.get(SETTINGS)
    name = settings.get(NAME) if settings is not None else None
    return name if isinstance(name, str) and is_plain(name) else None


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
        self._failed: list[tuple[int, NoAnswer]] = []

    def ask(self, who: int, message: Message) -> None:
        """Send a question."""
        with reaching():
            ids = list(self.grid.push_messages([message]))
        if ids and ids[0]:
            self._open[ids[0]] = (who, time.monotonic() + self.timeout)
        else:
            self._failed.append((who, NoAnswer("the message could not be sent")))

    def is_open(self, who: int) -> bool:
        """Tell whether somebody has a question to answer."""
        return any(asked == who for asked, _ in self._open.values())

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
                    reply = NoAnswer(f"it did not answer within {self.timeout:g} s")
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
