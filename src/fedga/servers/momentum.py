"""FedAvgM: ``v = 0.9 v + Δ; w += rate v``.

Hsu, Qi and Brown. Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification. 2019.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedga.algorithms.base import Tensors
from fedga.servers.base import ServerOptimizer

MOMENTUM = 0.9


@dataclass(frozen=True)
class Momentum(ServerOptimizer):
    citation: ClassVar[str] = "Hsu et al. 2019"

    def state(self, params: Tensor) -> dict[str, Tensor]:
        return {"first": torch.zeros_like(params), "second": params.new_zeros(0)}  # the latter as in version 0.1

    def step(self, params: Tensor, update: Tensor, state: Tensors, rate: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        velocity = MOMENTUM * state["first"] + update
        return params + rate * velocity, {**state, "first": velocity}
