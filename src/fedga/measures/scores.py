"""Scores from a confusion matrix: [..., classes, classes], rows the true class, columns the predicted one.

Leading dimensions (rounds, clients, seeds) are kept, so that a whole study is scored in one call.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fedga.errors import FedGAError

AT_ONCE = 1 << 16  # samples added up at a time: a bound on memory, and far below where float32 stops counting


def confusion_matrix(predictions: Tensor, targets: Tensor, num_classes: int) -> Tensor:
    """How often each class was predicted as each: int64 [..., classes, classes].

    predictions, targets: [..., samples] class indices that broadcast to each other (one set of targets serves many
    models).

    >>> confusion_matrix(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), 2)
    tensor([[1, 1],
            [0, 1]])
    """
    if predictions.is_floating_point() or targets.is_floating_point():
        raise FedGAError("predictions and targets must be class indices (integers): take logits.argmax(-1) first")
    if predictions.ndim == 0 or targets.ndim == 0 or predictions.shape[-1] != targets.shape[-1]:
        shapes = f"{list(predictions.shape)} and {list(targets.shape)}"
        raise FedGAError(f"predictions and targets must be [..., samples], but are {shapes}")

    def counted(predictions: Tensor, targets: Tensor) -> Tensor:
        true = F.one_hot(targets.long(), num_classes).to(torch.float32)
        predicted = F.one_hot(predictions.long(), num_classes).to(torch.float32)
        return (true.transpose(-1, -2) @ predicted).long()

    parts = zip(predictions.split(AT_ONCE, -1), targets.split(AT_ONCE, -1), strict=True)
    total = counted(*next(parts))
    for part in parts:
        total += counted(*part)
    return total


def recall(confusion: Tensor) -> Tensor:
    """Accuracy on the samples of each true class: [..., classes], NaN for a class with no samples.

    >>> recall(torch.tensor([[3, 1], [0, 0]]))
    tensor([0.7500,    nan])
    """
    return confusion.diagonal(dim1=-2, dim2=-1) / confusion.sum(-1)


def accuracy(confusion: Tensor) -> Tensor:
    """Part of the samples that were predicted right: [...].

    >>> accuracy(torch.tensor([[3, 1], [2, 4]]))
    tensor(0.7000)
    """
    return confusion.diagonal(dim1=-2, dim2=-1).sum(-1) / confusion.sum((-2, -1))


def balanced_accuracy(confusion: Tensor) -> Tensor:
    """Mean recall over the classes that have samples: [...], as scikit-learn's ``balanced_accuracy_score``.

    >>> balanced_accuracy(torch.tensor([[3, 1, 0], [1, 1, 0], [0, 0, 0]]))
    tensor(0.6250)
    """
    return recall(confusion).nanmean(-1)


def macro_f1(confusion: Tensor) -> Tensor:
    """Mean over classes of the F1 score: [...].

    A class that occurs in neither truth nor prediction is left out; one that occurs in either but is never predicted
    right scores 0. scikit-learn's ``f1_score(average="macro", zero_division=0)`` and torchmetrics'
    ``MulticlassF1Score(average="macro")`` do the same.

    >>> macro_f1(torch.tensor([[2, 0, 0], [1, 1, 0], [0, 0, 0]]))
    tensor(0.7333)
    """
    hits = confusion.diagonal(dim1=-2, dim2=-1)
    return (2 * hits / (confusion.sum(-1) + confusion.sum(-2))).nanmean(-1)
