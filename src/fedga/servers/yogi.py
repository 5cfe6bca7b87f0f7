"""FedYogi: FedAdam whose second moment moves by the sign of what is missing.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar and McMahan. Adaptive Federated Optimization. ICLR 2021,
Algorithm 2.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedga.servers.adam import BETAS, Adam


@dataclass(frozen=True)
class Yogi(Adam):
    def _second(self, second: Tensor, square: Tensor) -> Tensor:
        return second - (1 - BETAS[1]) * square * torch.sign(second - square)
