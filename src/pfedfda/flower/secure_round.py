"""The server's part in secure aggregation: four stages, in each of which sites may drop out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from flwr.app import Message, MessageType, RecordDict

from pfedfda.aggregation import Summation
from pfedfda.aggregation.secure import too_few
from pfedfda.engine import Step
from pfedfda.engine.base import num_bytes
from pfedfda.errors import PfedfdaError
from pfedfda.flower.exchange import GRACE, Exchange, Sites, clean, content_of
from pfedfda.flower.masking import ProtocolError, PublicKeys, refuse_odd_shares, unmask
from pfedfda.flower.messages import site_step_settings
from pfedfda.flower.secure_messages import (
    KEYS,
    MASKED,
    SHARES,
    STATE,
    UNMASK,
    Place,
    by_client,
    keys_settings,
    read_by_client,
    read_keys,
    summation_settings,
    with_state,
)
from pfedfda.flower.site import SiteStep
from pfedfda.flower.wire import MalformedError, Setting, pack, settings_of, tensors_of
from pfedfda.methods import Tensors
from pfedfda.runs import Outcome

Read = Callable[[int, RecordDict], None]


class SecureRound:
    """A training step of which the server learns the sum and nothing else.

    Parameters
    ----------
    sites
        The connected sites.
    nodes
        The nodes of the sites that are asked, by number.
    site_step
        What all of them are asked to do.
    timeout
        Seconds that a site has in each stage.
    window
        How many messages with the state may be under way at a time.
    """

    def __init__(
        self,
        sites: Sites,
        nodes: Mapping[int, int],
        site_step: SiteStep,
        timeout: float,
        window: int,
    ) -> None:
        self.sites = sites
        self.nodes = nodes
        self.site_step = site_step
        self.timeout = timeout
        self.window = window
        self.failures: dict[int, str] = {}
        self.bytes_down: dict[int, int] = {}
        self.keys: dict[int, PublicKeys] = {}
        self.boxes: dict[int, dict[int, bytes]] = {}
        self.survivors: list[int] = []
        self.revealed: list[dict[int, bytes]] = []

    def run(self, step: Step, state: Tensors, order: Sequence[int]) -> Iterator[Outcome]:
        """Fill the step's sum, and yield what became of every site.

        Parameters
        ----------
        step
            What to do.
        state
            The server's state.
        order
            The sites, in the order of their outcomes.
        """
        summation = step.summation
        assert summation is not None
        try:
            self._gather(step, state, [client for client in order if client in self.nodes])
            total = summation.total
            assert total is not None
            members = {client: self.keys[client] for client in self.boxes}
            summation.total = unmask(
                total, members, self.survivors, self.revealed, summation.needed
            )
        except ProtocolError as error:
            summation.failure = str(error)
        for client in order:
            size = self.bytes_down.get(client, 0)
            failure = self.failures.get(client)
            yield Outcome(client, masked=failure is None, failure=failure, bytes_down=size)

    def _gather(self, step: Step, state: Tensors, clients: Sequence[int]) -> None:
        """Go through the stages; raise ProtocolError as soon as too few are left."""
        summation = step.summation
        assert summation is not None
        needed = summation.needed

        self._ask(clients, MessageType.QUERY + "." + KEYS, lambda _: {}, self._read_keys)
        self._refuse_few(summation, len(self.keys), "sent keys")

        everyone = {**keys_settings(self.keys), "threshold": needed}
        kind = MessageType.QUERY + "." + SHARES
        self._ask(list(self.keys), kind, lambda _: everyone, self._read_shares)
        self._refuse_few(summation, len(self.boxes), "shared their secrets")

        ranges, is_private = summation_settings(summation), summation.noise_multiplier is not None
        if is_private:
            ranges[STATE] = list(state)

        def training(client: int) -> dict[str, Setting]:
            box = {sender: shares[client] for sender, shares in self.boxes.items()}
            own = replace(self.site_step, client_id=client)
            return {**site_step_settings(own), **ranges, **by_client("secrets", box)}

        def message(client: int) -> Tensors:
            tensors = step.method.message(state, client)
            self.bytes_down[client] = num_bytes(tensors)
            return with_state(tensors, state) if is_private else tensors

        def read_masked(client: int, content: RecordDict) -> None:
            masked = tensors_of(content).get(MASKED)
            if masked is None or str(masked.dtype) != "torch.int64":
                raise MalformedError("its masked contribution is missing")
            if tuple(masked.shape) != (summation.fixed.size,):
                raise MalformedError(
                    f"its masked contribution has shape {tuple(masked.shape)} instead of "
                    f"{(summation.fixed.size,)}"
                )
            summation.add(masked)
            self.survivors.append(client)

        self._ask(list(self.boxes), MessageType.TRAIN, training, read_masked, message)
        self._refuse_few(summation, len(self.survivors), "contributed")

        self.survivors.sort()
        last: dict[str, Setting] = {"survivors": list(self.survivors)}
        kind = MessageType.QUERY + "." + UNMASK
        failures = dict(self.failures)
        self._ask(
            self.survivors,
            kind,
            lambda _: last,
            self._read_revealed,
            enough=lambda: len(self.revealed) >= needed,
        )
        self._refuse_few(summation, len(self.revealed), "helped to unmask the sum")
        # Who gave its part of the sum has done its duty, whether or not it helped to unmask it.
        self.failures = failures

    def _read_keys(self, client: int, content: RecordDict) -> None:
        found = read_keys(settings_of(content))
        if list(found) != [client]:
            raise MalformedError("its keys cannot be read")
        found[client].refuse_unusable()
        known = {key for public in self.keys.values() for key in (public.masks, public.shares)}
        if known & {found[client].masks, found[client].shares}:
            raise MalformedError("its keys are those of another site")
        self.keys[client] = found[client]

    def _read_shares(self, client: int, content: RecordDict) -> None:
        box = read_by_client("secrets", settings_of(content))
        if box.keys() != self.keys.keys():
            raise MalformedError("it did not share its secrets with everybody")
        self.boxes[client] = box

    def _read_revealed(self, client: int, content: RecordDict) -> None:
        shares = read_by_client("shares", settings_of(content))
        if shares.keys() != self.boxes.keys():
            raise MalformedError("its shares cannot be read")
        refuse_odd_shares(shares, sorted(self.keys).index(client), self.survivors)
        self.revealed.append(shares)

    def _refuse_few(self, summation: Summation, found: int, did: str) -> None:
        if found < summation.needed:
            last = list(self.failures.values())[-1:]
            why = f" ({last[0].rstrip('.')})" if last else ""
            raise ProtocolError(too_few(found, summation.asked, summation.needed, did) + why)

    def _ask(
        self,
        clients: Sequence[int],
        kind: str,
        settings: Callable[[int], dict[str, Setting]],
        read: Read,
        tensors: Callable[[int], Tensors] | None = None,
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        """Ask sites, read the answers as they come, and remember who gave none."""
        replies = Exchange(self.sites.grid, self.timeout, self.sites.poll)
        pending, waiting = list(reversed(clients)), 0
        while (pending or waiting) and not enough():
            while pending and waiting < self.window:
                client, waiting = pending.pop(), waiting + 1
                place = Place(self.site_step.run, self.site_step.round, client).settings()
                content = pack(
                    None if tensors is None else tensors(client),
                    settings={**settings(client), **place},
                )
                replies.ask(
                    client,
                    Message(
                        content,
                        self.nodes[client],
                        kind,
                        ttl=self.timeout + GRACE,
                        group_id=str(self.site_step.round),
                    ),
                )
            for client, reply in replies.collect(wait=True):
                waiting -= 1
                self.sites.note(self.nodes[client], reply)
                try:
                    read(client, content_of(reply))
                except PfedfdaError as error:
                    self.failures[client] = clean(str(error))
