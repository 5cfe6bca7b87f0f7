"""FedNH: a head of class prototypes that nobody trains; the server moves them towards the clients' class means.

Logits are ``scale · <h / ||h||, W_c>`` with unit rows ``W_c``. A client sends ``n_c μ_c`` after training, with ``μ_c``
the normalised mean of its normalised features of class c; ``W_c <- normalise(ρ W_c + (1-ρ) normalise(Σ_k n_kc μ_kc))``.
The scale is trained in the authors' program and fixed here. The first prototypes are orthonormal where they can be.
Dai, Chen, Li, Heinecke, Sun and Xu. Tackling Data Heterogeneity in Federated Learning with Class Prototypes. AAAI 2023.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedga.algorithms.base import Algorithm, RoundResult, Sent, Server, Setup, Tensors, Trained, option
from fedga.algorithms.frames import orthonormal_rows
from fedga.algorithms.parameters import Parameters


@dataclass(frozen=True)
class FedNH(Algorithm):
    rho: float = option(0.9, least=0, most=1)
    scale: float = option(10.0, above=0, smallest=1e-6, largest=1e6)

    citation: ClassVar[str] = "Dai et al. 2023"
    needs_class_features: ClassVar[bool] = True
    downloads: ClassVar[tuple[Sent, ...]] = (Sent("prototypes", "classes×features", "class means over all clients"),)
    uploads: ClassVar[tuple[Sent, ...]] = (
        Sent("class_sums", "classes×features", "the client's class counts and mean features", summed=True),
    )

    def moves(self, parameters: Parameters) -> Collection[str]:
        return [name for name in parameters.shapes if name not in parameters.head]

    def head(self, features: Tensor, params: Tensors, received: Tensors) -> Tensor:
        return self.scale * F.normalize(features, dim=-1) @ received["prototypes"].mT

    def embed(self, features: Tensor) -> Tensor:
        return F.normalize(features, dim=-1)

    def report(self, trained: Trained) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        assert trained.class_features is not None
        return {"class_sums": trained.class_counts[:, None] * F.normalize(trained.class_features, dim=-1)}, {}

    def server_state(self, setup: Setup) -> dict[str, Tensor]:
        rows = orthonormal_rows(setup.num_classes, setup.parameters.features or 1)
        return {"prototypes": F.normalize(rows, dim=-1).to(setup.params)}

    def broadcast(self, server: Server) -> dict[str, Tensor]:
        return {"prototypes": server.state["prototypes"]}

    def update_server(self, state: Tensors, result: RoundResult) -> dict[str, Tensor]:
        direction = F.normalize(result.reports["class_sums"].sum(0), dim=-1)
        moved = F.normalize(self.rho * state["prototypes"] + (1 - self.rho) * direction, dim=-1)
        return {"prototypes": torch.where(direction.any(-1, keepdim=True), moved, state["prototypes"])}
