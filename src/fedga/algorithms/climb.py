"""CLIMB: minimise the mean client loss subject to ``f_k - mean f <= ε`` for every client.

One dual variable per client. Its update counts ``1 + λ_k - mean λ`` fold, and ``λ_k`` grows while the client's loss is
above the mean: ``λ_k <- clip(λ_k + η_d (f_k - mean f - ε) / K, 0, 100)``.
Shen, Cervino, Hassani and Ribeiro. An Agnostic Approach to Federated Learning with Class Imbalance. ICLR 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedga.algorithms.base import Algorithm, Sent, Tensors, option

LARGEST_DUAL = 100.0


@dataclass(frozen=True)
class CLIMB(Algorithm):
    epsilon: float = option(0.1, least=0, largest=1e6)
    dual_rate: float = option(0.1, least=0, largest=1e6)

    citation: ClassVar[str] = "Shen et al. 2022"
    stacks: ClassVar[bool] = True
    surveys: ClassVar[bool] = True
    uploads: ClassVar[tuple[Sent, ...]] = (Sent("survey", "1", "every client's loss on its own data"),)

    def server_state(self, params: Tensor, num_clients: int, num_classes: int) -> dict[str, Tensor]:
        return {"dual": torch.zeros(num_clients, device=params.device)}

    def weights(self, state: Tensors, clients: Tensor, shares: Tensor) -> Tensor:
        dual = state["dual"]
        return shares * (1 + dual[clients] - dual.mean())

    def update_server(
        self, state: Tensors, clients: Tensor, reports: Tensors, survey: Tensor | None
    ) -> dict[str, Tensor]:
        assert survey is not None
        excess = survey - survey.mean() - self.epsilon
        return {"dual": (state["dual"] + self.dual_rate * excess / len(survey)).clamp(0, LARGEST_DUAL)}
