"""LDA head: after the last round the head is made anew in closed form, by linear discriminant analysis of the features.

``W_c = Σ^-1 μ_c`` and ``b_c = -½ μ_cᵀ Σ^-1 μ_c + log π_c`` with the class means μ_c, the covariance Σ within classes,
pooled over all clients, and the shares π_c of classes (``prior=uniform``: equal ones); what all classes have in common
is left out. A part ``shrinkage`` of Σ is replaced by its mean variance times the identity. ``base=NAME`` names the
algorithm that trains the network. The model averaged over rounds is left as it is.
Hastie, Tibshirani and Friedman. The Elements of Statistical Learning. 2009, Eq. (4.10).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedga.algorithms.base import Sent, Server, Tensors, Trained, option
from fedga.algorithms.refit import RefittedHead, logits_of_held, means_of
from fedga.errors import unknown_name

PRIORS = ("data", "uniform")


@dataclass(frozen=True)
class LDAHead(RefittedHead):
    shrinkage: float = option(0.1, least=0, most=1)
    prior: str = "data"

    citation: ClassVar[str] = "Hastie et al. 2009"
    stacks: ClassVar[bool] = True
    needs_second_moment: ClassVar[bool] = True
    final_uploads: ClassVar[tuple[Sent, ...]] = (
        *RefittedHead.final_uploads,
        Sent("second_moment", "features×features", "their second moment", summed=True),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prior not in PRIORS:
            raise unknown_name("prior of lda-head", str(self.prior), PRIORS)

    def final_report(self, client: Trained) -> dict[str, Tensor]:
        assert client.second_moment is not None
        return {**super().final_report(client), "second_moment": client.second_moment}

    def _refitted(self, server: Server, sums: Tensors) -> tuple[Tensor, Tensor]:
        counts, means = sums["class_counts"], means_of(sums)
        within = (sums["second_moment"] - sums["class_sums"].mT @ means) / counts.sum()
        spread = within.diagonal().mean() * torch.eye(len(within), dtype=within.dtype)
        covariance = (1 - self.shrinkage) * within + self.shrinkage * spread
        # What does not vary (a feature that never fires) has no say; in float32 it varies by rounding.
        centre = sums["class_sums"].sum(0) / counts.sum()
        weight = (means - centre) @ torch.linalg.pinv(covariance, rtol=1e-6, hermitian=True)
        prior = counts.clamp(min=1) if self.prior == "data" else torch.ones_like(counts)
        bias = (prior / prior.sum()).log() - (weight * (means + centre)).sum(1) / 2
        return weight, logits_of_held(counts, bias)
