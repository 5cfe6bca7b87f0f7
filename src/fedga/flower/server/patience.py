"""Who is asked less often: clients that were silent, and in a round that is tried again those that failed in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MOST_ROUNDS = 64  # that a silent client is passed over before it is asked again


@dataclass(frozen=True)
class _Silence:
    missed: int  # questions in a row
    until: int  # the round in which it is asked again
    entry: int  # how often it had come when it fell silent


class Patience:
    """What is known of clients that did not answer; one that leaves and comes again has a fresh start."""

    def __init__(self) -> None:
        self._silent: dict[int, _Silence] = {}
        self._failed: dict[int, int] = {}  # in which round

    def missed(self, client: int, number: int, entry: int) -> int:
        """It did not answer in a round: it is passed over for 1, 2, 4, ... rounds; returns when it is asked again."""
        before = self._silent.get(client)
        missed = before.missed + 1 if before is not None and before.entry == entry else 1
        until = number + 1 + min(2 ** (missed - 1), MOST_ROUNDS)
        self._silent[client] = _Silence(missed, until, entry)
        return until

    def failed(self, client: int, number: int) -> None:
        """What it answered in a round is of no use: others come first when the round is tried again."""
        self._failed[client] = number

    def heard(self, client: int) -> bool:
        """It has answered; whether it was silent before."""
        return self._silent.pop(client, None) is not None

    def passed_over(self, number: int, entries: Mapping[int, int]) -> set[int]:
        """Who is not asked in a round; ``entries`` is how often each client has come."""
        silent = {
            client for client, each in self._silent.items() if number < each.until and each.entry == entries[client]
        }
        return silent | {client for client, failed in self._failed.items() if failed == number}

    def silent(self, entries: Mapping[int, int]) -> set[int]:
        """Who did not answer when last asked, and has not left since."""
        return {client for client, each in self._silent.items() if each.entry == entries[client]}
