"""Losses for unequal class counts that are older than gradient alignment: weights, focal loss, balanced softmax."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fedga.errors import FedGAError
from fedga.losses import checks
from fedga.losses.calibration import Reduction, at_least_float32, reduced, result_dtype

_CERTAIN = 1e-12  # the least 1 - p that is raised to a power below 1, whose slope at 0 is infinite


def class_weights(class_counts: Tensor | Sequence[float], *, power: float = 1.0, beta: float | None = None) -> Tensor:
    """A weight per class, [..., classes], the larger the rarer; its mean over the samples counted is 1.

    class_counts: [..., classes]. Weights are proportional to ``N_i^-power``: 1 is inverse frequency. With ``beta`` they
    are ``(1 - β) / (1 - β^N_i)`` instead, by the effective number of samples of Cui et al. (CVPR 2019). A class
    without samples has weight 0, and changes nothing for the others.

    With mean weight 1 a learning rate means what it meant without weights. Weigh the loss of every sample and take the
    plain mean: ``F.cross_entropy(..., weight=...)`` divides by the weights of the batch, which is another rate in
    every batch.

    >>> class_weights([30, 10, 0])
    tensor([0.6667, 2.0000, 0.0000])
    >>> class_weights([30, 10, 0], beta=0.99)
    tensor([0.6990, 1.9029, 0.0000])
    """
    checks.check_factor("power", power)
    if beta is not None and not 0 <= beta < 1:
        raise FedGAError(f"beta must be from 0 up to and below 1, but is {beta!r}")
    counts = torch.as_tensor(class_counts)
    if counts.ndim == 1 and checks.is_at_hand(counts):
        checks.counts_to_align(counts)
    n = counts.to(at_least_float32(counts) if counts.is_floating_point() else torch.get_default_dtype())
    at_least_one = n.clamp(min=1)
    if beta is None:
        inverse_weight = at_least_one**power
    else:
        inverse_weight = -torch.expm1(at_least_one * (math.log(beta) if beta else -math.inf))
    weighed = (n / inverse_weight).sum(-1, keepdim=True)
    return torch.where(n > 0, n.sum(-1, keepdim=True) / (inverse_weight * weighed.clamp(min=_CERTAIN)), 0.0)


def focal_loss(
    logits: Tensor,
    targets: Tensor,
    *,
    gamma: float = 2.0,
    weight: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """``-w_y (1 - p_y)^γ log p_y`` (Lin et al., ICCV 2017, Eq. 5): a scalar, or [...] with ``reduction="none"``.

    logits: [..., classes], targets: [...] class indices, weight: of each class, [classes] or anything that broadcasts
    to logits, such as :func:`class_weights`. The mean is over samples, not over weights.

    Samples that are right already count for less. ``gamma`` 0 is cross-entropy.

    >>> focal_loss(torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1]), reduction="none")
    tensor([0.0018, 1.6501])
    """
    checks.check_factor("gamma", gamma)
    checks.check_targets("logits", logits, targets, -1, "[..., classes]")
    index = targets.long().unsqueeze(-1)
    log_p = checks.of_target(F.log_softmax(logits.to(at_least_float32(logits)), dim=-1), index)
    missed = -torch.expm1(log_p)  # 1 - p without cancellation
    loss = -(missed.clamp(min=_CERTAIN) ** gamma) * log_p
    if weight is not None:
        loss = loss * weight.to(loss.dtype).expand_as(logits).gather(-1, index)
    return reduced(loss.squeeze(-1), reduction).to(result_dtype(logits))


def balanced_softmax_loss(
    logits: Tensor,
    targets: Tensor,
    class_counts: Tensor | Sequence[float],
    *,
    tau: float = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Cross-entropy of ``z_i + τ log π_i``, π the share of class i: a scalar, or [...] with ``reduction="none"``.

    logits: [..., classes], targets: [...] class indices, class_counts: [classes] or anything that broadcasts to logits.
    Every class counts as one sample more, ``π_i = (N_i + 1) / sum_j (N_j + 1)``, so that a missing class has a share.

    ``tau`` 1 is balanced softmax (Ren et al., NeurIPS 2020) and the logit adjustment of Menon et al. (ICLR
    2021), ``tau`` 0 cross-entropy. Use the logits as they are to predict.

    >>> balanced_softmax_loss(torch.zeros(1, 2), torch.tensor([1]), [99, 0])  # log(101)
    tensor(4.6151)
    """
    checks.check_factor("tau", tau)
    counts = checks.checked_counts("logits", logits, targets, class_counts)
    z = logits.to(at_least_float32(logits))
    # The same constant in all logits changes nothing: a share is its count but for the sum.
    adjusted = z + tau * torch.log1p(counts.to(z.dtype))
    log_p = F.log_softmax(adjusted, dim=-1)
    loss = -checks.of_target(log_p, targets.long().unsqueeze(-1)).squeeze(-1)
    return reduced(loss, reduction).to(result_dtype(logits))
