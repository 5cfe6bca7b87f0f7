"""FedSAM: every local step follows the gradient at the worst point nearby, which leads to flat minima.

``g(w + ρ g(w) / ||g(w)||)``; two passes a step.
Qu, Li, Duan, Liu, Tang and Lu. Generalized Federated Learning via Sharpness Aware Minimization. ICML 2022, Algorithm 1
(and Caldarola, Caputo and Ciccone, ECCV 2022).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedga.algorithms.base import Algorithm, Client, option


@dataclass(frozen=True)
class FedSAM(Algorithm):
    rho: float = option(0.05, least=0, largest=1e3)

    citation: ClassVar[str] = "Qu et al. 2022"
    stacks: ClassVar[bool] = True

    def gradient(self, at: Callable[[Tensor], Tensor], params: Tensor, client: Client) -> Tensor:
        gradient = at(params)
        return at(params + self.rho * gradient / (gradient.norm() + 1e-12))
