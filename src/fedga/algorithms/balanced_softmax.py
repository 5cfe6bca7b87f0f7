"""Balanced softmax: cross-entropy of logits that are raised by the log of the client's class shares, in training only.

``CE(z + τ log π, y)`` with ``π_c = (n_c + 1) / Σ (n_i + 1)``: one sample more than there are, so that a missing class
has a share. The literature has ``τ = 1``; half of that was best here on CIFAR-10 under skew.
Ren, Yu, Sheng, Ma, Zhao, Yi and Li. Balanced Meta-Softmax for Long-Tailed Visual Recognition. NeurIPS 2020;
Menon, Jayasumana, Rawat, Jain, Veit and Kumar. Long-Tail Learning via Logit Adjustment. ICLR 2021, Eq. (10).
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedga.algorithms.base import Algorithm, Batch, option
from fedga.losses.imbalance import balanced_softmax_loss


@dataclass(frozen=True)
class BalancedSoftmax(Algorithm):
    tau: float = option(0.5, least=0, largest=1e6)

    citation: ClassVar[str] = "Ren et al. 2020"
    stacks: ClassVar[bool] = True

    def local_loss(self, batch: Batch) -> Tensor:
        return balanced_softmax_loss(batch.logits, batch.targets, batch.class_counts, tau=self.tau, reduction="none")
