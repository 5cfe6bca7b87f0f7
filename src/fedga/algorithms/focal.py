"""Focal loss: samples that the model gets right count for less.

``-a_y (1 - p_y)^γ log p_y`` with ``p = softmax(z)``; ``γ = 0`` is cross-entropy. The weights ``a`` are 1, or with
``weighting=inverse`` those of `reweight`, with ``weighting=effective`` those of `class-balanced`.
Lin, Goyal, Girshick, He and Dollár. Focal Loss for Dense Object Detection. ICCV 2017, Eq. (5).
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedga.algorithms.base import Algorithm, Batch, choice, option
from fedga.losses.imbalance import class_weights, focal_loss

BETA = 0.99  # of the effective number of samples


@dataclass(frozen=True)
class Focal(Algorithm):
    gamma: float = option(2.0, least=0, largest=100)
    weighting: str = choice("none", "inverse", "effective")

    citation: ClassVar[str] = "Lin et al. 2017"
    stacks: ClassVar[bool] = True

    def local_loss(self, batch: Batch) -> Tensor:
        weight = None
        if self.weighting != "none":
            weight = class_weights(batch.class_counts, beta=BETA if self.weighting == "effective" else None)
        return focal_loss(batch.logits, batch.targets, gamma=self.gamma, weight=weight, reduction="none")
