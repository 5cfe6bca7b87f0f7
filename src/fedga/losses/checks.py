"""What the losses refuse, and in which words; values are read only where that costs no wait and no break of a graph."""

import math
import re
from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from fedga.errors import FedGAError, a_or_an

MOST = 10**18  # samples of a class; int64 holds nine times as many
_TOO_MANY = "class_counts must be at most 10**18, but one is more: divide all by the same number, only ratios matter"


def counts_to_keep(class_counts: Tensor | Sequence[Any]) -> Tensor:
    """A copy of the caller's counts for a buffer, once their values are sound."""
    try:
        counts = torch.as_tensor(class_counts).detach().clone()
    except (TypeError, ValueError, RuntimeError) as error:
        if "Overflow" in str(error):
            raise FedGAError(_TOO_MANY) from None
        wanted = "like [100, 5], numbers in the order of the classes"
        raise FedGAError(f"class_counts must be {wanted}, not {a_or_an(class_counts)}") from None
    if counts.dtype == torch.bool:
        raise FedGAError("class_counts must be numbers of samples, but is true and false: count the samples")
    if not torch.isfinite(counts).all() or (counts < 0).any():
        raise FedGAError(f"class_counts must be finite and not negative, but is {counts.tolist()}")
    if (counts.float() > MOST).any():
        raise FedGAError(_TOO_MANY)
    # Whole numbers are exact as integers, and out of reach of module.half(), which overflows at 65,504.
    return counts.long() if torch.equal(counts, counts.round()) else counts


def counts_per_class(class_counts: Tensor | Sequence[Any]) -> Tensor:
    """`counts_to_keep` of one number per class: [classes]."""
    counts = counts_to_keep(class_counts)
    if counts.ndim != 1 or len(counts) == 0:
        raise FedGAError(f"class_counts must be one number per class, but has shape {list(counts.shape)}")
    return counts


def counts_to_align(class_counts: Tensor | Sequence[Any]) -> Tensor:
    """`counts_per_class`, of which some are not 0."""
    check_some(counts := counts_per_class(class_counts))
    return counts


def check_some(counts: Tensor) -> None:
    if not any(counts.tolist()):
        raise FedGAError("class_counts are all 0, which leaves nothing to align: count the labels of this client")


def check_factor(name: str, value: Any) -> None:
    """Refuse a strength or power that is not a number from 0 up; those in a tensor stay unread."""
    if torch.compiler.is_compiling() or (type(value) is float and 0 <= value < math.inf):
        return  # what costs nothing comes first: this is called for every batch
    if not isinstance(value, Tensor) and (not isinstance(value, Real) or not 0 <= float(value) < math.inf):
        raise FedGAError(f"{name} must be a number from 0 up, but is {value!r}")


def check_tensors(**arguments: Any) -> None:
    for name, given in arguments.items():
        if not isinstance(given, Tensor):
            raise FedGAError(f"{name} must be a tensor, not {a_or_an(given)}: use torch.as_tensor")


def check_targets(name: str, x: Tensor, targets: Tensor, axis: int, layout: str) -> int:
    """Refuse targets that are no class index for each place of ``x`` beside its axis of classes; how many classes."""
    check_tensors(**{name: x, "targets": targets})
    if x.ndim == 0 or not x.is_floating_point():
        raise FedGAError(f"{name} must be floating point of {layout}, but is {described(x)}")
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise FedGAError(f"targets must be class indices (integers), but is {targets.dtype}")
    expected = list(x.shape)
    classes = expected.pop(min(axis, x.ndim - 1))
    if list(targets.shape) != expected:
        shapes = f"{expected} to go with {name} of {list(x.shape)}, but is {list(targets.shape)}"
        maps = axis == -1 and x.ndim > 2 and targets.shape == x.shape[:1] + x.shape[2:]
        raise FedGAError(f"targets must be {shapes}" + ": for maps with classes second use DenseGALoss" * maps)
    return classes


def described(x: Tensor) -> str:
    return f"{x.dtype} {list(x.shape)}"


def is_traced(x: Tensor) -> bool:
    """Whether the values cannot be read, for the code is being compiled or vmapped."""
    return torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(x)


def is_at_hand(x: Tensor) -> bool:
    """Whether the values can be read without a wait for a GPU."""
    return x.is_cpu and not is_traced(x)


def of_target(x: Tensor, index: Tensor) -> Tensor:
    """The entry of the true class: [..., 1]. Torch checks every index anyway, so no target is checked before."""
    try:
        return x.gather(-1, index)
    except RuntimeError as error:
        found = re.match(r"index (-?\d+) is out of bounds", str(error))
        if not found:
            raise
        cure = "subtract 1 if your labels start at 1; " * (int(found[1]) == x.shape[-1])
        cure += f"to leave such samples out use DenseGALoss(class_counts, ignore_index={found[1]})"
        raise FedGAError(f"targets holds {found[1]}, but the classes are 0 to {x.shape[-1] - 1}: {cure}") from None


def as_tensor_like(counts: Tensor | Sequence[float], like: Tensor) -> Tensor:
    return counts if isinstance(counts, Tensor) else torch.tensor(counts, device=like.device, dtype=like.dtype)


def broadcasts_to(shape: torch.Size, full: torch.Size) -> bool:
    tail = full[len(full) - len(shape) :]
    return len(shape) <= len(full) and all(n in (1, m) for n, m in zip(shape, tail, strict=True))


def checked_counts(name: str, x: Tensor, targets: Tensor, class_counts: Tensor | Sequence[float]) -> Tensor:
    """The counts as a tensor, once shapes and dtypes agree; values stay unread (no wait for a GPU, no graph break)."""
    classes = check_targets(name, x, targets, -1, "[..., classes]")
    counts = as_tensor_like(class_counts, x)
    if counts.ndim == 0 or counts.shape[-1] != classes:
        shapes = f"{list(counts.shape)} and {name} {list(x.shape)}"
        raise FedGAError(f"class_counts must have one entry per class, but is {shapes}")
    if not broadcasts_to(counts.shape, x.shape):
        raise FedGAError(f"class_counts of {list(counts.shape)} do not broadcast to {name} of {list(x.shape)}")
    return counts
