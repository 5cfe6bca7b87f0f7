"""Who takes part in a round: a rule of its own, which any algorithm can be combined with.

A rule is written for one server, as pure functions that ``torch.func.vmap`` can map over many runs. Its defaults
together are uniform sampling; a rule overrides `select`, and keeps what it must remember in `state`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import ClassVar

import torch
from torch import Tensor

from fedga.algorithms.base import RoundResult, Server, Setup, Tensors


@dataclass(frozen=True)
class Choice:
    """What a rule may choose from."""

    round: int  # from 1
    state: Tensors  # what the rule keeps
    draws: Tensor  # [clients]: uniform in [0, 1), the same for every rule and algorithm of a seed
    available: Tensor  # [clients] bool: who is there; at least one is
    active: int  # how many to choose
    class_counts: Tensor | None = None  # [clients, classes], if the rule `needs_class_counts`
    losses: Tensor | None = None  # [clients]: of the global model on their own samples, if it `needs_losses`
    # [] int64: the same in all rounds of a seed, for draws of a rule's own (`fedga.common.streams`).
    key: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.int64))

    def smallest(self, scores: Tensor) -> Tensor:
        """The ``active`` clients with the smallest scores, ``[clients] -> [active]``; absent clients sort last."""
        largest = torch.finfo(torch.float64).max  # below what absent clients have, also where a score is not a number
        there = torch.where(self.available, scores.double().nan_to_num(nan=largest, posinf=largest), torch.inf)
        return torch.topk(there, self.active, largest=False, sorted=True).indices

    def one_by_one(self, score: Callable[[int, Tensor], Tensor]) -> Tensor:
        """``active`` clients, each the one with the smallest score given those before it; absent ones come last.

        ``score(number, taken)`` gives scores below 1e30, ``[clients]``; ``taken [clients]`` is 1 for those chosen.
        """
        taken, place, chosen = torch.zeros_like(self.draws), torch.arange(len(self.draws), device=self.draws.device), []
        for number in range(self.active):
            scores = torch.where(self.available, score(number, taken), 1e30) + 1e60 * taken
            chosen.append(scores.argmin())
            taken = taken + (place == chosen[-1])
        return torch.stack(chosen)


@dataclass(frozen=True)
class Selection:
    """Uniform sampling, and the base of all rules. A subclass's fields are its options (``bandit:explore=1``).

    Options are declared as those of an algorithm, by ``fedga.algorithms.option``.
    """

    citation: ClassVar[str] = ""
    needs_class_counts: ClassVar[bool] = False  # every client's samples of every class: it reveals them
    needs_losses: ClassVar[bool] = False  # every client's loss of the global model, before each round: it reveals it
    auxiliary_samples: ClassVar[int] = 0  # samples of each class that the server must hold, for `inspect`
    reads_head: ClassVar[bool] = False  # whether `inspect` reads the head: then it has to be trained and sent
    reveals: ClassVar[str] = "nothing about a client"

    def __post_init__(self) -> None:
        for each in fields(self):
            if "range" in each.metadata:
                each.metadata["range"].check(f"{type(self).__name__}: {each.name}", getattr(self, each.name))

    def state(self, setup: Setup) -> dict[str, Tensor]:
        """What the rule keeps between rounds, before the first one."""
        return {}

    def select(self, choice: Choice) -> Tensor:
        """The chosen clients, ``[active]``, all different; absent ones only where too few are there."""
        return choice.smallest(choice.draws)

    def inspect(self, server: Server, client_params: Tensor) -> dict[str, Tensor]:
        """A look at the returned models ``[active, parameters]`` before they are averaged: reports for `update`."""
        return {}

    def update(self, state: Tensors, result: RoundResult) -> dict[str, Tensor]:
        """What the rule keeps after a round."""
        return dict(state)
