"""Which node is which client.

Flower gives nodes new ids in every run, and the first round may begin before all of them are there. Here nodes are
asked who they are, waited for, and known by the number of their partition or the name of their site from then on.
Nobody waits for an answer: who does not give one is asked again, and one that comes late still counts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedga.errors import FedGAError
from fedga.flower import wire

LOOK_EVERY_S = 0.2
ASK_AGAIN_AFTER_S = 60.0
QUESTION_LASTS_S = 3600.0


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
        self.nodes: dict[int, int] = {}
        self.identities: dict[int, Identity] = {}
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
        who = answer.content.config_records.get(wire.IDENTITY, ConfigRecord())
        client = self._number(who)
        said = f"site {who['site']!s}" if "site" in who else f"client {who.get('partition-id', 'of no number')!s}"
        identity = None if client is None else _identity(client, who)
        if client is None:
            self._leave_out(node, f"{called} says it is {said}, which is none of this federation's: it is left out")
        elif registered and registered != who.get("site"):
            self._leave_out(node, f"{called} says it is {said}: it is left out, since its key is not that site's")
        elif client in self.nodes:
            self._leave_out(node, f"two nodes say they are {self.name(client)}: the second is left out")
        elif difference := self._difference(identity):
            self._leave_out(node, f"{self.name(client)} has {difference}: it is left out, until it is as the others")
        elif identity is not None:
            self.nodes[client], self.identities[client] = node, identity

    def _difference(self, identity: Identity | None) -> str:
        if identity is None or identity.form is None or self.form is None:
            return ""
        return self.form.difference(identity.form)

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
        self.nodes[client], self.identities[client] = node, Identity(client)

    def _number(self, who: ConfigRecord) -> int | None:
        if self.names:
            site = who.get("site")
            return self.names.index(str(site)) if site in self.names else None
        number = who.get("partition-id")
        return int(number) if isinstance(number, int) and 0 <= number < self.num_clients else None


def _identity(client: int, who: ConfigRecord) -> Identity:
    def numbers(name: str) -> tuple[int, ...] | None:
        value = who.get(name)
        return tuple(int(number) for number in value) if isinstance(value, list) else None

    shape = numbers("input-shape")
    form = None if shape is None else Form(shape, bool(who.get("pictures", True)), str(who.get("columns", "")))
    return Identity(client, form, numbers("class-counts"))


def _written(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))
