"""Which node is which client.

Flower gives nodes new ids in every run, and the first round may begin before all of them are there. Here nodes are
asked who they are, waited for, and known by the number of their partition or the name of their site from then on.
Nobody waits for an answer: who does not give one is asked again, and one that comes late still counts.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedga.errors import FedGAError, quoted
from fedga.flower import wire
from fedga.flower.replies import MOST_SAMPLES

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

    def difference(self, other: Form) -> str:
        """In words, what is different there; empty where nothing is."""
        if other.input_shape != self.input_shape:
            return f"samples of shape {_written(other.input_shape)} and not {_written(self.input_shape)}"
        if other.pictures != self.pictures:
            return "samples stored as " + ("bytes and not floats" if other.pictures else "floats and not bytes")
        if other.columns and self.columns and other.columns != self.columns:
            return "a table whose columns have other names or another order"
        return ""


@dataclass(frozen=True)
class Identity:
    """What a node says of itself."""

    client: int
    form: Form | None = None
    class_counts: tuple[int, ...] | None = None  # only where its owner wants them told


class Roster:
    """The clients that are there now, ``nodes`` by number; ``names`` are those of sites, in the order of numbers."""

    def __init__(
        self,
        num_clients: int,
        names: Sequence[str] = (),
        question: ConfigRecord | None = None,
        noticed: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.num_clients, self.names, self._question = num_clients, tuple(names), question or ConfigRecord()
        classes = self._question.get("classes")
        self.num_classes = len(classes) if isinstance(classes, list) else 0
        self.nodes: dict[int, int] = {}
        self.identities: dict[int, Identity] = {}
        self.entries: Counter[int] = Counter()  # how often each client has come
        self.form: Form | None = None  # once it is settled, whoever differs is left out
        self.began = False  # whether a round of any run has been trained
        self.noticed = noticed
        self._open: set[str] = set()  # questions without an answer
        self._ask_at: dict[int, float] = {}
        self._said: dict[int, str] = {}

    def first(self, num_clients: int) -> Roster:
        """The first so many of these clients, for a run that has fewer; all of them are there already."""
        fewer = Roster(num_clients, self.names[:num_clients], self._question, self.noticed)
        fewer.nodes = {client: node for client, node in self.nodes.items() if client < num_clients}
        fewer.identities = {client: who for client, who in self.identities.items() if client < num_clients}
        return fewer

    def name(self, client: int) -> str:
        return f"site {self.names[client]}" if self.names else f"client {client}"

    @property
    def absent(self) -> list[int]:
        return [client for client in range(self.num_clients) if client not in self.nodes]

    def refresh(self, grid: Grid) -> None:
        """Forget nodes that are gone, take in answers, and ask new nodes who they are."""
        registered = self._registered(grid)
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

    def _registered(self, grid: Grid) -> Mapping[int, str]:
        """Nodes and the names their keys were registered under; nodes of a simulation have none."""
        if not self.names:
            return dict.fromkeys(grid.get_node_ids(), "")
        return {info.node_id: info.name for info in grid.get_nodes()}

    def wait(self, grid: Grid, wanted: int, seconds: float, enough: int | None = None) -> None:
        """Until ``wanted`` clients are there, or after so long ``enough`` of them; else an error names the others."""
        until, enough, told = time.monotonic() + seconds, wanted if enough is None else enough, False
        while True:
            # Nodes of a simulation come all at once: asking them one by one as they appear would take longer.
            late = time.monotonic() > until
            if self.names or late or len(set(grid.get_node_ids())) >= wanted:
                self.refresh(grid)
            if len(self.nodes) >= wanted:
                return
            if late and len(self.nodes) >= enough:
                self.noticed(f"going on without {self._missing()}")
                return
            if late:
                raise FedGAError(
                    f"{len(self.nodes)} of {wanted} clients came within {seconds:g} seconds, {self._missing()} did "
                    "not: start their nodes, set wait-for-sites to wait longer, or min-sites to begin with fewer"
                )
            if not told and self.names:
                self.noticed(f"waiting for {self._missing()}")
                told = True
            time.sleep(LOOK_EVERY_S)

    def _missing(self) -> str:
        return ", ".join(map(self.name, self.absent[:5])) + (", ..." if len(self.absent) > 5 else "")

    def _ask(self, grid: Grid, registered: Mapping[int, str]) -> None:
        now, known = time.monotonic(), set(self.nodes.values())
        new = sorted(node for node in registered if node not in known and self._ask_at.get(node, 0.0) <= now)
        if not new:
            return
        content = RecordDict({wire.CONFIG: self._question})
        questions = [Message(content, node, wire.INTRODUCE, ttl=QUESTION_LASTS_S) for node in new]
        self._open |= {number for number in grid.push_messages(questions) if number}
        self._ask_at |= dict.fromkeys(new, now + ASK_AGAIN_AFTER_S)

    def _enter(self, node: int, registered: str, answer: Message) -> None:
        """Take in a node that says who it is; one that may not take part is told of once, and asked again later."""
        called = f"the node of site {registered}" if registered else "a node"
        if answer.has_error():
            self._enter_nameless(node, called, wire.reason(answer))
            return
        try:
            who = read_introduction(answer, self.num_classes)
        except FedGAError as error:
            self._leave_out(node, f"{called} could not say who it is: {error}")
            return
        except Exception as error:  # not foreseen: an introduction that gets through the checks
            reason = f"{type(error).__name__}: {quoted(error, 200)}"
            self._leave_out(node, f"{called} could not say who it is: its answer cannot be read ({reason})")
            return
        client = self._number(who)
        if client is None:
            self._leave_out(node, f"{called} says it is {who.said}, which is none of this federation's: it is left out")
        elif registered and registered != who.site:
            self._leave_out(node, f"{called} says it is {who.said}: it is left out, since its key is not that site's")
        elif client in self.nodes:
            self._leave_out(node, f"two nodes say they are {self.name(client)}: the second is left out")
        elif self.form and who.form and (difference := self.form.difference(who.form)):
            self._leave_out(node, f"{self.name(client)} has {difference}: it is left out, until it is as the others")
        else:
            self._take_in(node, Identity(client, who.form, who.class_counts))

    def _take_in(self, node: int, identity: Identity) -> None:
        self.nodes[identity.client], self.identities[identity.client] = node, identity
        self.entries[identity.client] += 1

    def _leave_out(self, node: int, sentence: str) -> None:
        if self._said.get(node) != sentence:
            self.noticed(sentence)
        self._said[node] = sentence

    def _enter_nameless(self, node: int, called: str, reason: str) -> None:
        """A ClientApp of the user's own that does not introduce itself is numbered as it comes."""
        if self.names or "No query function" not in reason:
            self._leave_out(node, f"{called} could not say who it is: {reason}")
            return
        if not self.absent:
            self._ask_at[node] = math.inf  # one more than there are clients
            return
        if len(self.nodes) == 0:
            self.noticed(
                "the ClientApp does not say which client a node is, so the same seed will not draw the same clients "
                'again: add app.query("introduce")(fedga.flower.introduce) to it'
            )
        client = self.absent[0]
        self._take_in(node, Identity(client))

    def _number(self, who: Introduction) -> int | None:
        if self.names:
            return self.names.index(who.site) if who.site in self.names else None
        return who.partition if who.partition is not None and 0 <= who.partition < self.num_clients else None


@dataclass(frozen=True)
class Introduction:
    """What a node says of itself, as far as it makes sense."""

    site: str | None
    partition: int | None
    form: Form | None
    class_counts: tuple[int, ...] | None

    @property
    def said(self) -> str:
        """Who it says it is."""
        if self.site is not None:
            return f"site {quoted(self.site)}"
        return f"client {'of no number' if self.partition is None else self.partition}"


def read_introduction(answer: Message, num_classes: int) -> Introduction:
    """An answer to "who are you"; ``num_classes`` is 0 where nobody has agreed on any."""
    if not answer.has_content():
        raise FedGAError("its answer is empty")
    extra = [name for name in answer.content if name != wire.IDENTITY]
    if extra:
        raise FedGAError(f"its answer holds {quoted(extra[0])}, which nobody asked for: use the same version of fedga")
    who = answer.content.config_records.get(wire.IDENTITY, ConfigRecord())
    site, partition = who.get("site"), who.get("partition-id")
    if site is not None and not isinstance(site, str):
        raise FedGAError(f"its site is {quoted(site)}, where a name belongs")
    if partition is not None and (isinstance(partition, bool) or not isinstance(partition, int)):
        raise FedGAError(f"its partition-id is {quoted(partition)}, where a whole number belongs")
    return Introduction(site, partition, _form(who), _class_counts(who, num_classes))


def _form(who: ConfigRecord) -> Form | None:
    shape = _whole_numbers(who, "input-shape")
    if shape is None:
        return None
    if not 1 <= len(shape) <= MOST_AXES or min(shape) < 1 or math.prod(shape) > LARGEST_SAMPLE:
        raise FedGAError(f"its samples have shape {quoted(shape)}, where a length along each axis belongs")
    pictures, columns = who.get("pictures", True), who.get("columns", "")
    if not isinstance(pictures, bool):
        raise FedGAError(f"its pictures is {quoted(pictures)}, where true or false belongs")
    if not isinstance(columns, str) or len(columns) > LONGEST_DIGEST:
        raise FedGAError(f"its columns is {quoted(columns)}, where a digest belongs")
    return Form(shape, pictures, columns)


def _class_counts(who: ConfigRecord, num_classes: int) -> tuple[int, ...] | None:
    counts = _whole_numbers(who, "class-counts")
    if counts is None:
        return None
    if len(counts) != num_classes or not all(0 <= count <= MOST_SAMPLES for count in counts):
        raise FedGAError(f"its class-counts are {quoted(counts)}, where {num_classes} numbers of samples belong")
    return counts


def _whole_numbers(who: ConfigRecord, name: str) -> tuple[int, ...] | None:
    value = who.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(one, int) and not isinstance(one, bool) for one in value):
        raise FedGAError(f"its {name} is {quoted(value)}, where a list of whole numbers belongs")
    return tuple(int(one) for one in value)


def _written(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))
