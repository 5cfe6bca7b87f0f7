"""FedACG: clients start from where the server's momentum will carry the model, and are held near that point.

The server keeps ``m <- λ m + Δ`` and moves to ``w <- w + m``; a client starts at ``w + λ m``, minimises
``f_k(w_k) + μ/2 ||w_k - (w + λ m)||²``, and ``Δ`` is the mean of ``w_k - (w + λ m)``. The model that is evaluated is
``w``, so that ``m`` travels beside it (the authors send the sum alone). This momentum takes the place of ``--server``
and ``--server-rate``, which have no effect here.
Kim, Kim and Han. Communication-Efficient Federated Learning with Accelerated Client Gradient. CVPR 2024, Algorithm 1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedga.algorithms.base import Algorithm, Client, RoundResult, Sent, Server, Setup, Tensors, option


@dataclass(frozen=True)
class FedACG(Algorithm):
    momentum: float = option(0.85, least=0, below=1)  # λ
    mu: float = option(0.001, least=0, largest=1e6)

    citation: ClassVar[str] = "Kim et al. 2024"
    stacks: ClassVar[bool] = True
    downloads: ClassVar[tuple[Sent, ...]] = (Sent("momentum", "parameters"),)

    def server_state(self, setup: Setup) -> dict[str, Tensor]:
        return {"momentum": torch.zeros_like(setup.params)}

    def broadcast(self, server: Server) -> dict[str, Tensor]:
        return {"momentum": server.state["momentum"]}

    def start(self, client: Client) -> Tensor:
        return client.global_params + self.momentum * client.received["momentum"]

    def gradient(self, at: Callable[[Tensor], Tensor], params: Tensor, client: Client) -> Tensor:
        return at(params) + self.mu * (params - self.start(client))

    def update_server(self, state: Tensors, result: RoundResult) -> dict[str, Tensor]:
        return {"momentum": result.update}  # of w_k - w, which is λ m + Δ

    def aggregate(self, server: Server, result: RoundResult, step: Callable[[Tensor], Tensor]) -> Tensor:
        return server.params + result.update
