"""MOON: pulls a sample's features towards those of the received model, and away from those of the client's last model.

``CE + μ · -log( e^{s_g} / (e^{s_g} + e^{s_p}) )``, where ``s_g`` and ``s_p`` are the cosines of the sample's features
with those that the received and the client's last model give it, divided by τ. Before its first round a client has no
last model, and the term is constant. Features are the input of the last linear layer, without the authors' projection
layers before it; normalisation layers of the last model use the received statistics.
Li, He and Song. Model-Contrastive Federated Learning. CVPR 2021.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedga.algorithms.base import Algorithm, Batch, Client, Sent, Trained, cross_entropy, option


@dataclass(frozen=True)
class MOON(Algorithm):
    mu: float = option(1.0, least=0, largest=1e6)
    tau: float = option(0.5, above=0, smallest=1e-6, largest=1e6)

    citation: ClassVar[str] = "Li et al. 2021"
    stacks: ClassVar[bool] = True
    needs_global_logits: ClassVar[bool] = True
    needs_features: ClassVar[bool] = True
    client_state_spec: ClassVar[tuple[Sent, ...]] = (Sent("last_model", "parameters"),)

    def client_state(self, params: Tensor) -> dict[str, Tensor]:
        return {"last_model": torch.zeros_like(params)}

    def earlier(self, client: Client) -> Tensor:
        last = client.client_state["last_model"]
        return torch.where(last.any(), last, client.global_params)

    def local_loss(self, batch: Batch) -> Tensor:
        assert batch.features is not None
        assert batch.global_features is not None
        assert batch.earlier_features is not None
        towards = F.cosine_similarity(batch.features, batch.global_features, dim=-1)
        away = F.cosine_similarity(batch.features, batch.earlier_features, dim=-1)
        return cross_entropy(batch.logits, batch.targets) + self.mu * F.softplus((away - towards) / self.tau)

    def report(self, trained: Trained) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return {}, {"last_model": trained.params}
