"""Error asymmetry and forgetting: what skewed classes do to a model.

Xiao, Zuo, Wang: *FedGA: Federated Learning with Gradient Alignment for Error Asymmetry Mitigation*, AAAI 2025,
Eqs. (1) to (6). A class is wronged in two ways: its own samples are *missed* (1 - p on positives; the paper's Type I),
and samples of other classes raise a *false alarm* (p on negatives; Type II). Error asymmetry is missed / false alarm.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedga.errors import FedGAError
from fedga.losses.checks import described
from fedga.measures.scores import AT_ONCE, confusion_matrix, recall

NO_FLOAT64 = {"mps"}  # devices on which sums are kept in float32


def error_asymmetry(probs: Tensor, targets: Tensor, num_classes: int | None = None) -> Tensor:
    """Error asymmetry of each class, Eq. (5): [classes].

    probs: [samples, classes] predicted probabilities (softmax applied once), targets: [samples] class indices; tensors,
    arrays or lists.

    ``EA(i) = (1 - P[i, i]) / sum_{j != i} P[j, i]`` with P from :func:`mean_predictions`. NaN where it is undefined:
    for a class with no samples, if no other class has samples, and for 0 / 0.

    >>> probs = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.5, 0.5]])
    >>> error_asymmetry(probs, torch.tensor([0, 0, 1]))
    tensor([0.5000, 2.0000])
    """
    probs, targets = torch.as_tensor(probs), torch.as_tensor(targets)
    means = _mean_predictions(probs, targets, num_classes)
    check_probabilities(probs)
    return asymmetry_from_means(means).to(_of_result(probs))


def ea_ratio(probs: Tensor, targets: Tensor, num_classes: int | None = None) -> Tensor:
    """Largest over smallest error asymmetry of any class, 1 if unbiased: a scalar. See :func:`error_asymmetry`.

    >>> probs = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.5, 0.5]])
    >>> ea_ratio(probs, torch.tensor([0, 0, 1]))
    tensor(4.)
    """
    return ratio_of(error_asymmetry(probs, targets, num_classes))


def binary_error_asymmetry(probs: Tensor, targets: Tensor) -> Tensor:
    """Error asymmetry with one sigmoid output, Eq. (3): a scalar.

    probs: [samples] predicted probability of class 1, targets: [samples] of 0 and 1; tensors, arrays or lists.

    ``(1 - mean p | y = 1) / (mean p | y = 0)``, missed over false alarm; NaN if either class has no samples. Plain
    binary cross-entropy drives it to N_0 / N_1.

    >>> binary_error_asymmetry(torch.tensor([0.5, 0.5, 0.0]), torch.tensor([1, 0, 0]))
    tensor(2.)
    """
    probs, targets = torch.as_tensor(probs), torch.as_tensor(targets)
    if probs.ndim != 1 or not probs.is_floating_point() or targets.shape != probs.shape:
        shapes = f"[samples], but probs is {described(probs)} and targets {list(targets.shape)}"
        raise FedGAError(f"binary_error_asymmetry needs floating-point probs and targets of {shapes}")
    if not ((probs >= 0) & (probs <= 1)).all():
        raise FedGAError("probs must lie between 0 and 1, but some do not: apply sigmoid to logits first, once")
    positive = targets > 0
    return (1 - probs[positive].mean()) / probs[~positive].mean()


SUM_TOLERANCE = 0.01  # probabilities in bfloat16 miss 1 by less


def check_probabilities(
    probs: Tensor, kept: Tensor | None = None, remedy: str = "apply softmax to logits first, once"
) -> None:
    """Refuse what cannot be probabilities: [..., classes]; only the samples ``kept [...]`` are checked."""
    sound = (probs >= 0).all(-1) & ((probs.sum(-1) - 1).abs() < SUM_TOLERANCE)
    wrong = ~sound if kept is None else ~sound & kept
    if wrong.any():
        first = probs[wrong][0]
        remedy = "look where NaN comes from" if first.isnan().any() else remedy
        values = [round(value, 4) for value in first.tolist()[:8]]
        raise FedGAError(f"predictions must be probabilities that sum to 1, but one sample has {values}: {remedy}")


def mean_predictions(probs: Tensor, targets: Tensor, num_classes: int | None = None) -> Tensor:
    """Mean prediction over the samples of each true class: P [..., classes, classes], a row of NaN for no samples.

    probs: [..., samples, classes] predicted probabilities, targets: [..., samples] class indices.

    ``P[j, i]`` is the mean predicted probability of class i over the samples whose true class is j.

    >>> probs = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.5, 0.5]])
    >>> mean_predictions(probs, torch.tensor([0, 0, 1]))
    tensor([[0.7500, 0.2500],
            [0.5000, 0.5000]])
    """
    return _mean_predictions(probs, targets, num_classes).to(_of_result(probs))


def _mean_predictions(probs: Tensor, targets: Tensor, num_classes: int | None) -> Tensor:
    """`mean_predictions` in the dtype of its sums: in float32 a million of them are wrong by percents."""
    if probs.ndim < 2 or not probs.is_floating_point():
        raise FedGAError(f"probs must be floating point of [samples, classes], but is {described(probs)}")
    if num_classes is not None and num_classes != probs.shape[-1]:
        raise FedGAError(f"probs has {probs.shape[-1]} classes, but num_classes is {num_classes}")
    if targets.is_floating_point() or targets.ndim == 0 or targets.shape[-1] != probs.shape[-2]:
        raise FedGAError(f"targets must be {probs.shape[-2]} class indices (integers), but is {described(targets)}")

    def summed(probs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        members = F.one_hot(targets.long(), probs.shape[-1]).to(_of_sums(probs))
        return members.transpose(-1, -2) @ probs.to(members.dtype), members.sum(-2)

    parts = zip(probs.split(AT_ONCE, -2), targets.split(AT_ONCE, -1), strict=True)
    total, samples = summed(*next(parts))
    for part in parts:
        more, of_samples = summed(*part)
        total, samples = total + more, samples + of_samples
    return total / samples.unsqueeze(-1)


def _of_sums(probs: Tensor) -> torch.dtype:
    return _of_result(probs) if probs.device.type in NO_FLOAT64 else torch.float64


def _of_result(probs: Tensor) -> torch.dtype:
    return torch.promote_types(probs.dtype, torch.float32)


def errors_from_means(means: Tensor) -> tuple[Tensor, Tensor]:
    """The two errors of each class, (missed, false_alarm): twice [..., classes].

    means: [..., classes, classes] from :func:`mean_predictions`.

    ``missed[i] = 1 - P[i, i]``, at least 0, and ``false_alarm[i] = sum_{j != i} P[j, i]`` over the classes j that have
    samples. NaN without any sample to measure it on.

    >>> errors_from_means(torch.tensor([[0.75, 0.25], [0.5, 0.5]]))
    (tensor([0.2500, 0.5000]), tensor([0.5000, 0.2500]))
    """
    missed = (1 - means.diagonal(dim1=-2, dim2=-1)).clamp(min=0)
    itself = torch.eye(means.shape[-1], dtype=torch.bool, device=means.device)
    others = means.masked_fill(itself, torch.nan)
    return missed, torch.where(others.isnan().all(-2), torch.nan, others.nansum(-2))


def asymmetry_from_means(means: Tensor) -> Tensor:
    """Error asymmetry of each class, Eq. (5): [..., classes], of means from :func:`mean_predictions`.

    >>> asymmetry_from_means(torch.tensor([[0.75, 0.25], [0.5, 0.5]]))
    tensor([0.5000, 2.0000])
    """
    missed, false_alarm = errors_from_means(means)
    return missed / false_alarm


def ratio_of(ea: Tensor) -> Tensor:
    """Largest over smallest error asymmetry: [...].

    ea: [..., classes]; NaN is left out. Infinite if some class has EA 0 or infinity and another has not.

    >>> ratio_of(torch.tensor([0.5, 2.0, torch.nan]))
    tensor(4.)
    """
    undefined = ea.isnan()
    return ea.masked_fill(undefined, -torch.inf).amax(-1) / ea.masked_fill(undefined, torch.inf).amin(-1)


def class_accuracy(predictions: Tensor, targets: Tensor, num_classes: int) -> Tensor:
    """Accuracy on the samples of each true class: [..., classes], NaN for a class with no samples.

    predictions, targets: [..., samples] class indices that broadcast to each other.

    >>> class_accuracy(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), 3)
    tensor([0.5000, 1.0000,    nan])
    """
    return recall(confusion_matrix(predictions, targets, num_classes))


@dataclass(frozen=True, eq=False)
class Forgetting:
    """Accuracy lost in local training, positive where the client forgot; see :func:`forgetting`.

    per_class: [..., classes]; frequent, rare, missing: [...], NaN where the client has no such class.
    """

    per_class: Tensor
    frequent: Tensor
    rare: Tensor
    missing: Tensor


def forgetting(before: Tensor, after: Tensor, class_counts: Tensor) -> Forgetting:
    """Drop in class accuracy, by class and by how many samples of it the client holds.

    before, after: [..., classes] class accuracy before and after local training, class_counts: [..., classes] of the
    client; all broadcast to each other.

    Frequent, rare and missing are what :func:`class_kinds` says. A class whose accuracy is NaN (none in the test data)
    is left out of the means.

    >>> lost = forgetting(torch.tensor([0.5, 0.5, 0.5]), torch.tensor([0.75, 0.25, 0.0]), torch.tensor([90, 10, 0]))
    >>> lost.frequent, lost.rare, lost.missing
    (tensor(-0.2500), tensor(0.2500), tensor(0.5000))
    """
    if not before.shape[-1] == after.shape[-1] == class_counts.shape[-1]:
        shapes = f"{list(before.shape)}, {list(after.shape)} and {list(class_counts.shape)}"
        raise FedGAError(f"before, after and class_counts must have the same number of classes, but are {shapes}")
    drop, counts = torch.broadcast_tensors(before - after, class_counts)

    def mean_over(group: Tensor) -> Tensor:
        return drop.masked_fill(~group, torch.nan).nanmean(-1)

    return Forgetting(drop, *map(mean_over, class_kinds(counts)))


def class_kinds(class_counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Which classes are frequent, rare and missing at a client: three masks, bool [..., classes].

    A class is *frequent* if the client holds at least its mean count over all classes, *missing* if it holds none, and
    *rare* in between.

    >>> frequent, rare, missing = class_kinds(torch.tensor([90, 10, 0]))
    >>> frequent, rare, missing
    (tensor([ True, False, False]), tensor([False,  True, False]), tensor([False, False,  True]))
    """
    held = class_counts > 0
    frequent = held & (class_counts * class_counts.shape[-1] >= class_counts.sum(-1, keepdim=True))
    return frequent, held & ~frequent, ~held
