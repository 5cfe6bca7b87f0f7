"""FedGA: gradient alignment through calibrated labels, Eq. (10) of the paper.

``CE(p, q)`` with ``q_y = 1`` and ``q_i = (N_y - N_i) / N_y · p_i`` for the other classes, held fixed. Its gradient is
that of ``-log p_y + λ Σ_i ((N_i / N_y)^γ - 1) p_i``, λ (``strength``) and γ (``power``) being 1. A class of which there
are more samples than of y has a negative label, which is neither clamped nor normalised. `fedga` counts the client's
samples, `fedga-batch` those of each batch, as the authors' program does. The loss is in ``fedga.losses.calibration``.
Xiao, Zuo and Wang. FedGA: Federated Learning with Gradient Alignment for Error Asymmetry Mitigation. AAAI 2025.
"""

from dataclasses import dataclass
from typing import ClassVar, get_args

from torch import Tensor

from fedga.algorithms.base import Algorithm, Batch, option
from fedga.errors import unknown_name
from fedga.losses.calibration import Variant, batch_class_counts, ga_loss


@dataclass(frozen=True)
class FedGA(Algorithm):
    """Counts are the client's label counts: they never leave the client."""

    strength: float = option(1.0, least=0, largest=1e6)
    power: float = option(1.0, least=0, largest=10)  # counts 1,000 times apart, to the 10th: 1e30
    variant: Variant = "soft"

    citation: ClassVar[str] = "Xiao et al. 2025"
    stacks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variant not in get_args(Variant):
            raise unknown_name("variant of fedga", str(self.variant), get_args(Variant))

    def local_loss(self, batch: Batch) -> Tensor:
        return ga_loss(
            batch.logits,
            batch.targets,
            self.class_counts(batch),
            strength=self.strength,
            power=self.power,
            variant=self.variant,
            reduction="none",
        )

    def class_counts(self, batch: Batch) -> Tensor:
        return batch.class_counts


@dataclass(frozen=True)
class FedGABatch(FedGA):
    """The variant of the authors' program: label counts of each mini-batch."""

    stacks: ClassVar[bool] = True

    def class_counts(self, batch: Batch) -> Tensor:
        return batch_class_counts(batch.targets, batch.logits.shape[-1], batch.mask).unsqueeze(-2)
