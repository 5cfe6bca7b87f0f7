"""FedLC: cross-entropy of logits that are lowered the more, the fewer samples of a class the client has.

``CE(z - τ n^(-1/4), y)`` with the client's counts n. A missing class has the logit -∞: it is left out of the softmax,
and not trained; with ``missing=kept`` it counts as one sample. The paper prints a denominator without the true class,
whose loss is bounded by nothing (the gradient of z_y is -1 always): what is run under this name is cross-entropy.
Zhang, Li, Li, Xu, Wu, Ding and Wu. Federated Learning with Label Distribution Skew via Logits Calibration. ICML 2022.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedga.algorithms.base import Algorithm, Batch, among, choice, cross_entropy, option


@dataclass(frozen=True)
class FedLC(Algorithm):
    tau: float = option(1.0, least=0, largest=1e6)
    missing: str = choice("masked", "kept")

    citation: ClassVar[str] = "Zhang et al. 2022"
    stacks: ClassVar[bool] = True

    def local_loss(self, batch: Batch) -> Tensor:
        logits = batch.logits - self.tau * batch.class_counts.clamp(min=1) ** -0.25
        if self.missing == "masked":
            logits = among(logits, batch.class_counts > 0)
        return cross_entropy(logits, batch.targets)
