"""The engine of a real federation: every client is a site that answers messages."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

from flwr.app import Message, MessageType

from pfedfda.engine import Step
from pfedfda.engine.base import StepKind, largest_first, num_bytes
from pfedfda.errors import PfedfdaError, RunStoppedError
from pfedfda.experiment.checks import PLAIN
from pfedfda.flower.exchange import GRACE, Exchange, Sites, clean, content_of
from pfedfda.flower.messages import site_step_settings
from pfedfda.flower.predictions import read_predictions
from pfedfda.flower.roster import SiteRoster
from pfedfda.flower.site import SiteStep
from pfedfda.flower.wire import MalformedError, lists_of, metrics_of, pack, tensors_of
from pfedfda.methods import Task, Tensors, Update
from pfedfda.runs import Outcome
from pfedfda.runs.config import Config

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
        Settings shared by the server and all clients.
    config
        The settings of the run.
    timeout
        Seconds that a site has for its part in a round.
    """

    def __init__(
        self, sites: Sites, roster: SiteRoster, task: Task, config: Config, timeout: float
    ) -> None:
        self.sites = sites
        self.federation = roster
        self.task = task
        self.config = config
        self.timeout = timeout

    def close(self) -> None:
        """Nothing is held that Flower does not close itself."""

    def run(self, step: Step, state: Tensors, client_ids: Sequence[int]) -> Iterator[Outcome]:
        """Let sites do a step; yield their outcomes in the order in which a local engine does.

        The parameters are those of `pfedfda.engine.Engine.run`. The clients' own tensors stay with
        them, ``step.states`` only tells the round of the last checkpoint; sites have their own
        photographs for the corruption frost. After the last round they keep their models.
        """
        order = largest_first(client_ids, self.federation)
        last = step.round == self.config.schedule.rounds
        site_step = SiteStep(
            kind=step.kind,
            config=replace(self.config, methods={step.method.name: step.method}),
            client_id=-1,
            num_clients=len(self.federation),
            class_names=self.federation.class_names,
            input_shape=self.federation.input_shape,
            input_type=self.federation.input_type,
            round=step.round,
            checkpoint=step.states.checkpoint,
            run=self.federation.run,
            keep_model=step.kind == "evaluate" and last and step.view is None,
            shift=None if step.view is None else step.view.shift,
        )
        self._look_for_sites()
        window = max(2, min(256, MAX_WAITING_BYTES // max(num_bytes(state), 1)))
        if step.summation is not None:
            yield from self._run_securely(step, state, order, site_step, window)
            return
        bytes_down: dict[int, int] = {}
        nodes: dict[int, int] = {}

        def question(client_id: int) -> Message | str:
            node = self._node(client_id)
            if isinstance(node, str):
                return node
            nodes[client_id] = node
            message = step.method.message(state, client_id)
            bytes_down[client_id] = num_bytes(message)
            return Message(
                pack(message, settings=site_step_settings(replace(site_step, client_id=client_id))),
                node,
                MessageType.TRAIN if step.kind == "train" else MessageType.EVALUATE,
                ttl=self.timeout + GRACE,
                group_id=str(step.round),
            )

        pending = deque(order)
        arrived: dict[int, Outcome] = {}
        replies = Exchange(self.sites.grid, self.timeout, self.sites.poll)
        for position, client_id in enumerate(order):
            while client_id not in arrived:
                while pending and len(order) - len(pending) < position + window:
                    asked = pending.popleft()
                    message = question(asked)
                    if isinstance(message, str):
                        arrived[asked] = Outcome(asked, failure=message)
                    else:
                        replies.ask(asked, message)
                for who, reply in replies.collect(wait=client_id not in arrived):
                    self.sites.note(nodes[who], reply)
                    arrived[who] = self._outcome(step.kind, who, reply, bytes_down[who])
            yield arrived.pop(client_id)

    def _run_securely(
        self, step: Step, state: Tensors, order: Sequence[int], site_step: SiteStep, window: int
    ) -> Iterator[Outcome]:
        """Let sites train, and learn nothing but the sum of what they send."""
        from pfedfda.flower.secure_round import SecureRound  # only a run that asks for it needs it

        places = {client_id: self._node(client_id) for client_id in order}
        nodes = {client_id: node for client_id, node in places.items() if isinstance(node, int)}
        secure = SecureRound(self.sites, nodes, site_step, self.timeout, window)
        secure.failures |= {who: why for who, why in places.items() if isinstance(why, str)}
        yield from secure.run(step, state, order)

    def _node(self, client_id: int) -> int | str:
        """Return the node of a site, or why it is not asked."""
        node = self.sites.node_of(self.federation.client_names[client_id])
        if node is None:
            return "it is not connected"
        if self.sites.is_silent(node):
            return "it has let several questions pass, and takes part again when it answers"
        return node

    def _look_for_sites(self) -> None:
        """See who is there; if nobody is, wait, lest all rounds pass without anybody."""
        names = set(self.federation.client_names)
        self.sites.refresh(self.federation.client_names)
        if names.isdisjoint(self.sites.answering):
            self.sites.say(f"No site answers; waiting for one for up to {self.timeout:g} s.")
            if not self.sites.gather(lambda there: not names.isdisjoint(there), self.timeout):
                raise RunStoppedError(f"No site of the run has answered for {self.timeout:g} s.")

    def _outcome(
        self, kind: StepKind, client_id: int, reply: Message | str, bytes_down: int
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
            samples = int(self.federation.test_sizes[client_id])
            correct, tested = (numbers.get(name, 0.5) for name in ("correct", "tested"))
            if not (correct.is_integer() and tested.is_integer()):
                raise MalformedError("its test result cannot be read")
            if "loss" not in numbers:
                raise MalformedError("its test loss is missing")
            return replace(
                outcome,
                correct=int(correct),
                tested=int(tested),
                loss=numbers["loss"],
                predictions=read_predictions(lists_of(content), numbers, samples),
            )
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
