"""Fed-Focal: focal loss on the clients; a client whose loss is higher counts for more on the server.

The paper chooses among the clients' contributions by a sampling framework and gives no rule for it. Ours is an
interpretation: before a round every client reports its mean focal loss ``ℓ_k`` of the global model, and in the next
round client k has the weight ``share_k ℓ_k^κ / Σ share_j ℓ_j^κ``. The first round goes by shares, ``κ = 0`` always.
Sarkar, Narang and Rai. Fed-Focal Loss for Imbalanced Data Classification in Federated Learning. arXiv 2011.06283, 2020.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedga.algorithms.base import Batch, RoundResult, Sent, Setup, Tensors, option
from fedga.algorithms.focal import Focal
from fedga.losses.imbalance import focal_loss


@dataclass(frozen=True)
class FedFocal(Focal):
    kappa: float = option(1.0, least=0, largest=10)

    citation: ClassVar[str] = "Sarkar et al. 2020"
    stacks: ClassVar[bool] = True
    evaluates_all_clients: ClassVar[bool] = True
    uploads: ClassVar[tuple[Sent, ...]] = (Sent("survey", "1", "every client's loss on its own data"),)

    def survey(self, batch: Batch) -> Tensor:
        return focal_loss(batch.logits, batch.targets, gamma=self.gamma, reduction="none")

    def server_state(self, setup: Setup) -> dict[str, Tensor]:
        return {"losses": torch.ones(setup.num_clients, device=setup.params.device)}

    def weights(self, state: Tensors, clients: Tensor, shares: Tensor) -> Tensor:
        losses = state["losses"][clients].clamp(min=1e-12)
        weighed = shares * (losses / losses.amax()) ** self.kappa
        return weighed / weighed.sum()

    def update_server(self, state: Tensors, result: RoundResult) -> dict[str, Tensor]:
        assert result.survey is not None
        return {"losses": result.survey}
