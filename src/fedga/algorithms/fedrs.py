"""FedRS: restricted softmax, cross-entropy of logits that are scaled down for the classes a client lacks.

``CE(s z, y)`` with ``s_c = 1`` for a class the client has and ``α`` for one it lacks; with ``form=soft``, as in the
authors' program, ``s_c = α + (1 - α) n_c / max n``. ``α = 1`` is FedAvg.
Li and Zhan. FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data. KDD 2021.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedga.algorithms.base import Algorithm, Batch, choice, cross_entropy, option


@dataclass(frozen=True)
class FedRS(Algorithm):
    alpha: float = option(0.5, least=0, most=1)
    form: str = choice("hard", "soft")

    citation: ClassVar[str] = "Li and Zhan 2021"
    stacks: ClassVar[bool] = True

    def local_loss(self, batch: Batch) -> Tensor:
        counts = batch.class_counts
        if self.form == "soft":
            scale = self.alpha + (1 - self.alpha) * counts / counts.amax(-1, keepdim=True).clamp(min=1)
        else:
            scale = torch.where(counts > 0, 1.0, self.alpha)
        return cross_entropy(scale * batch.logits, batch.targets)
