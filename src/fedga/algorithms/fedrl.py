"""FedRL: cross-entropy weighted by an estimate of how rare each class is over the whole federation.

Class ``c`` weighs ``α + β Ra_c``. The server estimates ``Ra_c`` from a few samples per class of its own: one backward
pass per class gives ``ΔW^c``, minus the gradient of the output layer's weights; an entry belongs to class ``c`` if
``c`` has the largest ``ΔW`` there and no other class reaches 0.8 of it;
``Ra_c = |Σ ΔW^c| / |mean over c' != c of Σ ΔW^c'|``, sums over the entries of ``c``.
Wang, Xu, Wang and Zhu. Addressing Class Imbalance in Federated Learning. AAAI 2021.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedga.algorithms.base import Algorithm, Batch, Sent, Server, cross_entropy, option

RUNNER_UP = 0.8
UNDEFINED_RATIO = 10.0
LARGEST_RATIO = 5000.0


@dataclass(frozen=True)
class FedRL(Algorithm):
    alpha: float = option(1.0, least=0, largest=1e6)
    beta: float = option(0.1, least=0, largest=1e6)

    citation: ClassVar[str] = "Wang et al. 2021"
    auxiliary_samples: ClassVar[int] = 32
    downloads: ClassVar[tuple[Sent, ...]] = (Sent("class_weights", "classes", "how rare each class is overall"),)

    def broadcast(self, server: Server) -> dict[str, Tensor]:
        return {"class_weights": self.alpha + self.beta * class_ratios(server)}

    def local_loss(self, batch: Batch) -> Tensor:
        return batch.received["class_weights"][batch.targets] * cross_entropy(batch.logits, batch.targets)


def class_ratios(server: Server) -> Tensor:
    """``Ra_c`` of every class, ``[classes]``."""
    assert server.auxiliary is not None
    weight = server.parameters.output_weight(server.num_classes)
    classes = server.num_classes

    def loss(params: Tensor, inputs: Tensor, target: Tensor) -> Tensor:
        logits = server.forward(params, inputs)
        return F.cross_entropy(logits, target.expand(logits.shape[0]))

    targets = torch.arange(classes, device=server.params.device)
    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(server.params, server.auxiliary, targets)
    step = -gradients[:, server.parameters.slices()[weight]]  # ΔW: [class of the samples, entries of the output layer]
    first, second = torch.topk(step, 2, dim=0).values
    # An entry that no class raises (a feature that is 0 on all samples) belongs to nobody.
    owned = (step == first) & (first > 0) & (second < RUNNER_UP * first)  # [class, entries]
    sums = torch.where(owned[:, None, :], step[None, :, :], 0.0).sum(-1)  # [owner c, samples' class c']
    own = sums.diagonal()
    others = (sums.sum(1) - own) / (classes - 1)
    ratio = own.abs() / others.abs()
    undefined = (~owned.any(1)) | (others == 0) | ratio.isnan()
    return torch.where(undefined, UNDEFINED_RATIO, ratio).clamp(max=LARGEST_RATIO)
