"""Re-weighting: cross-entropy times a weight per class, the larger the fewer samples of it there are.

``a_y · CE`` with ``a_c ∝ n_c^-power``, so that ``power = 1`` is inverse frequency, and with mean 1 over the samples
counted. `reweight` counts the client's own samples, and so knows nothing of the classes it lacks. `reweight-global`
adds those of the federation: clients send their counts, and the server the sum over all rounds so far, in which a
client counts as often as it took part.
Elkan. The Foundations of Cost-Sensitive Learning. IJCAI 2001.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedga.algorithms.base import (
    Algorithm,
    Batch,
    RoundResult,
    Sent,
    Server,
    Setup,
    Tensors,
    Trained,
    cross_entropy,
    option,
)
from fedga.losses.imbalance import class_weights


@dataclass(frozen=True)
class Reweight(Algorithm):
    power: float = option(1.0, least=0, most=2)

    citation: ClassVar[str] = "Elkan 2001"
    stacks: ClassVar[bool] = True

    def local_loss(self, batch: Batch) -> Tensor:
        weights = class_weights(self._counts(batch), power=self.power).expand_as(batch.logits)
        weight = weights.gather(-1, batch.targets.unsqueeze(-1)).squeeze(-1)
        return weight * cross_entropy(batch.logits, batch.targets)

    def _counts(self, batch: Batch) -> Tensor:
        return batch.class_counts


@dataclass(frozen=True)
class ReweightGlobal(Reweight):
    downloads: ClassVar[tuple[Sent, ...]] = (Sent("class_sums", "classes", "class counts summed over clients"),)
    uploads: ClassVar[tuple[Sent, ...]] = (Sent("class_counts", "classes", "the client's class counts", summed=True),)

    def server_state(self, setup: Setup) -> dict[str, Tensor]:
        return {"class_sums": torch.zeros(setup.num_classes, device=setup.params.device)}

    def broadcast(self, server: Server) -> dict[str, Tensor]:
        return {"class_sums": server.state["class_sums"]}

    def report(self, trained: Trained) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return {"class_counts": trained.class_counts}, {}

    def update_server(self, state: Tensors, result: RoundResult) -> dict[str, Tensor]:
        return {"class_sums": state["class_sums"] + result.reports["class_counts"].sum(0)}

    def _counts(self, batch: Batch) -> Tensor:
        """With the client's own: before anybody has sent counts, and where nobody else has a class."""
        return batch.received["class_sums"] + batch.class_counts
