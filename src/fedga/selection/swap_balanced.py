"""Every client once per turn, in an order in which clients swap places so that each round's classes are even.

A turn begins with a random order, cut into rounds. Then every client is swapped with the one of another round with
which that lowers most the sum over rounds of the squared distance between the classes of a round's clients and the
uniform mix (as in ``balanced``), if it lowers it at all; ``sweeps`` times through all clients, 0 for the order as
sampled. Where a turn ends within a round, the first clients of the next turn fill it up, and are not swapped. It takes
time that grows with the square of the number of clients. This rule is fedga's own: ``in-turn`` made more even.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedga.algorithms.base import option
from fedga.common import streams
from fedga.selection.base import Choice
from fedga.selection.in_turn import InTurn


@dataclass(frozen=True)
class SwapBalanced(InTurn):
    sweeps: int = option(2, least=0, largest=100)

    needs_class_counts: ClassVar[bool] = True
    reveals: ClassVar[str] = "every client's class counts"

    def select(self, choice: Choice) -> Tensor:
        turns = choice.state["turns"].long()
        turn = turns.amin()
        draws, later = _draws(choice.key, turn, len(turns)), _draws(choice.key, turn + 1, len(turns))
        rounds = self._swapped(choice, _cut(draws, turn, choice.active), turn)
        return choice.smallest(torch.where(turns == turn, rounds + draws, 1e9 * (turns - turn) + later))

    def _swapped(self, choice: Choice, rounds: Tensor, turn: Tensor) -> Tensor:
        """The round of the turn in which each client takes part, ``[clients]``, once places have been swapped."""
        assert choice.class_counts is not None
        counts, place = choice.class_counts.double(), torch.arange(len(rounds), device=rounds.device)
        numbers = torch.arange(len(rounds) // choice.active + 2, device=rounds.device)
        stays = (rounds == 0) & (turn * len(rounds) % choice.active > 0)  # they fill up the last round of another turn
        pools = (rounds == numbers[:, None]).double() @ counts  # [rounds, classes]
        for client in list(range(len(rounds))) * self.sweeps:
            own, moves = rounds[client], counts - counts[client]
            here, there = pools[own], pools[rounds]
            change = uneven(here + moves) + uneven(there - moves) - uneven(here) - uneven(pools)[rounds]
            change = torch.where(stays | stays[client] | (rounds == own), 0.0, change)
            best = (change * 1e9).round().argmin()  # what differs by rounding alone is equal on every machine
            other = torch.where(change[best] < -1e-9, rounds[best], own)  # the client's own where no swap helps
            gained = (numbers == own).double() - (numbers == other).double()
            pools = pools + gained[:, None] * moves[best]
            rounds = torch.where(place == client, other, torch.where((place == best) & (other != own), own, rounds))
        return rounds


def uneven(pools: Tensor) -> Tensor:
    """The squared distance between class mixes and the uniform one, ``[..., classes] -> [...]``."""
    return (pools / pools.sum(-1, keepdim=True) - 1 / pools.shape[-1]).square().sum(-1)


def _draws(key: Tensor, turn: Tensor, clients: int) -> Tensor:
    return streams.uniform(streams.fold(streams.fold(key, turn), torch.arange(clients, device=key.device)))


def _cut(draws: Tensor, turn: Tensor, active: int) -> Tensor:
    """The round of a turn of each client, from 0: rounds have ``active`` clients of all turns, one after another."""
    position = turn * len(draws) + draws.argsort(stable=True).argsort()
    return position // active - turn * len(draws) // active
