"""Gradient alignment where a sample may have several labels or none: one sigmoid per class.

Every class is a binary problem of its own, present or absent, with its own counts of both at the client. Per class the
loss is :func:`fedga.binary_ga_loss`: Eq. (10) of the paper for one sigmoid. With p = sigmoid(z) of a class that N_1
samples have and N_0 have not, the logit gradient is

    p - 1            where the label is there
    (N_1 / N_0) p    where it is not

The two sides sum to zero where missed and false alarm are equal: at an error asymmetry of 1. The paper does not say
which side is class 1. Here it is the rarer one at the client, so that a client whose samples all have a label, or all
lack it, leaves that label as it was. ``symmetric=False`` takes the label itself, always.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedga.errors import FedGAError
from fedga.losses.calibration import CountedLoss, Reduction, at_least_float32, binary_ga_loss, reduced, result_dtype
from fedga.losses.checks import check_tensors, counts_to_keep, described, is_at_hand, is_traced


def multilabel_ga_loss(
    logits: Tensor,
    targets: Tensor,
    class_counts: Tensor | Sequence[Sequence[float]],
    *,
    strength: float | Tensor = 1.0,
    reduction: Reduction = "mean",
    symmetric: bool = True,
) -> Tensor:
    """Binary cross-entropy of every class against calibrated labels: a scalar, or [..., classes] unreduced.

    logits: [..., classes], targets: [..., classes] of 0 and 1 in any dtype, class_counts: [classes, 2], how many
    samples of the client lack and have each label, from :func:`multilabel_class_counts`.

    Per class it is Eq. (10) with the rarer side, having the label or lacking it, as class 1; with ``symmetric=False``
    having it is class 1 always. A target t between 0 and 1 (label smoothing, mixup) is t of a label that is there and
    1 - t of one that is not. A target that is negative or NaN is unknown: it counts for nothing, not in the mean
    either, and its gradient is 0. If all are unknown the loss is 0. Equal counts of a class, or ``strength`` 0, give
    :func:`torch.nn.functional.binary_cross_entropy_with_logits`.

    >>> logits = torch.zeros(2, 2, requires_grad=True)
    >>> targets = torch.tensor([[1, 0], [0, -1]])  # whether the second sample has the second label is not known
    >>> multilabel_ga_loss(logits, targets, [[90, 10], [50, 50]], reduction="sum").backward()
    >>> logits.grad
    tensor([[-0.5000,  0.5000],
            [ 0.0556,  0.0000]])
    """
    check_tensors(logits=logits, targets=targets)
    if logits.ndim == 0 or not logits.is_floating_point() or targets.shape != logits.shape:
        shapes = f"logits are {described(logits)} and targets {list(targets.shape)}"
        raise FedGAError(f"multilabel_ga_loss needs a floating-point logit and a target of every class, but {shapes}")
    if is_at_hand(targets) and (targets > 1).any():
        above = targets[targets > 1][0]
        raise FedGAError(f"targets must be from 0 to 1, or negative where unknown, but one is {above:g}")
    counts = torch.as_tensor(class_counts, device=logits.device)
    if counts.ndim < 2 or list(counts.shape[-2:]) != [logits.shape[-1], 2]:
        raise _no_pairs(logits.shape[-1], counts)
    known = targets >= 0
    z, t = torch.where(known, logits, 0.0), torch.where(known, targets, 0).to(at_least_float32(logits))
    if symmetric:
        common = counts[..., 1] > counts[..., 0]
        z, t = torch.where(common, -z, z), torch.where(common, 1 - t, t)
        counts = counts.sort(-1, descending=True).values
    loss = binary_ga_loss(z, t, counts, strength=strength, reduction="none")
    return reduced(torch.where(known, loss, 0.0), reduction, known).to(result_dtype(logits))


def multilabel_class_counts(targets: Tensor) -> Tensor:
    """How many samples lack and have each label: int64 [classes, 2].

    targets: [..., classes] of 0 and 1, a tensor, array or list; a negative or NaN one is unknown and not counted.

    >>> multilabel_class_counts(torch.tensor([[1, 0, 0], [1, 0, -1], [0, 0, 1]]))
    tensor([[1, 2],
            [3, 0],
            [1, 1]])
    """
    targets = torch.as_tensor(targets)
    if targets.ndim == 0:
        raise FedGAError("multilabel_class_counts needs targets of [..., classes], but they are a single number")
    soft = (targets > 0) & (targets != 1)
    if not is_traced(soft) and soft.any():
        cure = "count them before they are smoothed or mixed"
        raise FedGAError(f"multilabel_class_counts counts labels of 0 and 1, but one is {targets[soft][0]:g}: {cure}")
    rows = targets.reshape(-1, targets.shape[-1])
    return torch.stack([(rows == 0).sum(0), (rows > 0).sum(0)], -1)


def multilabel_error_asymmetry(probs: Tensor, targets: Tensor) -> Tensor:
    """Error asymmetry of each label, Eq. (3): [classes], 1 if unbiased.

    probs: [samples, classes] predicted probabilities (a sigmoid each), targets: [samples, classes] of 0 and 1; tensors,
    arrays or lists. A negative or NaN target is unknown and left out.

    :func:`fedga.binary_error_asymmetry` of every column: ``(1 - mean p | y = 1) / (mean p | y = 0)``, missed over
    false alarm. NaN for a label that no sample has, or every one.

    >>> probs = torch.tensor([[0.5, 0.2], [0.5, 0.4], [0.0, 0.3]])
    >>> multilabel_error_asymmetry(probs, torch.tensor([[1, 0], [0, 0], [0, 0]]))
    tensor([2., nan])
    """
    probs, targets = torch.as_tensor(probs), torch.as_tensor(targets)
    if probs.ndim != 2 or not probs.is_floating_point() or targets.shape != probs.shape:
        shapes = f"[samples, classes], but probs is {described(probs)} and targets {list(targets.shape)}"
        raise FedGAError(f"multilabel_error_asymmetry needs floating-point probs and targets of {shapes}")
    wrong = (targets >= 0) & ~((probs >= 0) & (probs <= 1))
    if not is_traced(wrong) and wrong.any():
        first = probs[wrong][0]
        remedy = "look where NaN comes from" if first.isnan() else "apply sigmoid to logits first, once"
        raise FedGAError(f"predictions must be probabilities from 0 to 1, but one is {first:.4g}: {remedy}")
    p = probs.to(at_least_float32(probs))

    def mean_over(group: Tensor) -> Tensor:
        return torch.where(group, p, 0.0).sum(0) / group.sum(0)

    return (1 - mean_over(targets > 0)) / mean_over(targets == 0)


class MultilabelGALoss(CountedLoss):
    """:func:`multilabel_ga_loss` as a module, in place of ``nn.BCEWithLogitsLoss()``.

    class_counts: [classes, 2] from :func:`multilabel_class_counts` of the client's own labels. They move with the
    module and are not in its ``state_dict``. Without them the samples of each call are counted.

    >>> labels = torch.tensor([[1, 0], [0, 1], [0, 0], [0, 1]])
    >>> criterion = MultilabelGALoss(multilabel_class_counts(labels))
    >>> criterion(torch.zeros(4, 2), labels)
    tensor(0.6931)
    """

    def __init__(
        self,
        class_counts: Tensor | Sequence[Sequence[float]] | None = None,
        *,
        strength: float = 1.0,
        reduction: Reduction = "mean",
        symmetric: bool = True,
    ) -> None:
        counts = None if class_counts is None else counts_to_keep(class_counts)
        if counts is not None and (counts.ndim != 2 or counts.shape[-1] != 2):
            raise _no_pairs("classes", counts)
        super().__init__(counts, strength=strength, reduction=reduction, symmetric=symmetric)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        counts = self.class_counts
        if counts is None:  # those of the mini-batch, in which a soft label t is t of one: float32 [classes, 2]
            rows = targets.reshape(-1, targets.shape[-1]).float()
            known = rows >= 0
            with_it = torch.where(known, rows, 0.0).sum(0)
            counts = torch.stack([known.sum(0) - with_it, with_it], -1)
        return multilabel_ga_loss(logits, targets, counts, **self.settings)


def _no_pairs(classes: int | str, counts: Tensor) -> FedGAError:
    pairs = f"class_counts must be [{classes}, 2], the samples without and with each label"
    shape = list(counts.shape)
    return FedGAError(f"{pairs}, but has shape {shape}: count them with multilabel_class_counts(targets)")
