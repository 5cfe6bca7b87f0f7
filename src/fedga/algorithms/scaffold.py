"""SCAFFOLD, option II: control variates pull every local step towards the average client's direction.

A step follows ``g - c_k + c``; afterwards ``c_k <- c_k - c + (w_global - w_k) / (steps · lr)``, and the server adds the
mean change of the clients' variates, scaled by the share of clients that took part. That quotient is the client's mean
gradient under plain SGD alone: with momentum 0.9 it is ten times too large, and runs collapse. Such runs are refused.
Karimireddy, Kale, Mohri, Reddi, Stich and Suresh. SCAFFOLD. ICML 2020, Eq. (3) to (5).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedga.algorithms.base import Algorithm, Client, RoundResult, Sent, Server, Setup, Tensors, Trained


@dataclass(frozen=True)
class SCAFFOLD(Algorithm):
    citation: ClassVar[str] = "Karimireddy et al. 2020"
    stacks: ClassVar[bool] = True
    plain_sgd_only: ClassVar[bool] = True
    downloads: ClassVar[tuple[Sent, ...]] = (Sent("control", "parameters"),)
    uploads: ClassVar[tuple[Sent, ...]] = (
        Sent("control_change", "parameters", "the client's mean gradient", summed=True),
    )
    client_state_spec: ClassVar[tuple[Sent, ...]] = (Sent("control", "parameters"),)

    def client_state(self, params: Tensor) -> dict[str, Tensor]:
        return {"control": torch.zeros_like(params)}

    def server_state(self, setup: Setup) -> dict[str, Tensor]:
        return {
            "control": torch.zeros_like(setup.params),
            "num_clients": torch.tensor(float(setup.num_clients), device=setup.params.device),
        }

    def broadcast(self, server: Server) -> dict[str, Tensor]:
        return {"control": server.state["control"]}

    def correct(self, gradient: Tensor, client: Client) -> Tensor:
        return gradient - client.client_state["control"] + client.received["control"]

    def report(self, trained: Trained) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        mean_gradient = (trained.global_params - trained.params) / (trained.steps * trained.lr)
        change = mean_gradient - trained.received["control"]
        return {"control_change": change}, {"control": trained.client_state["control"] + change}

    def update_server(self, state: Tensors, result: RoundResult) -> dict[str, Tensor]:
        share = len(result.clients) / state["num_clients"]
        return {**state, "control": state["control"] + share * result.reports["control_change"].mean(0)}
