"""FedLESAM: every local step follows the gradient at a point that the global model came from, a guess at the worst one.

``g(w + ρ (w_old - w_t) / ||w_old - w_t||)`` with ``w_t`` the received model and ``w_old`` the one that the client
received when it last took part, which it keeps; one pass a step. A client's first round is FedAvg's.
Fan, Hu, Yao, Niu, Zhang, Sugiyama and Wang. Locally Estimated Global Perturbations are Better than Local Perturbations
for Federated Sharpness-aware Minimization. ICML 2024, Algorithm 1 (their program takes the server's last step instead).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedga.algorithms.base import Algorithm, Client, Sent, Trained, option


@dataclass(frozen=True)
class FedLESAM(Algorithm):
    rho: float = option(0.05, least=0, largest=1e3)

    citation: ClassVar[str] = "Fan et al. 2024"
    stacks: ClassVar[bool] = True
    client_state_spec: ClassVar[tuple[Sent, ...]] = (Sent("received", "parameters"), Sent("turns", "1"))

    def client_state(self, params: Tensor) -> dict[str, Tensor]:
        return {"received": torch.zeros_like(params), "turns": params.new_zeros(())}

    def gradient(self, at: Callable[[Tensor], Tensor], params: Tensor, client: Client) -> Tensor:
        back = client.client_state["received"] - client.global_params
        reach = torch.where(client.client_state["turns"] > 0, self.rho, 0.0)
        return at(params + reach * back / (back.norm() + 1e-12))

    def report(self, trained: Trained) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return {}, {"received": trained.global_params, "turns": trained.client_state["turns"] + 1}
