"""FedVLS: balanced softmax, distillation over the classes a client lacks, and a penalty on logits of other classes.

``CE(z + log π, y) + λ KL( softmax(z_global over missing) || softmax(z over missing) ) + μ R`` with the client's class
shares π; λ is ``distil`` and μ ``suppress``. Both softmaxes are over the missing classes alone, so that a client which
lacks at most one class has no second term. As in the authors' program, over a batch of B samples
``R = Σ_c π_c log( 1/B Σ_i exp u_ic )``, where ``u_ic = z_ic - log(C π_c)``, and 0 where c is the class of sample i.
Guo, Ding, Liang, He, Wang and Tan. Exploring Vacant Classes in Label-Skewed Federated Learning. AAAI 2025.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedga.algorithms.base import Algorithm, Batch, among, cross_entropy, option

LEAST = 1e-9  # added to the share of a class, which may be 0


@dataclass(frozen=True)
class FedVLS(Algorithm):
    distil: float = option(0.1, least=0, largest=1e6)
    suppress: float = option(0.005, least=0, largest=1e6)

    citation: ClassVar[str] = "Guo et al. 2025"
    stacks: ClassVar[bool] = True
    needs_global_logits: ClassVar[bool] = True

    def local_loss(self, batch: Batch) -> Tensor:
        assert batch.global_logits is not None
        share = batch.class_counts / batch.class_counts.sum(-1, keepdim=True).clamp(min=1)
        log_share = torch.log(share + LEAST)
        missing = batch.class_counts == 0
        student, teacher = (F.log_softmax(among(z, missing), -1) for z in (batch.logits, batch.global_logits))
        distance = (teacher.exp() * (teacher - student)).sum(-1)
        calibrated = cross_entropy(batch.logits + log_share, batch.targets)
        return calibrated + self.distil * distance + self.suppress * self._others(batch, share, log_share)

    def _others(self, batch: Batch, share: Tensor, log_share: Tensor) -> Tensor:
        """``R``, the same for every sample: ``[1]``."""
        classes = batch.logits.shape[-1]
        excess = batch.logits - log_share - math.log(classes)
        excess = torch.where(F.one_hot(batch.targets, classes).bool(), 0.0, excess)
        real = batch.mask.unsqueeze(-1)
        total = torch.logsumexp(among(excess, real > 0), dim=-2, keepdim=True)
        mean = total - torch.log(real.sum(-2, keepdim=True).clamp(min=1))
        return (share * mean).sum(-1)
