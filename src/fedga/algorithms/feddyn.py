"""FedDyn: a linear term per client makes the clients' minima agree with that of the mean loss.

A client minimises ``f_k(w) - <h_k, w> + α/2 ||w - w_t||²`` and keeps ``h_k <- h_k - α (w_k - w_t)``; the server keeps
``h <- h - α/K Σ (w_k - w_t)`` over the clients that took part, of K in all, and moves to ``mean w_k - h / α``.
Acar, Zhao, Matas, Mattina, Whatmough and Saligrama. Federated Learning Based on Dynamic Regularization. ICLR 2021,
Algorithm 1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedga.algorithms.base import Algorithm, Client, RoundResult, Sent, Server, Setup, Tensors, Trained, option


@dataclass(frozen=True)
class FedDyn(Algorithm):
    alpha: float = option(0.01, least=0, largest=1e6)

    citation: ClassVar[str] = "Acar et al. 2021"
    stacks: ClassVar[bool] = True
    client_state_spec: ClassVar[tuple[Sent, ...]] = (Sent("h", "parameters"),)

    def client_state(self, params: Tensor) -> dict[str, Tensor]:
        return {"h": torch.zeros_like(params)}

    def penalty(self, params: Tensor, global_params: Tensor) -> Tensor:
        return self.alpha / 2 * (params - global_params).square().sum()

    def correct(self, gradient: Tensor, client: Client) -> Tensor:
        return gradient - client.client_state["h"]

    def report(self, trained: Trained) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return {}, {"h": trained.client_state["h"] - self.alpha * (trained.params - trained.global_params)}

    def server_state(self, setup: Setup) -> dict[str, Tensor]:
        clients = torch.tensor(float(setup.num_clients), device=setup.params.device)
        return {"h": torch.zeros_like(setup.params), "num_clients": clients}

    def update_server(self, state: Tensors, result: RoundResult) -> dict[str, Tensor]:
        share = len(result.clients) / state["num_clients"]
        return {**state, "h": state["h"] - self.alpha * share * result.update}

    def aggregate(self, server: Server, result: RoundResult, step: Callable[[Tensor], Tensor]) -> Tensor:
        moved = step(result.update)
        return moved - server.state["h"] / self.alpha if self.alpha else moved
