"""Which node is which client: nodes, whose ids are new in every run, are asked who they are.

Nobody waits for an answer: who does not give one is asked again, and one that comes late still counts.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedga.errors import FedGAError, quoted
from fedga.flower import wire
from fedga.flower.replies import MOST_SAMPLES, attempt

LOOK_EVERY_S = 0.2
ASK_AGAIN_AFTER_S = 60.0
QUESTION_LASTS_S = 3600.0
MOST_AXES = 8  # of a sample
LARGEST_SAMPLE = 10**9  # numbers in one sample: 4 GB as floats
LONGEST_DIGEST = 200


@dataclass(frozen=True)
class Form:
    """What the samples of all sites must have in common."""

    input_shape: tuple[int, ...]
    pictures: bool  # whether they are stored as bytes, not as floats
    columns: str = ""  # a digest of the names of a table's features, in their order

    def difference(self, other: "Form") -> str:
        """In words, what is different there; empty where nothing is."""
        if other.input_shape != self.input_shape:
            there, here = ("×".join(map(str, form.input_shape)) for form in (other, self))
            return f"samples of shape {there} and not {here}"
        if other.pictures != self.pictures:
            return "samples stored as " + ("bytes and not floats" if other.pictures else "floats and not bytes")
        if other.columns and self.columns and other.columns != self.columns:
            return "a table whose columns have other names or another order"
        return ""


@dataclass(frozen=True)
class Identity:
    """What a node says of itself."""

    form: Form | None = None
    class_counts: tuple[int, ...] | None = None  # only where its owner reports them


class Roster:
    """The clients that are there now, ``nodes`` by number; ``names`` are those of sites, in the order of numbers."""

    def __init__(
        self,
        num_clients: int,
        names: Sequence[str] = (),
        classes: Sequence[str] = (),
        noticed: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.num_clients, self.names, self.classes = num_clients, tuple(names), list(classes)
        self.nodes: dict[int, int] = {}
        self.identities: dict[int, Identity] = {}
        self.entries: Counter[int] = Counter()  # how often each client has come
        self.form: Form | None = None  # once it is settled, whoever differs is left out
        self.began = False  # whether a round of any run has been trained
        self.noticed = noticed
        self._open: set[str] = set()  # questions without an answer
        self._ask_at: dict[int, float] = {}
        self._said: dict[int, str] = {}

    def first(self, num_clients: int) -> "Roster":
        """The first so many of these clients, for a run that has fewer; all of them are there already."""
        fewer = Roster(num_clients, noticed=self.noticed)
        fewer.nodes = {client: node for client, node in self.nodes.items() if client < num_clients}
        return fewer

    def name(self, client: int) -> str:
        return f"site {self.names[client]}" if self.names else f"client {client}"

    @property
    def by_node(self) -> dict[int, int]:
        return {node: client for client, node in self.nodes.items()}

    @property
    def absent(self) -> list[int]:
        return [client for client in range(self.num_clients) if client not in self.nodes]

    def refresh(self, grid: Grid) -> None:
        """Forget nodes that are gone, take in answers, and ask new nodes who they are."""
        # Nodes and the names their keys were registered under; nodes of a simulation have none.
        named = {info.node_id: info.name for info in grid.get_nodes()} if self.names else {}
        registered = named if self.names else dict.fromkeys(grid.get_node_ids(), "")
        for client, node in list(self.nodes.items()):
            if node not in registered:
                del self.nodes[client]
                self.noticed(f"{self.name(client)} is gone")
        self._ask_at = {node: at for node, at in self._ask_at.items() if node in registered}
        if len(self.nodes) == self.num_clients:
            return
        self._ask(grid, registered)
        if self._open:
            for answer in grid.pull_messages(self._open):
                self._open.discard(answer.metadata.reply_to_message_id)
                node = answer.metadata.src_node_id
                if node in registered and node not in self.nodes.values():
                    self._enter(node, registered[node], answer)

    def wait(self, grid: Grid, wanted: int, seconds: float, enough: int | None = None) -> None:
        """Until ``wanted`` clients are there, or after so long ``enough`` of them; else an error names the others."""
        until, enough, said = time.monotonic() + seconds, wanted if enough is None else enough, False
        while True:
            # Nodes of a simulation come all at once: asking them one by one as they appear would take longer.
            late = time.monotonic() > until
            if self.names or late or len(set(grid.get_node_ids())) >= wanted:
                self.refresh(grid)
            if len(self.nodes) >= wanted:
                return
            if late and len(self.nodes) < enough:
                came = f"{len(self.nodes)} of {wanted} clients came within {seconds:g} seconds"
                cure = "start their nodes, set wait-for-sites to wait longer, or min-sites to begin with fewer"
                raise FedGAError(f"{came}, {self._missing()} did not: {cure}")
            if late:
                self.noticed(f"going on without {self._missing()}")
                return
            if self.names and not said:
                self.noticed(f"waiting for {self._missing()}")
                said = True
            time.sleep(LOOK_EVERY_S)

    def _missing(self) -> str:
        return ", ".join(map(self.name, self.absent[:5])) + (", ..." if len(self.absent) > 5 else "")

    def _ask(self, grid: Grid, registered: Mapping[int, str]) -> None:
        now, known = time.monotonic(), set(self.nodes.values())
        new = sorted(node for node in registered if node not in known and self._ask_at.get(node, 0.0) <= now)
        if not new:
            return
        content = RecordDict({wire.CONFIG: ConfigRecord({"classes": self.classes} if self.names else {})})
        questions = [Message(content, node, wire.INTRODUCE, ttl=QUESTION_LASTS_S) for node in new]
        self._open |= {number for number in grid.push_messages(questions) if number}
        self._ask_at |= dict.fromkeys(new, now + ASK_AGAIN_AFTER_S)

    def _enter(self, node: int, registered: str, answer: Message) -> None:
        """Take in a node that says who it is; one that may not take part is mentioned once, and asked again later."""
        called = f"the node of site {registered}" if registered else "a node"
        try:
            if answer.has_error():
                sentence = self._enter_unnamed(node, called, wire.reason(answer))
            else:
                sentence = attempt(answer, partial(self._enter_named, node, called, registered))
        except FedGAError as error:
            sentence = f"{called} could not say who it is: {error}"
        if sentence and self._said.get(node) != sentence:
            self._said[node] = sentence
            self.noticed(sentence)

    def _enter_named(self, node: int, called: str, registered: str, answer: Message) -> str:
        """Why a node that says who it is may not take part; empty if it may."""
        site, partition, form, class_counts = read_introduction(answer, len(self.classes))
        client = partition if partition in range(self.num_clients) else None
        if self.names:
            client = self.names.index(site) if site in self.names else None
        claim = f"{called} says it is {f'site {quoted(site)}' if site is not None else f'client {partition}'}"
        if client is None:
            return f"{claim}, which is none of this federation's: it is left out"
        if registered and registered != site:
            return f"{claim}: it is left out, since its key is not that site's"
        if client in self.nodes:
            return f"two nodes say they are {self.name(client)}: the second is left out"
        if self.form and form and (difference := self.form.difference(form)):
            return f"{self.name(client)} has {difference}: it is left out, until it is as the others"
        self._take_in(node, client, Identity(form, class_counts))
        return ""

    def _enter_unnamed(self, node: int, called: str, reason: str) -> str:
        """A ClientApp of the user's own that does not introduce itself is numbered as it comes."""
        if self.names or "No query function" not in reason:
            return f"{called} could not say who it is: {reason}"
        if not self.absent:
            self._ask_at[node] = math.inf  # one more than there are clients
            return ""
        first = not self.nodes
        self._take_in(node, self.absent[0], Identity())
        advice = 'add app.query("introduce")(fedga.flower.introduce) to it'
        missing = "the ClientApp does not say which client a node is, so the same seed will not sample the same clients"
        return f"{missing} again: {advice}" if first else ""

    def _take_in(self, node: int, client: int, identity: Identity) -> None:
        self.nodes[client], self.identities[client] = node, identity
        self.entries[client] += 1


def read_introduction(
    answer: Message, num_classes: int
) -> tuple[str | None, int | None, Form | None, tuple[int, ...] | None]:
    """Site, partition, form and class counts in an answer to "who are you", as far as it says them."""
    if not answer.has_content():
        raise FedGAError("its answer is empty")
    extra = [name for name in answer.content if name != wire.IDENTITY]
    if extra:
        raise FedGAError(f"its answer holds {quoted(extra[0])}, which nobody asked for: use the same version of fedga")
    who = answer.content.config_records.get(wire.IDENTITY, ConfigRecord())

    def read(name: str, wanted: str, is_good: Callable[[Any], bool]) -> Any:
        value = who.get(name)
        if value is not None and not is_good(value):
            raise FedGAError(f"its {name} is {quoted(value)}, where {wanted} belongs")
        return tuple(value) if isinstance(value, list) else value

    site = read("site", "a name", lambda value: isinstance(value, str))
    partition = read("partition-id", "a whole number", _is_whole)
    shape = read("input-shape", "a list of whole numbers, one per axis,", _is_shape)
    pictures = read("pictures", "true or false", lambda value: isinstance(value, bool))
    columns = read("columns", "a digest", lambda value: isinstance(value, str) and len(value) <= LONGEST_DIGEST)
    of_classes = f"a list of {num_classes} numbers of samples"
    counts = read("class-counts", of_classes, lambda value: _are_whole(value, 0, MOST_SAMPLES, num_classes))
    form = Form(shape, pictures is not False, columns or "") if shape else None
    return site, partition, form, counts


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _are_whole(value: Any, least: int, most: int, length: int | None = None) -> bool:
    is_list = isinstance(value, list) and length in (None, len(value))
    return is_list and all(_is_whole(one) and least <= one <= most for one in value)


def _is_shape(value: Any) -> bool:
    return _are_whole(value, 1, LARGEST_SAMPLE) and 1 <= len(value) <= MOST_AXES and math.prod(value) <= LARGEST_SAMPLE
