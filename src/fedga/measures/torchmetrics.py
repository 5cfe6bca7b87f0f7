"""Error asymmetry and forgetting as torchmetrics: they add up over batches and over the processes of DDP.

Thin classes over the functions of :mod:`fedga.measures.asymmetry`. They keep sums over the samples of each true
class, so the value is that of all samples at once, however they came in batches and wherever they lay.

They need torchmetrics: ``pip install 'fedga[metrics]'``; to plot, ``'fedga[metrics,report]'``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedga.common.ranges import Number
from fedga.errors import FedGAError, a_or_an, needs_extra
from fedga.losses.checks import counts_per_class, described
from fedga.losses.dense import kept_targets
from fedga.measures.asymmetry import NO_FLOAT64, asymmetry_from_means, check_probabilities, forgetting, ratio_of

try:
    from torchmetrics import Metric
except ImportError as missing:
    raise needs_extra("torchmetrics", "metrics", "fedga.measures.torchmetrics") from missing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = ("frequent", "rare", "missing")
Array = Tensor | np.ndarray | Sequence[Any]


class ErrorAsymmetry(Metric):
    """Error asymmetry of each class over all batches: [classes], 1 if unbiased. See :func:`fedga.error_asymmetry`.

    Updated with preds [N, classes, ...] and target [N, ...] class indices, as torchmetrics' multi-class metrics are,
    tensors, arrays or lists; targets equal to ``ignore_index`` are left out. preds are probabilities, or logits with
    ``from_logits=True``: values do not tell the two apart, for a batch of logits may happen to lie between 0 and 1.
    ``validate_args`` checks that probabilities are such and targets in range, which on a GPU has to wait for them.

    >>> metric = ErrorAsymmetry(num_classes=2)
    >>> metric.update(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([0, 0]))
    >>> metric.update(torch.tensor([[0.5, 0.5]]), torch.tensor([1]))
    >>> metric.compute()
    tensor([0.5000, 2.0000])
    """

    is_differentiable = False
    higher_is_better: bool | None = None
    full_state_update = False
    plot_legend_name = "Class"
    prediction_sums: Tensor
    samples: Tensor

    def __init__(
        self,
        num_classes: int,
        *,
        ignore_index: int | None = None,
        from_logits: bool = False,
        validate_args: bool = True,
        class_names: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        Number(whole=True, least=1).check("num_classes", num_classes)
        self.num_classes = int(num_classes)
        self.ignore_index, self.from_logits, self.validate_args = ignore_index, from_logits, validate_args
        self.class_names = _names(class_names, self.num_classes)
        self.add_state("prediction_sums", torch.zeros(num_classes, num_classes, dtype=torch.float64), "sum")
        self.add_state("samples", torch.zeros(num_classes, dtype=torch.int64), "sum")

    def update(self, preds: Array, target: Array) -> None:
        """Add a batch: preds [N, classes, ...], target [N, ...]."""
        preds, target = _as_tensor("preds", preds, self.device), _as_tensor("target", target, self.device)
        _check_predictions("preds", preds, target, self.num_classes)
        rows = _rows(target, self.num_classes, self.ignore_index, self.validate_args)
        probs = preds.detach().movedim(1, -1).reshape(-1, self.num_classes).to(self.prediction_sums.dtype)
        if self.from_logits:
            probs = probs.softmax(-1)
        elif self.validate_args:
            check_probabilities(probs, rows < self.num_classes, "pass from_logits=True if they are logits")
        sums = probs.new_zeros(self.num_classes + 1, self.num_classes).index_add_(0, rows, probs)
        self.prediction_sums += sums[: self.num_classes]
        self.samples += _counted(rows, self.num_classes)

    def compute(self) -> Tensor:
        means = self.prediction_sums / self.samples.unsqueeze(-1)
        return asymmetry_from_means(means).to(torch.get_default_dtype())

    def plot(self, val: Tensor | Sequence[Tensor] | None = None, ax: Axes | None = None) -> tuple[Figure, Axes]:
        """A bar for each class on a logarithmic axis; a list of values becomes lines, as torchmetrics draws them."""
        if isinstance(val, Sequence):
            return _by_torchmetrics(self, list(val), ax)
        from fedga.measures.plots import asymmetry_bars

        return _with_figure(asymmetry_bars(self.compute() if val is None else val, self.class_names, ax))

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> Any:
        """Go to another device, but let ``module.to(torch.bfloat16)`` alone: its sums would stop at 256."""
        return super()._apply(fn if self._dtype_convert else lambda x: _moved_only(fn, x), exclude_state)


class EARatio(ErrorAsymmetry):
    """Largest over smallest error asymmetry of any class, over all batches: a scalar, 1 if unbiased.

    Updated like :class:`ErrorAsymmetry`, with which it shares its sums in a ``MetricCollection``. See
    :func:`fedga.ea_ratio`.

    >>> metric = EARatio(num_classes=2)
    >>> metric(torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.5, 0.5]]), torch.tensor([0, 0, 1]))
    tensor(4.)
    """

    higher_is_better = False
    plot_lower_bound = 1.0

    def compute(self) -> Tensor:
        return ratio_of(super().compute())

    def plot(self, val: Tensor | Sequence[Tensor] | None = None, ax: Axes | None = None) -> tuple[Figure, Axes]:
        """The value as a point, or a list of them as a line over the steps."""
        return _by_torchmetrics(self, val, ax)


class ClassForgetting(Metric):
    """Accuracy that local training took from a client's classes, over all batches; see :func:`fedga.forgetting`.

    class_counts: [classes], how many samples of each class the client trained on. Updated with the predictions of the
    model it received, of the model it returns, and target [N, ...]; predictions are class indices [N, ...], or
    probabilities or logits [N, classes, ...], tensors, arrays or lists. Where only one model is at hand at a time, give
    the two in turn::

        metric.update(before=received(inputs), target=target)   # every batch, before local training
        metric.update(after=trained(inputs), target=target)     # every batch, after it

    The value is a dict: ``per_class`` [classes], and its means over the ``frequent``, ``rare`` and ``missing`` classes
    of the client; positive where it forgot, NaN where there is nothing to measure.

    >>> metric = ClassForgetting([90, 10, 0])
    >>> target = torch.tensor([0, 1, 2, 2])
    >>> metric.update(before=torch.tensor([0, 1, 2, 0]), after=torch.tensor([0, 1, 0, 0]), target=target)
    >>> metric.compute()["missing"]
    tensor(0.5000)
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False
    class_counts: Tensor
    hits: Tensor
    samples: Tensor

    def __init__(
        self,
        class_counts: Tensor | Sequence[float],
        *,
        ignore_index: int | None = None,
        validate_args: bool = True,
        class_names: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        counts = counts_per_class(class_counts)
        self.class_counts = counts  # no buffer, which DistributedDataParallel would overwrite with the first process's
        self.num_classes = len(counts)
        self.ignore_index, self.validate_args = ignore_index, validate_args
        self.class_names = _names(class_names, self.num_classes)
        for name in ("hits", "samples"):  # [before or after, classes]
            self.add_state(name, torch.zeros(2, self.num_classes, dtype=torch.int64), "sum")

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> Any:
        super()._apply(fn, exclude_state)
        self.class_counts = fn(self.class_counts)
        return self

    def update(self, before: Array | None = None, after: Array | None = None, target: Array | None = None) -> None:
        """Add a batch: before and after [N, classes, ...] or [N, ...], either or both, and target [N, ...]."""
        if target is None or (before is None and after is None):
            raise FedGAError("ClassForgetting needs the target and the predictions before or after local training")
        target = _as_tensor("target", target, self.device)
        rows = _rows(target, self.num_classes, self.ignore_index, self.validate_args)
        for place, (name, preds) in enumerate((("before", before), ("after", after))):
            if preds is not None:
                preds = _as_tensor(name, preds, self.device)
                if preds.is_floating_point() or preds.shape != target.shape:
                    _check_predictions(name, preds, target, self.num_classes)
                    preds = preds.argmax(1)
                right = (preds == target).reshape(-1)
                self.hits[place] += _counted(torch.where(right, rows, self.num_classes), self.num_classes)
                self.samples[place] += _counted(rows, self.num_classes)

    def compute(self) -> dict[str, Tensor]:
        seen_before, seen_after = self.samples
        if seen_before.any() and seen_after.any() and not torch.equal(seen_before, seen_after):
            seen = f"{seen_before.tolist()} were seen before local training and {seen_after.tolist()} after it"
            raise FedGAError(f"forgetting compares two models on the same samples, but by class {seen}")
        before, after = (self.hits / self.samples).to(torch.get_default_dtype())
        return vars(forgetting(before, after, self.class_counts))

    def plot(
        self, val: dict[str, Tensor] | Sequence[dict[str, Tensor]] | None = None, ax: Axes | None = None
    ) -> tuple[Figure, Axes]:
        """A bar for each class, from the most to the fewest samples; a list of values becomes a line for each kind."""
        if isinstance(val, Sequence):
            return _by_torchmetrics(self, [{kind: each[kind] for kind in KINDS} for each in val], ax)
        from fedga.measures.plots import forgetting_bars

        lost = (self.compute() if val is None else val)["per_class"]
        return _with_figure(forgetting_bars(lost, self.class_counts, self.class_names, ax))


def _as_tensor(name: str, given: Array, device: torch.device) -> Tensor:
    """A tensor as it is, anything else where the sums lie."""
    if isinstance(given, Tensor):
        return given
    try:
        return torch.as_tensor(np.array(given), device=device)  # a copy: arrays may be read-only, or run backwards
    except (TypeError, ValueError):
        raise FedGAError(f"{name} must be a tensor, or an array or list of numbers, not {a_or_an(given)}") from None


def _names(class_names: Sequence[str] | None, num_classes: int) -> list[str]:
    names = [str(name) for name in (range(num_classes) if class_names is None else class_names)]
    if len(names) != num_classes:
        raise FedGAError(f"class_names has {len(names)} names, but there are {num_classes} classes")
    return names


def _check_predictions(name: str, preds: Tensor, target: Tensor, num_classes: int) -> None:
    if preds.ndim < 2 or not preds.is_floating_point() or preds.shape[1] != num_classes:
        raise FedGAError(f"{name} must be floating point of [N, {num_classes}, ...], but is {described(preds)}")
    if (expected := preds.shape[:1] + preds.shape[2:]) != target.shape:
        shapes = f"{list(expected)} to go with {name} of {list(preds.shape)}, but is {list(target.shape)}"
        raise FedGAError(f"target must be {shapes}")


def _rows(target: Tensor, num_classes: int, ignore_index: int | None, validate: bool) -> Tensor:
    """Targets in a row, those to leave out as one class more: no selection, so no wait for a GPU. int64 [samples]."""
    if target.is_floating_point() or target.dtype == torch.bool:
        raise FedGAError(f"target must be class indices (integers), but is {target.dtype}")
    target = target.reshape(-1).long()
    kept = kept_targets(target, ignore_index)
    if validate and len(wrong := target[kept & ((target < 0) | (target >= num_classes))]):
        remedy = f"pass ignore_index={wrong[0]} to leave such samples out"
        if target[kept].min() >= 1 and target[kept].max() == num_classes:  # that remedy would cost a class
            remedy = "labels count from 0, and these seem to count from 1, so subtract 1"
        raise FedGAError(f"target holds {wrong[0]}, but the classes are 0 to {num_classes - 1}: {remedy}")
    return torch.where(kept, target, num_classes)


def _counted(rows: Tensor, num_classes: int) -> Tensor:
    return torch.bincount(rows, minlength=num_classes + 1)[:num_classes]


def _moved_only(fn: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """What fn makes of x, unless it changes the dtype: then x where fn would put it."""
    kinds = (torch.float16, torch.float32)
    tried = [fn(torch.empty(0, dtype=kind, device=x.device)) for kind in kinds]
    if x.dtype == torch.float64 and tried[0].device.type in NO_FLOAT64:
        x = x.float()
    return fn(x) if tuple(y.dtype for y in tried) == kinds else x.to(tried[0].device)


def _by_torchmetrics(metric: Metric, val: Any, ax: Axes | None) -> tuple[Figure, Axes]:
    from fedga.drawing.style import drawing
    from fedga.measures.plots import own_axes

    with drawing():
        ax = own_axes() if ax is None else ax
        metric._plot(val, ax)
    return _with_figure(ax)


def _with_figure(ax: Any) -> tuple[Figure, Axes]:
    return ax.get_figure(), ax
