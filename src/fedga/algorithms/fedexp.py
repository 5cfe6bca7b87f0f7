"""FedExP: the server's step is the longer, the more the clients' updates point in different directions.

The mean update goes into the server's step ``max(1, Σ_k ||Δ_k||² / (2 M (||mean Δ||² + ε)))`` times, with M the number
of clients in the round. The mean of the squares is over clients, so that their sum is all that the server needs.
Jhunjhunwala, Wang and Joshi. FedExP: Speeding Up Federated Averaging via Extrapolation. ICLR 2023, Algorithm 1; they
evaluate the mean of the last two models, here ``--server-average`` is such a mean.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedga.algorithms.base import Algorithm, RoundResult, Sent, Server, Trained, option


@dataclass(frozen=True)
class FedExP(Algorithm):
    epsilon: float = option(0.001, above=0, smallest=1e-12, largest=1e12)

    citation: ClassVar[str] = "Jhunjhunwala et al. 2023"
    stacks: ClassVar[bool] = True
    uploads: ClassVar[tuple[Sent, ...]] = (Sent("square", "1", "how far its model moved", summed=True),)

    def report(self, trained: Trained) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return {"square": (trained.params - trained.global_params).square().sum()}, {}

    def aggregate(self, server: Server, result: RoundResult, step: Callable[[Tensor], Tensor]) -> Tensor:
        ratio = result.reports["square"].mean() / (result.update.square().sum() + self.epsilon)
        return step((ratio / 2).clamp(min=1) * result.update)
