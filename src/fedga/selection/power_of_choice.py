"""Some clients are sampled as candidates, and those of them with the largest loss of the global model take part.

With ``candidates`` of 0 they are twice as many as take part. They are sampled uniformly, in the paper by their share of
samples. Every client evaluates the model before a round.
Cho, Wang and Joshi. Towards Understanding Biased Client Selection in Federated Learning. AISTATS 2022
(first as Client Selection in Federated Learning: Convergence Analysis and Power-of-Choice Selection Strategies. 2020).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedga.algorithms.base import option
from fedga.selection.base import Choice, Selection


@dataclass(frozen=True)
class PowerOfChoice(Selection):
    candidates: int = option(0, least=0, largest=10**6)

    citation: ClassVar[str] = "Cho et al. 2022"
    needs_losses: ClassVar[bool] = True
    reveals: ClassVar[str] = "every client's loss on its own data"

    def select(self, choice: Choice) -> Tensor:
        assert choice.losses is not None
        sampled = torch.where(choice.available, choice.draws, torch.inf).argsort(stable=True).argsort()
        candidate = sampled < (self.candidates or 2 * choice.active)
        return choice.smallest(torch.where(candidate, -choice.losses.double(), 1e100 * (1 + sampled.double())))
