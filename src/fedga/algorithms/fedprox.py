"""FedProx: cross-entropy plus a pull towards the received model, ``μ/2 · ||w - w_global||²``.

Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith. Federated Optimization in Heterogeneous Networks. MLSys 2020, Eq. (2).
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedga.algorithms.base import Algorithm, option


@dataclass(frozen=True)
class FedProx(Algorithm):
    mu: float = option(0.001, least=0, largest=1e6)

    citation: ClassVar[str] = "Li et al. 2020"
    stacks: ClassVar[bool] = True

    def penalty(self, params: Tensor, global_params: Tensor) -> Tensor:
        return self.mu / 2 * (params - global_params).square().sum()
