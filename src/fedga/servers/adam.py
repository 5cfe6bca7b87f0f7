"""FedAdam: the clients' mean update as the gradient of Adam, without bias correction.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar and McMahan. Adaptive Federated Optimization. ICLR 2021,
Algorithm 2.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedga.algorithms.base import Tensors
from fedga.servers.base import ServerOptimizer

BETAS, TAU = (0.9, 0.99), 1e-3


@dataclass(frozen=True)
class Adam(ServerOptimizer):
    citation: ClassVar[str] = "Reddi et al. 2021"
    default_rate: ClassVar[float] = 0.01

    def state(self, params: Tensor) -> dict[str, Tensor]:
        return {"first": torch.zeros_like(params), "second": torch.full_like(params, TAU**2)}

    def step(self, params: Tensor, update: Tensor, state: Tensors, rate: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        first = BETAS[0] * state["first"] + (1 - BETAS[0]) * update
        second = self._second(state["second"], update.square())
        return params + rate * first / (second.sqrt() + TAU), {"first": first, "second": second}

    def _second(self, second: Tensor, square: Tensor) -> Tensor:
        return BETAS[1] * second + (1 - BETAS[1]) * square
