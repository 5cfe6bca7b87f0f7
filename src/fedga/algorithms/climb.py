"""CLIMB: minimise the mean client loss subject to ``f_k - mean f <= ε`` for every client.

One dual variable per client. Its update counts ``1 + λ_k - mean λ`` fold, and ``λ_k`` grows while the client's loss is
above the mean: ``λ_k <- clip(λ_k + η_d (f_k - mean f - ε) / K, 0, 100)``.
Shen, Cervino, Hassani and Ribeiro. An Agnostic Approach to Federated Learning with Class Imbalance. ICLR 2022.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedga.algorithms.base import Algorithm, RoundResult, Sent, Setup, Tensors, option

LARGEST_DUAL = 100.0


@dataclass(frozen=True)
class CLIMB(Algorithm):
    epsilon: float = option(0.1, least=0, largest=1e6)
    dual_rate: float = option(0.1, least=0, largest=1e6)

    citation: ClassVar[str] = "Shen et al. 2022"
    stacks: ClassVar[bool] = True
    evaluates_all_clients: ClassVar[bool] = True
    uploads: ClassVar[tuple[Sent, ...]] = (Sent("survey", "1", "every client's loss on its own data"),)

    def server_state(self, setup: Setup) -> dict[str, Tensor]:
        return {"dual": torch.zeros(setup.num_clients, device=setup.params.device)}

    def weights(self, state: Tensors, clients: Tensor, shares: Tensor) -> Tensor:
        dual = state["dual"]
        return shares * (1 + dual[clients] - dual.mean())

    def update_server(self, state: Tensors, result: RoundResult) -> dict[str, Tensor]:
        assert result.survey is not None
        survey = result.survey
        excess = survey - survey.mean() - self.epsilon
        return {"dual": (state["dual"] + self.dual_rate * excess / len(survey)).clamp(0, LARGEST_DUAL)}
