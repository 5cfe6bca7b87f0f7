"""The clients of a run as its server hears them: whose replies can be read, who is silent, and who fails."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from flwr.app import Message

from fedga.data.assemble import listed
from fedga.errors import FedGAError
from fedga.flower.replies import Read, attempt
from fedga.flower.server.exchange import OF_THE_APP, Exchange, is_of_node
from fedga.flower.server.roster import Roster

GIVE_UP_AFTER = 3
MOST_ROUNDS = 64  # that a silent client is passed over before it is asked again


class TooFewReplies(FedGAError):  # noqa: N818 - read as the sentence it starts
    """A round that cannot count."""


@dataclass(frozen=True)
class _Silence:
    missed: int  # questions in a row
    until: int  # the round in which it is asked again
    entry: int  # how often it had come when it fell silent: one that leaves and comes again has a fresh start


class Audience:
    """Reads replies; where it is ``strict``, as on one machine, every failure is an error."""

    def __init__(self, roster: Roster, strict: bool) -> None:
        self.roster, self.strict = roster, strict
        self._silences: dict[int, _Silence] = {}
        self._left_out: dict[int, int] = {}  # in which round
        self._failures: Counter[int] = Counter()  # in a row, of each client's app

    def silent(self) -> set[int]:
        """Who did not answer when last asked, and has not left since."""
        return {client for client, each in self._silences.items() if each.entry == self.roster.entries[client]}

    def answering(self) -> list[int]:
        """Who is there and answered when last asked; everybody, if nobody did."""
        there = set(self.roster.nodes)
        return sorted(there - self.silent() or there)

    def not_asked(self, number: int, least: int) -> list[int]:
        """Clients that are away, silent, or failed when this round was tried before; only the first if few are left."""
        absent = set(self.roster.absent)
        silent = {client for client in self.silent() if number < self._silences[client].until}
        without = absent | silent | {client for client, failed in self._left_out.items() if failed == number}
        return sorted(without if self.roster.num_clients - len(without) >= max(1, least) else absent)

    def hear_late(self, grid: Exchange) -> None:
        """Who has answered after all is asked again, and waited for; so is who has left and come again."""
        by_node = self.roster.by_node
        for node in sorted(grid.late() & by_node.keys()):
            self._heard(by_node[node])
        still = self.silent()
        grid.silent &= {node for node, client in by_node.items() if client in still}

    def leave_out(self, client: int, number: int, sentence: str) -> None:
        """What it answered in a round is of no use: others come first when the round is tried again."""
        self._left_out[client] = number
        self.roster.noticed(sentence)

    def understood(
        self, asked: Sequence[int], number: int, replies: Iterable[Message], read: Callable[[Message], Read]
    ) -> dict[int, Read]:
        """Replies that can be read, by client and in the order asked; a notice says what is wrong with the others."""
        by_node = self.roster.by_node
        understood: dict[int, Read] = {}
        failed: set[int] = set()
        for reply in replies:
            client = by_node.get(reply.metadata.src_node_id)
            if client is None or client not in asked or client in understood or client in failed:
                continue
            if not self.strict and not is_of_node(reply):
                continue
            try:
                understood[client] = attempt(reply, read)
                self._failures[client] = 0
            except FedGAError as error:
                sentence = f"{self.roster.name(client)} failed in round {number}: {error}"
                if self.strict:
                    raise FedGAError(sentence) from error
                failed.add(client)
                self.leave_out(client, number, sentence)
                self._failures[client] += reply.has_error() and reply.error.code in OF_THE_APP
        missing = [client for client in asked if client not in understood]
        if missing and self.strict:
            without = listed([self.roster.name(client) for client in missing])
            replies_of = f"round {number} has {len(understood)} of {len(asked)} replies, and none of {without}"
            raise TooFewReplies(f"{replies_of}: give the same command again, it continues")
        for client in missing:
            if client not in failed:
                self._missed(client, number)
        for client in (*understood, *failed):
            self._heard(client)
        self._give_up_if_all_fail(number)
        return {client: understood[client] for client in asked if client in understood}

    def _heard(self, client: int) -> None:
        if self._silences.pop(client, None) is not None:
            self.roster.noticed(f"{self.roster.name(client)} answers again")

    def _missed(self, client: int, number: int) -> None:
        """A client that has not answered is passed over for 1, 2, 4, ... rounds; that is said when it begins."""
        known, before = client in self.silent(), self._silences.get(client)
        missed = before.missed + 1 if before is not None and known else 1
        until = number + 1 + min(2 ** (missed - 1), MOST_ROUNDS)
        self._silences[client] = _Silence(missed, until, self.roster.entries[client])
        if not known:
            self.roster.noticed(
                f"{self.roster.name(client)} did not answer in round {number}: it is asked again in round {until}, "
                "then less and less often, and not waited for longer than the others until it answers"
            )

    def _give_up_if_all_fail(self, number: int) -> None:
        """What fails everywhere is not one client's fault; one alone never ends a run of several."""
        failing = [client for client in self.roster.nodes if self._failures[client] >= GIVE_UP_AFTER]
        if len(failing) == len(self.roster.nodes) and len(failing) >= min(2, self.roster.num_clients):
            failures = f"everybody failed {GIVE_UP_AFTER} times in a row in round {number}, as said above"
            raise FedGAError(f"{failures}: fix it, and the same command continues")
