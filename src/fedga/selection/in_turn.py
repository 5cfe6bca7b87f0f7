"""Every client once before any client twice, in an order that is sampled anew for every turn."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedga.algorithms.base import RoundResult, Setup, Tensors
from fedga.selection.base import Choice, Selection


@dataclass(frozen=True)
class InTurn(Selection):
    def state(self, setup: Setup) -> dict[str, Tensor]:
        return {"turns": torch.zeros(setup.num_clients, device=setup.params.device)}

    def select(self, choice: Choice) -> Tensor:
        return choice.smallest(choice.state["turns"] + choice.draws)  # draws are below 1: they only break ties

    def update(self, state: Tensors, result: RoundResult) -> dict[str, Tensor]:
        return {"turns": state["turns"] + F.one_hot(result.clients, len(state["turns"])).sum(0)}
