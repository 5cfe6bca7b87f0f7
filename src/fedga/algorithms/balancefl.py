"""BalanceFL: class-balanced sampling, cross-entropy over the classes a client has, distillation over those it lacks.

``CE(z over present, y) + λ KL( softmax(z_global over absent / T) || softmax(z over absent / T) ) - ε H``, where H is
the entropy of ``softmax(z over present)``. Parts can be left out: ``power=1`` samples as FedAvg does, ``inherit=0``,
``entropy=0``; present are the classes of the client, of the batch (``present=batch``, as in the authors' program), or
all. H is a mean over the batch, where theirs is 0.002 times the sum over 64. The received model is in evaluation mode,
where theirs goes on moving its statistics. Their augmentation of features is left out.
Shuai, Shen, Jiang, Zhao, Yan and Xing. BalanceFL: Addressing Class Imbalance in Long-Tail Federated Learning.
IPSN 2022.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedga.algorithms.base import Algorithm, Batch, among, choice, cross_entropy, option
from fedga.losses.calibration import batch_class_counts


@dataclass(frozen=True)
class BalanceFL(Algorithm):
    power: float = option(0.0, least=0, most=1)
    inherit: float = option(1.0, least=0, largest=1e6)
    temperature: float = option(2.0, above=0, smallest=1e-6, largest=1e6)
    entropy: float = option(0.128, least=0, largest=1e6)
    present: str = choice("client", "batch", "all")

    citation: ClassVar[str] = "Shuai et al. 2022"
    stacks: ClassVar[bool] = True
    needs_global_logits: ClassVar[bool] = True

    def class_rates(self, class_counts: Tensor) -> Tensor:
        return torch.where(class_counts > 0, class_counts.clamp(min=1) ** self.power, 0.0)

    def local_loss(self, batch: Batch) -> Tensor:
        assert batch.global_logits is not None
        present = self._present(batch)
        held = among(batch.logits, present)
        log_p = F.log_softmax(held, -1)
        entropy = -(log_p.exp() * log_p).sum(-1)
        teacher, student = (
            F.log_softmax(among(z / self.temperature, ~present), -1) for z in (batch.global_logits, batch.logits)
        )
        distance = (teacher.exp() * (teacher - student)).sum(-1)
        return cross_entropy(held, batch.targets) + self.inherit * distance - self.entropy * entropy

    def _present(self, batch: Batch) -> Tensor:
        if self.present == "all":
            return torch.ones_like(batch.logits, dtype=torch.bool)
        if self.present == "batch":
            return batch_class_counts(batch.targets, batch.logits.shape[-1], batch.mask).unsqueeze(-2) > 0
        return batch.class_counts > 0
