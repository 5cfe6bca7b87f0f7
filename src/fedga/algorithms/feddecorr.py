"""FedDecorr: features that say different things, where skewed classes let them collapse into a few directions.

``CE + β ||K||²_F / d²``, where K is the correlation matrix ``[d, d]`` of the batch's features. The authors' program
leaves out the diagonal, which is constant, and takes n times as much for a batch of n: its β of 0.1 is 6.4 here for 64.
Shi, Liang, Zhang, Tan and Bai. Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous Federated
Learning. ICLR 2023.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedga.algorithms.base import Algorithm, Batch, cross_entropy, option

_TINY = 1e-8  # a variance below which a feature counts as constant


@dataclass(frozen=True)
class FedDecorr(Algorithm):
    beta: float = option(0.1, least=0, largest=1e6)

    citation: ClassVar[str] = "Shi et al. 2023"
    stacks: ClassVar[bool] = True
    needs_features: ClassVar[bool] = True

    def local_loss(self, batch: Batch) -> Tensor:
        """The batch's term is added to every sample's loss, so that their mean has it once."""
        assert batch.features is not None
        correlation = _squared_correlation(batch.features, batch.mask.to(batch.features.dtype))
        return cross_entropy(batch.logits, batch.targets) + self.beta * correlation[..., None]


def _squared_correlation(features: Tensor, mask: Tensor) -> Tensor:
    """Mean square of the correlations of all pairs of features, over the real samples of a batch, ``[...]``."""
    real = mask[..., None]
    count = real.sum(-2, keepdim=True).clamp(min=1)
    centred = (features - (features * real).sum(-2, keepdim=True) / count) * real
    standard = centred * (centred.square().sum(-2, keepdim=True) / count + _TINY).rsqrt()
    products = standard @ standard.mT / count  # of samples: as large, squared and added up, as that of features
    return products.square().sum((-2, -1)) / features.shape[-1] ** 2
