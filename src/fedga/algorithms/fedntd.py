"""FedNTD: distils the received model's opinion of the not-true classes.

``CE + β τ² KL( softmax(z_global \\ y / τ) || softmax(z \\ y / τ) )``, where ``\\ y`` leaves the true class out.
With two classes one is left, whose share is 1 for both models: the distance is 0 and FedNTD is FedAvg.
Lee, Jeong, Shin, Bae and Yun. Preservation of the Global Knowledge by Not-True Distillation. NeurIPS 2022, Eq. (4).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from fedga.algorithms.base import Algorithm, Batch, among, cross_entropy, option


@dataclass(frozen=True)
class FedNTD(Algorithm):
    beta: float = option(1.0, least=0, largest=1e6)
    tau: float = option(1.0, above=0, smallest=1e-6, largest=1e6)

    citation: ClassVar[str] = "Lee et al. 2022"
    stacks: ClassVar[bool] = True
    needs_global_logits: ClassVar[bool] = True

    def local_loss(self, batch: Batch) -> Tensor:
        assert batch.global_logits is not None
        student = self._not_true(batch.logits, batch.targets)
        teacher = self._not_true(batch.global_logits, batch.targets)
        distance = (teacher.exp() * (teacher - student)).sum(-1)
        return cross_entropy(batch.logits, batch.targets) + self.beta * self.tau**2 * distance

    def _not_true(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Log-probabilities over the other classes."""
        others = ~F.one_hot(targets, logits.shape[-1]).bool()
        return F.log_softmax(among(logits / self.tau, others), dim=-1)
