"""Class-balanced loss: cross-entropy weighted by the effective number of samples of each class.

``w_y · CE`` with ``w_c ∝ (1 - β) / (1 - β^n_c)`` of the client's counts. Missing classes are left out and the mean
weight of the client's samples is 1, where the paper scales the weights of all classes to sum to their number.
``β = 0`` is FedAvg, and β near 1 inverse frequency: the paper's .9999 is that for all but the largest clients.
Cui, Jia, Lin, Song and Belongie. Class-Balanced Loss Based on Effective Number of Samples. CVPR 2019.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedga.algorithms.base import Algorithm, Batch, cross_entropy, option
from fedga.losses.imbalance import class_weights


@dataclass(frozen=True)
class ClassBalanced(Algorithm):
    beta: float = option(0.99, least=0, below=1)

    citation: ClassVar[str] = "Cui et al. 2019"
    stacks: ClassVar[bool] = True

    def local_loss(self, batch: Batch) -> Tensor:
        weights = class_weights(batch.class_counts, beta=self.beta).expand_as(batch.logits)
        weight = weights.gather(-1, batch.targets.unsqueeze(-1)).squeeze(-1)
        return weight * cross_entropy(batch.logits, batch.targets)
