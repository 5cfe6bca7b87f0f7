"""FedAdagrad: a step as of Adam whose second moment is the sum of all squares, without momentum.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar and McMahan. Adaptive Federated Optimization. ICLR 2021,
Algorithm 2 with β1 = 0, as in their experiments.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedga.algorithms.base import Tensors
from fedga.servers.adam import TAU
from fedga.servers.base import ServerOptimizer


@dataclass(frozen=True)
class Adagrad(ServerOptimizer):
    citation: ClassVar[str] = "Reddi et al. 2021"
    default_rate: ClassVar[float] = 0.1

    def state(self, params: Tensor) -> dict[str, Tensor]:
        return {"second": torch.full_like(params, TAU**2)}

    def step(self, params: Tensor, update: Tensor, state: Tensors, rate: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        second = state["second"] + update.square()
        return params + rate * update / (second.sqrt() + TAU), {"second": second}
