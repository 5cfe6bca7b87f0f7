"""Clients chosen one after another so that the classes of all of them together are as even as they can be.

The first is sampled; each further one is the client that brings the label mix of the chosen nearest to the uniform
one, in squared distance (QCID), as in Zhang, Wang, Zhang and Li. Fed-CBS. ICML 2023, Eq. (4), without its random draws.
A client's turns count against it (``patience``): pure greed starves clients.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedga.algorithms.base import option
from fedga.selection.base import Choice
from fedga.selection.in_turn import InTurn


@dataclass(frozen=True)
class Balanced(InTurn):
    patience: float = option(1.0, least=0, largest=1e6)  # distance that a turn more than the others' weighs

    citation: ClassVar[str] = "Zhang et al. 2023"
    needs_class_counts: ClassVar[bool] = True
    reveals: ClassVar[str] = "every client's class counts"

    def select(self, choice: Choice) -> Tensor:
        assert choice.class_counts is not None
        counts, turns = choice.class_counts.double(), choice.state["turns"].double()

        def score(number: int, taken: Tensor) -> Tensor:
            if not number:
                return turns + choice.draws
            mix = taken @ counts + counts
            distance = (mix / mix.sum(-1, keepdim=True) - 1 / counts.shape[-1]).square().sum(-1)
            return distance + self.patience * turns + 1e-9 * choice.draws

        return choice.one_by_one(score)
