"""Gradient alignment by calibrated labels: the loss of FedGA.

Xiao, Zuo, Wang: *FedGA: Federated Learning with Gradient Alignment for Error Asymmetry Mitigation*, AAAI 2025.
For a sample of class y with prediction p = softmax(z), on a client that holds N_i samples of class i, Eq. (10) is

    q_y = 1,    q_i = (N_y - N_i) / N_y * p_i    (i != y)

and the client minimises the cross-entropy of p against q, q held fixed. Where class i outnumbers class y the label
q_i is negative; it is neither clamped nor normalised, for that is what makes the method work.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Self, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedga.errors import FedGAError, unknown_name
from fedga.losses import checks

Reduction = Literal["mean", "sum", "none"]
Variant = Literal["soft", "aligned", "clamped", "through"]
_CHOICES = {"reduction": get_args(Reduction), "variant": get_args(Variant)}


def calibrated_labels(
    probs: Tensor,
    targets: Tensor,
    class_counts: Tensor | Sequence[float],
    *,
    strength: float | Tensor = 1.0,
    power: float | Tensor = 1.0,
) -> Tensor:
    """Calibrated labels q of Eq. (10): [..., classes], without a gradient.

    probs: [..., classes], targets: [...], class_counts: [classes] or anything that broadcasts to probs.

    With ``strength`` λ and ``power`` γ the inactive labels are ``λ (1 - (N_i / N_y)^γ) p_i``; λ = γ = 1 is the paper's.
    A true class that was counted zero times (the counts came from elsewhere) counts as one sample.

    >>> p = torch.tensor([0.8, 0.1, 0.05, 0.01, 0.04])
    >>> calibrated_labels(p, torch.tensor(0), [100, 0, 20, 5, 20])
    tensor([1.0000, 0.1000, 0.0400, 0.0095, 0.0320])
    >>> calibrated_labels(p, torch.tensor(3), [100, 0, 20, 5, 20])
    tensor([-15.2000,   0.1000,  -0.1500,   1.0000,  -0.1200])
    """
    checks.check_factor("strength", strength)
    checks.check_factor("power", power)
    counts = checks.checked_counts("probs", probs, targets, class_counts)
    p = probs.detach().to(at_least_float32(probs))
    return _labels(p, targets, counts, strength, power).detach().to(probs.dtype)


def ga_loss(
    logits: Tensor,
    targets: Tensor,
    class_counts: Tensor | Sequence[float],
    *,
    strength: float | Tensor = 1.0,
    reduction: Reduction = "mean",
    power: float | Tensor = 1.0,
    variant: Variant = "soft",
) -> Tensor:
    """Cross-entropy against the calibrated labels of Eq. (10): a scalar, or [...] with ``reduction="none"``.

    logits: [..., classes], targets: [...] class indices, class_counts: [classes] or anything that broadcasts to logits
    (counts of [clients, 1, classes] go with logits of [clients, batch, classes]).

    The labels depend on p, so the loss is computed as the one scalar function that has the same gradient and nothing
    to hold fixed::

        loss = -log p_y + λ sum_i ((N_i / N_y)^γ - 1) p_i          λ = strength, γ = power; the paper's is λ = γ = 1

    Its value, too, is that of cross-entropy if all counts are equal, or λ = 0. ``strength`` and ``power`` may be
    tensors that broadcast to [..., 1]. A true class that was counted zero times counts as one sample; apart from that
    only ratios of counts matter. Half-precision logits are worked on in float32; the result has the dtype of the
    logits (under autocast float32), as with :func:`torch.nn.functional.cross_entropy`.

    ``variant`` selects other readings of the paper, for study only:

    - ``"aligned"``: the logit gradient is exactly p - q, the paper's algebra. Error asymmetry is 1 wherever it
      vanishes, but it is the gradient of no function; the value reported is that of ``"soft"``.
    - ``"clamped"``: negative labels are cut to 0.
    - ``"through"``: the labels are not held fixed.

    >>> logits = torch.tensor([[2.0, 0.0, -1.0], [0.5, 1.0, 0.0]])
    >>> targets = torch.tensor([0, 2])
    >>> ga_loss(logits, targets, [10, 0, 5])
    tensor(0.7578)
    >>> torch.isclose(ga_loss(logits, targets, [7, 7, 7]), F.cross_entropy(logits, targets))
    tensor(True)
    """
    checks.check_factor("strength", strength)
    checks.check_factor("power", power)
    loss = _loss(logits, targets, class_counts, strength, reduction, power, variant)
    counts = checks.as_tensor_like(class_counts, logits)
    # An engine's stacked clients may have no samples.
    if counts.ndim == 1 and targets.numel() and checks.is_at_hand(counts):
        checks.check_some(counts)
    return loss


def binary_ga_loss(
    logits: Tensor,
    targets: Tensor,
    class_counts: Tensor | Sequence[float],
    *,
    strength: float | Tensor = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Binary cross-entropy against calibrated labels: a scalar, or [...] with ``reduction="none"``.

    logits: [...], one per sample, targets: [...] of 0 and 1 in any dtype, class_counts: (N_0, N_1) or [..., 2].

    With p = sigmoid(z), Eq. (10) reads ``q(1) = 1`` and ``q(0) = (N_0 - N_1) / N_0 * p``, q held fixed, N_0 = 0 taken
    as 1. The logit gradient is exactly p - q, that is, p - 1 on positives and (N_1 / N_0) p on negatives. A target t
    between 0 and 1 (label smoothing, mixup) is t of a positive and 1 - t of a negative.

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> binary_ga_loss(logits, torch.tensor([1, 0]), (100, 10), reduction="sum").backward()
    >>> logits.grad
    tensor([-0.5000,  0.0500])
    """
    checks.check_tensors(logits=logits, targets=targets)
    checks.check_factor("strength", strength)
    if not logits.is_floating_point() or targets.shape != logits.shape:
        shapes = f"logits are {checks.described(logits)} and targets {list(targets.shape)}"
        raise FedGAError(f"binary_ga_loss needs one floating-point logit per target, but {shapes}")
    if targets.numel() and checks.is_at_hand(targets):
        lowest, highest = (bound.item() for bound in targets.aminmax())
        if not (lowest >= 0 and highest <= 1):
            raise FedGAError(f"targets must be from 0 to 1, but are from {lowest:g} to {highest:g}")
    z = logits.to(at_least_float32(logits))
    counts = checks.as_tensor_like(class_counts, z)
    if counts.ndim == 0 or counts.shape[-1] != 2 or not checks.broadcasts_to(counts.shape[:-1], logits.shape):
        shapes = f"{[*logits.shape, 2]}, but is {list(counts.shape)}"
        raise FedGAError(f"class_counts must be (N_0, N_1) or broadcast to {shapes}")
    n_0, n_1 = counts.to(z.dtype).unbind(-1)
    factor = strength * (1 - n_1 / torch.where(n_0 > 0, n_0, 1.0))
    t = targets.to(z.dtype)
    labels = torch.addcmul(t, 1 - t, factor * torch.sigmoid(z)).detach()
    loss = F.binary_cross_entropy_with_logits(z, labels, reduction="none")
    return reduced(loss, reduction).to(result_dtype(logits))


def batch_class_counts(targets: Tensor, num_classes: int, mask: Tensor | None = None) -> Tensor:
    """Class counts of each mini-batch: float32 [..., classes].

    targets: [..., batch] class indices, mask: [..., batch], True (or 1) for the samples that count.

    A target outside 0 ... num_classes - 1, such as a padding value, is not counted.

    >>> batch_class_counts(torch.tensor([[0, 2, 2], [1, 1, 1]]), 3)
    tensor([[1., 0., 2.],
            [0., 3., 0.]])
    """
    members = targets.unsqueeze(-1) == torch.arange(num_classes, device=targets.device)
    if mask is None:
        return members.sum(-2, dtype=torch.float32)
    return (members * mask.unsqueeze(-1)).sum(-2, dtype=torch.float32)


class CountedLoss(nn.Module):
    """A loss with the counts of a client, or without any: then it counts every batch. Its settings are attributes."""

    class_counts: Tensor | None

    def __init__(self, class_counts: Tensor | None, **settings: Any) -> None:
        super().__init__()
        for name, value in settings.items():
            if name in ("strength", "power"):
                checks.check_factor(name, value)
            elif name in _CHOICES and value not in _CHOICES[name]:
                raise unknown_name(name, value, _CHOICES[name])
            setattr(self, name, value)
        self._names = tuple(settings)
        # No buffer: DistributedDataParallel gives every process those of the first, and counts are a process's own.
        self.class_counts = class_counts

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Go with the module to another device or dtype, as a buffer does."""
        super()._apply(fn, recurse)
        self.class_counts = None if self.class_counts is None else fn(self.class_counts)
        return self

    @property
    def settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._names}

    def extra_repr(self) -> str:
        counts = "per batch" if self.class_counts is None else self.class_counts.tolist()
        return ", ".join([f"class_counts={counts}", *(f"{name}={value!r}" for name, value in self.settings.items())])


class GALoss(CountedLoss):
    """:func:`ga_loss` as a module: called with logits [..., classes] and targets [...], it returns the loss.

    class_counts: [classes], how many samples of each class the client holds. They move with the module, and are not in
    its ``state_dict``: what is sent to a server, averaged or loaded there must not carry them. Without them the samples
    of each call are counted (all leading dimensions are one mini-batch), which is what the authors' program does.

    Every target is a class. To leave samples out, as ``nn.CrossEntropyLoss(ignore_index=-100)`` does, use
    ``DenseGALoss(class_counts, ignore_index=-100)``: it takes logits [N, classes] and targets [N] as well as maps.

    >>> criterion = GALoss([10, 0, 5])
    >>> criterion(torch.tensor([[2.0, 0.0, -1.0], [0.5, 1.0, 0.0]]), torch.tensor([0, 2]))
    tensor(0.7578)
    """

    def __init__(
        self,
        class_counts: Tensor | Sequence[float] | None = None,
        *,
        strength: float = 1.0,
        reduction: Reduction = "mean",
        power: float = 1.0,
        variant: Variant = "soft",
    ) -> None:
        counts = None if class_counts is None else checks.counts_to_align(class_counts)
        super().__init__(counts, strength=strength, reduction=reduction, power=power, variant=variant)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        counts = self.class_counts
        if counts is None:
            counts = batch_class_counts(targets.reshape(-1), logits.shape[-1])
        return _loss(logits, targets, counts, **self.settings)


def _loss(
    logits: Tensor, targets: Tensor, class_counts: Any, strength: Any, reduction: str, power: Any, variant: str
) -> Tensor:
    """:func:`ga_loss` without a check of values, which :class:`GALoss` has done once."""
    counts = checks.checked_counts("logits", logits, targets, class_counts)
    z = logits.to(at_least_float32(logits))
    log_p = F.log_softmax(z, dim=-1)
    p = log_p.exp()
    if variant == "soft":
        loss = _soft_loss(log_p, p, targets, counts, strength, power)
    elif variant in get_args(Variant):
        labels = _labels(p, targets, counts, strength, power)
        if variant == "aligned":
            surrogate = ((p - labels).detach() * z).sum(-1)
            loss = _soft_loss(log_p, p, targets, counts, strength, power).detach() + (surrogate - surrogate.detach())
        else:
            loss = -((labels.detach().clamp(min=0) if variant == "clamped" else labels) * log_p).sum(-1)
    else:
        raise unknown_name("variant", variant, get_args(Variant))
    return reduced(loss, reduction).to(result_dtype(logits))


def _soft_loss(log_p: Tensor, p: Tensor, targets: Tensor, counts: Tensor, strength: Any, power: Any) -> Tensor:
    """-log p_y + λ (sum_i (N_i / N_y)^γ p_i - 1): [...], summed before the division: no weight of every sample."""
    index = targets.long().unsqueeze(-1)
    weights = counts.to(p.dtype) ** power
    log_p_y, weight_y = checks.of_target(log_p, index), weights.expand_as(p).gather(-1, index)
    p_y = log_p_y.exp()
    others = ((weights * p).sum(-1, keepdim=True) - weight_y * p_y) / torch.where(weight_y > 0, weight_y, 1.0)
    return (strength * (others + p_y - 1) - log_p_y).squeeze(-1)


def _labels(p: Tensor, targets: Tensor, counts: Tensor, strength: float | Tensor, power: float | Tensor) -> Tensor:
    """λ (1 - (N_i / N_y)^γ) p_i, which is (N_y - N_i) / N_y p_i for λ = γ = 1: [..., classes], 1 at the true class."""
    index = targets.long().unsqueeze(-1)
    n = counts.to(p.dtype).expand_as(p)
    n_y = checks.of_target(n, index)
    ratio = n / torch.where(n_y > 0, n_y, 1.0)
    return (strength * (1 - ratio**power) * p).scatter(-1, index, 1.0)


def reduced(loss: Tensor, reduction: str, kept: Tensor | None = None) -> Tensor:
    """The loss as asked for; where ``kept`` says which entries count, the others are 0 already, and none is 0."""
    if reduction == "mean":
        return loss.mean() if kept is None else loss.sum() / kept.sum().clamp(min=1)
    if reduction == "sum":
        return loss.sum()
    if reduction == "none":
        return loss
    raise unknown_name("reduction", reduction, get_args(Reduction))


def at_least_float32(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def result_dtype(logits: Tensor) -> torch.dtype:
    # A float16 loss would turn a gradient scaler's first factor, 65,536, into inf; torch's own losses stay in float32.
    autocast = torch.is_autocast_enabled(logits.device.type)
    return at_least_float32(logits) if autocast else logits.dtype
