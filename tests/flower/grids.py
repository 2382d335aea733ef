"""A federation in one process: messages go through Flower's own records, and nobody listens."""

from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

Tamper = Callable[[Message, Message], Message]


class FakeGrid(Grid):
    """Calls a ClientApp as soon as a message is pushed; the message is packed and unpacked.

    Parameters
    ----------
    app
        The ClientApp.
    nodes
        The node configurations by the number of the node.
    """

    def __init__(self, app: ClientApp, nodes: dict[int, dict[str, Any]]) -> None:
        self.app = app
        self.nodes = nodes
        self.contexts: dict[int, RecordDict] = {}  # what nodes keep in memory between messages
        self.silent: set[int] = set()
        self._held: list[tuple[int, str, Message]] = []
        self.tamper: dict[int, Tamper] = {}
        self.asked: list[tuple[int, str]] = []
        self.sent_up: list[Message] = []
        self._replies: dict[str, Message] = {}
        # The processes of Flower know which run they belong to; messages are stamped with it.
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            node = message.metadata.dst_node_id
            message_id = f"message-{len(self.asked)}"
            message.metadata.__dict__["_message_id"] = message_id
            self.asked.append((node, message.metadata.message_type))
            ids.append(message_id)
            if node in self.silent:
                self._held.append((node, message_id, message))
            else:
                self._replies[message_id] = self._reply(node, over_the_wire(message))
        return ids

    def wake(self, *nodes: int) -> None:
        """Let silent nodes answer what they have been asked, and from now on everything."""
        self.silent -= set(nodes)
        for node, message_id, message in [held for held in self._held if held[0] in nodes]:
            self._replies[message_id] = self._reply(node, over_the_wire(message))
        self._held = [held for held in self._held if held[0] not in nodes]

    def _reply(self, node: int, message: Message) -> Message:
        kept = self.contexts.setdefault(node, RecordDict())
        context = Context(1, node, self.nodes[node], kept, {})
        try:
            reply = self.app(message, context)
        except Exception as error:
            return Message(
                Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(error)), reply_to=message
            )
        if node in self.tamper:
            reply = self.tamper[node](message, reply)
        self.sent_up.append(reply)
        return over_the_wire(reply)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(i) for i in message_ids if i in self._replies]

    def send_and_receive(self, *args: Any, **kwargs: Any) -> Iterable[Message]:
        raise NotImplementedError


def over_the_wire(message: Message) -> Message:
    """Return the message as it arrives: all its content has been bytes in between."""
    from flwr.common.serde import message_from_proto, message_to_proto

    return message_from_proto(message_to_proto(message))
