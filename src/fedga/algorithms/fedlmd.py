"""FedLMD: distils the received model's opinion of classes of which the client has few samples or none.

``CE + β τ² KL( softmax(z_global \\ y, majority / τ) || softmax(z \\ y / τ) )``, where ``\\`` leaves classes out: the
true one, and in the teacher those of which the client has more samples than of the mean class. Where no class is left
in the teacher the term is 0. On equal counts it is FedNTD.
Lu, Li, Bao, Wang, Qian and Ge. Federated Learning with Label-Masking Distillation. ACM Multimedia 2023.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedga.algorithms.base import Algorithm, Batch, among, cross_entropy, option


@dataclass(frozen=True)
class FedLMD(Algorithm):
    beta: float = option(1.0, least=0, largest=1e6)
    tau: float = option(1.0, above=0, smallest=1e-6, largest=1e6)

    citation: ClassVar[str] = "Lu et al. 2023"
    stacks: ClassVar[bool] = True
    needs_global_logits: ClassVar[bool] = True

    def local_loss(self, batch: Batch) -> Tensor:
        assert batch.global_logits is not None
        others = ~F.one_hot(batch.targets, batch.logits.shape[-1]).bool()
        taught = others & (batch.class_counts <= batch.class_counts.mean(-1, keepdim=True))
        student = F.log_softmax(among(batch.logits / self.tau, others), -1)
        teacher = F.log_softmax(among(batch.global_logits / self.tau, taught), -1)
        distance = torch.where(taught, teacher.exp() * (teacher - student), 0.0).sum(-1)
        return cross_entropy(batch.logits, batch.targets) + self.beta * self.tau**2 * distance
