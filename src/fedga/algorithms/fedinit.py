"""FedInit: local training starts beyond the received model, away from where the client's last training ended.

``w_k <- w + β (w - last w_k)``; a client's first round is FedAvg's.
Sun, Shen and Tao. Understanding How Consistency Works in Federated Learning via Stage-wise Relaxed Initialization.
NeurIPS 2023, Algorithm 1.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedga.algorithms.base import Algorithm, Client, Sent, Trained, option


@dataclass(frozen=True)
class FedInit(Algorithm):
    beta: float = option(0.1, least=0, largest=10)

    citation: ClassVar[str] = "Sun et al. 2023"
    stacks: ClassVar[bool] = True
    client_state_spec: ClassVar[tuple[Sent, ...]] = (Sent("last", "parameters"), Sent("turns", "1"))

    def client_state(self, params: Tensor) -> dict[str, Tensor]:
        return {"last": torch.zeros_like(params), "turns": params.new_zeros(())}

    def start(self, client: Client) -> Tensor:
        away = client.global_params - client.client_state["last"]
        return client.global_params + torch.where(client.client_state["turns"] > 0, self.beta, 0.0) * away

    def report(self, trained: Trained) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return {}, {"last": trained.params, "turns": trained.client_state["turns"] + 1}
