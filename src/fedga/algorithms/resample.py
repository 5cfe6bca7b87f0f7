"""Class-balanced sampling on the client: a class is drawn in proportion to ``n_c^power`` of its samples.

``power = 0`` draws every class that a client has equally often, ``power = 1`` is FedAvg. An epoch is as long as the
client's data; with ``epoch=over`` as long as if every class had as many samples as the largest, with ``epoch=under`` as
the smallest. Samples are drawn with replacement. Missing classes stay missing.
Kang, Xie, Rohrbach, Yan, Gordo, Feng and Kalantidis. Decoupling Representation and Classifier. ICLR 2020, Eq. (1).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedga.algorithms.base import Algorithm, choice, option


@dataclass(frozen=True)
class Resample(Algorithm):
    power: float = option(0.0, least=0, most=1)
    epoch: str = choice("same", "over", "under")

    citation: ClassVar[str] = "Kang et al. 2020"
    stacks: ClassVar[bool] = True

    def class_rates(self, class_counts: Tensor) -> Tensor:
        return torch.where(class_counts > 0, class_counts.clamp(min=1) ** self.power, 0.0)

    def epoch_length(self, class_counts: Tensor) -> Tensor:
        if self.epoch == "same":
            return class_counts.sum()
        present = class_counts > 0
        smallest = torch.where(present, class_counts, torch.inf).amin()
        return present.sum() * (class_counts.amax() if self.epoch == "over" else smallest)
