"""Which node is which client.

Flower gives nodes new ids in every run, and the first round may begin before all of them are there. Here nodes are
asked who they are, waited for, and known by the number of their partition or the name of their site from then on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedga.errors import FedGAError
from fedga.flower import wire

LOOK_EVERY_S = 0.5
ANSWER_WITHIN_S = 120.0
ASK_AT_MOST = 3


@dataclass(frozen=True)
class Identity:
    """What a node says of itself."""

    client: int
    input_shape: tuple[int, ...] | None = None
    pictures: bool = True
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
        self._asked: dict[int, int] = {}
        self.noticed = noticed

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
        """Forget nodes that are gone, and ask new ones who they are."""
        ids = set(grid.get_node_ids())
        for client, node in list(self.nodes.items()):
            if node not in ids:
                del self.nodes[client]
                self.noticed(f"{self.name(client)} is gone")
        self._asked = {node: times for node, times in self._asked.items() if node in ids}
        known = set(self.nodes.values())
        new = sorted(node for node in ids - known if self._asked.get(node, 0) < ASK_AT_MOST)
        if new and len(self.nodes) < self.num_clients:
            self._ask(grid, new)

    def wait(self, grid: Grid, least: int, seconds: float) -> None:
        """Until ``least`` clients are there; an error names those who did not come in time."""
        until, said = time.monotonic() + seconds, False
        while True:
            # Nodes of a simulation come all at once: asking them one by one as they appear would take longer.
            late = time.monotonic() > until
            if self.names or late or len(set(grid.get_node_ids())) >= least:
                self.refresh(grid)
            if len(self.nodes) >= least:
                return
            if late:
                missing = ", ".join(map(self.name, self.absent[:5])) + (", ..." if len(self.absent) > 5 else "")
                raise FedGAError(
                    f"{len(self.nodes)} of {least} clients came within {seconds:g} seconds, {missing} did not: start "
                    "their nodes, or wait longer"
                )
            if not said and self.names:
                self.noticed(f"waiting for {', '.join(map(self.name, self.absent))}")
                said = True
            time.sleep(LOOK_EVERY_S)

    def _ask(self, grid: Grid, nodes: Sequence[int]) -> None:
        content = RecordDict({wire.CONFIG: self._question})
        questions = [Message(content, node, wire.INTRODUCE) for node in nodes]
        for node in nodes:
            self._asked[node] = self._asked.get(node, 0) + 1
        for answer in grid.send_and_receive(questions, timeout=ANSWER_WITHIN_S):
            self._enter(answer)

    def _enter(self, answer: Message) -> None:
        node = answer.metadata.src_node_id
        if answer.has_error():
            self._enter_nameless(node, answer.error.reason or "")
            return
        who = answer.content.config_records[wire.IDENTITY]
        client = self._number(who)
        if client is None:
            self._asked[node] = ASK_AT_MOST
            said = f"site {who['site']!s}" if "site" in who else f"client {who.get('partition-id', 'of no number')!s}"
            self.noticed(f"a node says it is {said}, which is none of this federation's: it is left out")
        elif client in self.nodes:
            self._asked[node] = ASK_AT_MOST
            self.noticed(f"two nodes say they are {self.name(client)}: the second is left out")
        else:
            self.nodes[client] = node
            self.identities[client] = _identity(client, who)

    def _enter_nameless(self, node: int, reason: str) -> None:
        """A ClientApp of the user's own that does not introduce itself is numbered as it comes."""
        if self.names or "No query function" not in reason:
            self.noticed(f"a node could not say who it is: {reason}")
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

    return Identity(client, numbers("input-shape"), bool(who.get("pictures", True)), numbers("class-counts"))
