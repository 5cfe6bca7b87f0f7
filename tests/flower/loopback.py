"""A Grid within the process: every message goes straight to a ClientApp, through Flower's own serialisation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

FIRST_NODE = 1_000_003  # ids of nodes have nothing to do with numbers of clients


def through_flower(message: Message) -> Message:
    """The message as it arrives: packed into objects and unpacked again, as Flower's nodes and server do."""
    contents = {number: each.deflate() for number, each in get_all_nested_objects(message).items()}
    arrived = inflate_object_from_contents(message.object_id, contents)
    assert isinstance(arrived, Message)
    arrived.metadata.__dict__["_message_id"] = message.metadata.message_id
    return arrived


class Loopback(Grid):
    """``nodes`` are node configurations; ``seen`` keeps all that crossed, with the reply to each message."""

    def __init__(self, app: ClientApp, nodes: list[dict[str, Any]]) -> None:
        self.app = app
        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1  # as in a process that Flower starts
        self.contexts = {
            FIRST_NODE + 17 * (len(nodes) - place): Context(
                run_id=1, node_id=FIRST_NODE + place, node_config=config, state=RecordDict(), run_config={}
            )
            for place, config in enumerate(nodes)
        }
        self.seen: list[tuple[Message, Message]] = []
        self.away: set[int] = set()  # nodes that are not there
        self.failing: Callable[[Message], str | None] = lambda message: None
        self.late: Callable[[Message], bool] = lambda message: False  # whose answer comes after nobody waits for it
        self.names: dict[int, str] = {}  # under which keys are registered
        self.held: dict[str, Message] = {}  # answers that are late
        self._answers: dict[str, Message] = {}

    def node(self, place: int) -> int:
        return list(self.contexts)[place]

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in self.contexts if node not in self.away]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        replies = [self._deliver(message) for message in messages]
        return [reply for reply in reversed(replies) if reply is not None]  # in no order to be relied on

    def _deliver(self, message: Message) -> Message | None:
        if message.metadata.dst_node_id in self.away:
            return None
        message.metadata.__dict__["_message_id"] = f"message {len(self.seen)}"
        context = self.contexts[message.metadata.dst_node_id]
        arrived = through_flower(message)
        reason = self.failing(arrived)
        try:
            reply = self.app(arrived, context) if reason is None else None
        except Exception as error:
            reply, reason = None, str(error)
        if reply is None:
            told = f"<class 'fedga.errors.FedGAError'>:<'{reason}'>"  # as Flower's nodes put it
            reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, told), reply_to=arrived)
        else:
            reply = through_flower(reply)
        self.seen.append((arrived, reply))
        if not self.late(arrived):
            return reply
        self.held[message.metadata.message_id] = reply
        return None

    def release(self) -> None:
        """Late answers arrive."""
        self._answers |= self.held
        self.held.clear()

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=node, name=self.names.get(node, "")) for node in self.get_node_ids()]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        numbers = []
        for message in messages:
            reply = self._deliver(message)
            numbers.append(message.metadata.message_id)
            if reply is not None:
                self._answers[message.metadata.message_id] = reply
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._answers.pop(number) for number in list(message_ids) if number in self._answers]
