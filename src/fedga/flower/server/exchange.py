"""Flower's Grid, such that no reply of one node can spoil those of the others, and no silent node holds up all rounds.

Flower unpacks replies together, and takes the sender from within the reply. Here each is fetched alone and known by the
question that it answers, so that whatever is wrong with it is its sender's.
"""

import json
import math
import time
from collections.abc import Iterable
from operator import attrgetter
from typing import Any, ClassVar

import httpx
from flwr.app import Array, Error, Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_object_body, get_object_children_ids_from_object_content
from flwr.supercore.inflatable.inflatable_utils import inflatable_class_registry

from fedga.errors import FedGAError

FIRST_LOOK_AFTER_S = 0.05  # and later and later
LOOK_EVERY_S = 1.0
MOST_BYTES = 64_000_000  # of the arrays in a reply, until somebody knows the model
LEAST_GRACE_S = 10.0  # for a node that was silent, once the others have answered

OF_THE_APP = (ErrorCode.CLIENT_APP_RAISED_EXCEPTION, ErrorCode.LOAD_CLIENT_APP_EXCEPTION)
SERVER_FAILS = 500  # and above, by the numbers of HTTP
UNREADABLE = ErrorCode.UNKNOWN  # how a reply is marked that cannot be unpacked

now, sleep = time.monotonic, time.sleep  # by these names, so that tests need not wait


class _CountedArray(Array):
    """Counts what it is to unpack: an array names its pieces, and may name the same piece a million times."""

    left: ClassVar[float] = math.inf  # bytes

    @classmethod
    def inflate(cls, object_content: bytes, children: dict[str, Any] | None = None) -> Array:
        pieces = get_object_children_ids_from_object_content(object_content)
        described = json.loads(get_object_body(object_content, Array))
        lengths = [len((children or {})[pieces[place]].data) for place in described["arraychunk_ids"]]
        _CountedArray.left -= sum(lengths)
        if _CountedArray.left < 0:
            raise FedGAError("its arrays are longer than the model")
        return Array.inflate(object_content, children)


inflatable_class_registry[Array.__qualname__] = _CountedArray


class Exchange(Grid):
    """Wraps a Grid. ``silent`` nodes did not answer in time; they are asked, but waited for no longer than others.

    Until ``enough`` replies are there all are waited for. ``most_bytes`` is the length of all arrays in a reply.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._pushed: dict[str, Message] = {}  # by whoever pulls the answers himself
        self._open: dict[str, tuple[Message, float]] = {}  # that nobody waits for any more, and until when they last
        self.silent: set[int] = set()
        self.enough = 1
        self.most_bytes = MOST_BYTES

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """The replies that come in time, each from the node that was asked; who gives none is ``silent`` after that."""
        began, replies = now(), list[Message]()
        end = began + (math.inf if timeout is None else timeout)
        asked, pause = self._push(messages), FIRST_LOOK_AFTER_S
        while asked:
            replies += self._pull(asked)
            awaited = {question.metadata.dst_node_id for question in asked.values()} - self.silent
            if not awaited and len(replies) >= self.enough:
                passed = now() - began
                end = min(end, began + passed + max(passed, LEAST_GRACE_S))
            if not asked or now() >= end:
                break
            sleep(pause)
            pause = min(1.5 * pause, LOOK_EVERY_S)
        self.silent |= {question.metadata.dst_node_id for question in asked.values()}
        self._open |= {number: (each, began + each.metadata.ttl) for number, each in asked.items()}
        return replies

    def late(self) -> set[int]:
        """Nodes that have answered meanwhile what nobody waits for any more: they are silent no longer."""
        lasting = {number: question for number, (question, end) in self._open.items() if end > now()}
        found = {reply.metadata.src_node_id for reply in self._pull(lasting)} - self.silent
        self._open = {number: self._open[number] for number in lasting}
        return found

    def _push(self, messages: Iterable[Message]) -> dict[str, Message]:
        messages = list(messages)
        taken = set(self._grid.push_messages(messages)) - {None, ""}
        return {each.metadata.message_id: each for each in messages if each.metadata.message_id in taken}

    def _pull(self, asked: dict[str, Message]) -> list[Message]:
        """Replies that are there; their questions are taken out of ``asked``."""
        replies = []
        for number, question in list(asked.items()):
            reply = self._answer(number, question)
            if reply is None:
                continue
            del asked[number]
            replies.append(reply)
            (self.silent.discard if is_of_node(reply) else self.silent.add)(question.metadata.dst_node_id)
        return replies

    def _answer(self, number: str, question: Message) -> Message | None:
        """The reply to a question, an error where it cannot be unpacked, None where there is none yet."""
        try:
            _CountedArray.left = self.most_bytes
            found = next(iter(self._grid.pull_messages([number])), None)
        except httpx.TransportError:
            raise  # Flower's server is away: nobody's reply is at fault
        except Exception as error:
            if isinstance(error, httpx.HTTPStatusError) and error.response.status_code < SERVER_FAILS:
                raise  # Flower's server does not listen to us any more
            # Flower unpacks here what the node has packed, or its server chokes on it: any fault in it is the node's.
            return _fault(question, f"its reply cannot be unpacked: {type(error).__name__}, {error}")
        finally:
            _CountedArray.left = math.inf
        if found is None:
            return None
        asked, said = question.metadata, found.metadata
        if said.src_node_id == asked.dst_node_id and said.reply_to_message_id == number:
            return found
        if found.has_error():  # Flower's own, of a reply that it has not got whole
            return Message(found.error, reply_to=question)
        return _fault(question, "its reply says that it is of somebody else")

    # --- the rest of Flower's Grid -----------------------------------------------------------------------------------

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        asked = self._push(messages)
        self._pushed |= asked
        return list(asked)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Replies to questions that went through `push_messages`."""
        asked = {number: self._pushed.pop(number) for number in list(message_ids) if number in self._pushed}
        replies = self._pull(asked)
        self._pushed |= asked
        return replies

    set_run: Any = property(attrgetter("_grid.set_run"))
    run: Any = property(attrgetter("_grid.run"))
    create_message: Any = property(attrgetter("_grid.create_message"))
    get_node_ids: Any = property(attrgetter("_grid.get_node_ids"))
    get_nodes: Any = property(attrgetter("_grid.get_nodes"))


def is_of_node(reply: Message) -> bool:
    """Whether it shows that the node answers; Flower answers itself for nodes that are away or take too long."""
    return not reply.has_error() or reply.error.code in (*OF_THE_APP, UNREADABLE)


def _fault(question: Message, reason: str) -> Message:
    return Message(Error(UNREADABLE, reason), reply_to=question)
