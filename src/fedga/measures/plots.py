"""A bar for every class: what `fedga.measures.torchmetrics` draws when asked to plot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedga.drawing.style import FONT, GAINED, LOST, MUTED, SMALL, TEXT, drawing
from fedga.measures.asymmetry import class_kinds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor

_MOST_WRITTEN = 16  # bars: the values of more would overlap
_LEAST_SPREAD = 2.0  # of the axis around 1, so that a fair model looks fair
_MARGIN = 1.35


def asymmetry_bars(asymmetry: Tensor, names: Sequence[str], axes: Axes | None) -> Axes:
    """Bars that start at 1 on a logarithmic axis: up where the class is missed, down where others are taken for it."""
    values = asymmetry.detach().cpu().double().numpy()
    finite = values[np.isfinite(values) & (values > 0)]
    top = max(_LEAST_SPREAD, finite.max(initial=1) * _MARGIN)
    bottom = min(1 / _LEAST_SPREAD, finite.min(initial=1) / _MARGIN)
    drawn = np.clip(np.nan_to_num(values, nan=1.0, posinf=top), bottom, top)
    with drawing():
        from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

        axes = own_axes() if axes is None else axes
        axes.set_yscale("log")
        axes.bar(range(len(values)), drawn - 1, bottom=1, color=np.where(values > 1, LOST, GAINED), width=0.7)
        axes.axhline(1, color=TEXT, linewidth=1)
        axes.set_ylim(bottom, top)
        axes.yaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        _write(axes, drawn, ["no EA" if np.isnan(v) else "∞" if np.isinf(v) else f"{v:.2g}" for v in values], 1)
        _name_bars(axes, names)
        axes.set_ylabel("error asymmetry")
        axes.set_title("above 1: missed too often; below 1: others are taken for it", fontweight="normal", color=MUTED)
    return axes


def forgetting_bars(per_class: Tensor, class_counts: Tensor, names: Sequence[str], axes: Axes | None) -> Axes:
    """Points of accuracy lost, class by class, from the most samples at the client to none; the mean of each kind."""
    order = class_counts.argsort(descending=True, stable=True).cpu()
    lost = 100 * per_class.detach().cpu().double()[order].numpy()
    counts = class_counts.cpu()[order]
    with drawing():
        axes = own_axes() if axes is None else axes
        axes.bar(range(len(lost)), np.nan_to_num(lost), color=np.where(lost > 0, LOST, GAINED), width=0.7)
        axes.axhline(0, color=TEXT, linewidth=1)
        axes.margins(y=0.15)
        _write(axes, np.nan_to_num(lost), ["none" if np.isnan(value) else f"{value:.0f}" for value in lost], 0)
        _name_bars(axes, [f"{names[i]}\n{count:g}" for i, count in zip(order.tolist(), counts.tolist(), strict=True)])
        how: Any = {"xycoords": ("data", "axes fraction"), "ha": "center", "va": "bottom", "fontsize": FONT}
        for kind, mask in zip(("frequent", "rare", "missing"), class_kinds(counts), strict=True):
            members, measured = np.flatnonzero(mask), lost[mask.numpy() & ~np.isnan(lost)]
            if len(measured):
                first, last, mean = *members[[0, -1]], measured.mean()
                axes.hlines(mean, first - 0.45, last + 0.45, colors=TEXT, linestyles="dashed", linewidth=1)
                axes.annotate(f"{kind}: {mean:.1f}", ((first + last) / 2, 1.0), **how)
        axes.set(xlabel="class, and the client's samples of it", ylabel="points of accuracy lost")
    return axes


def own_axes() -> Axes:
    # pyplot, as torchmetrics has it: a notebook shows the picture, and plt.show() finds it.
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(7.5, 4.2), layout="constrained")[1]


def _write(axes: Axes, heights: np.ndarray[Any, Any], texts: Sequence[str], base: float) -> None:
    how: Any = {"textcoords": "offset points", "ha": "center", "fontsize": SMALL}
    for place, (height, text) in enumerate(zip(heights, texts, strict=True)) if len(texts) <= _MOST_WRITTEN else ():
        offset, side = (2, "bottom") if height >= base else (-2, "top")
        axes.annotate(text, (place, height), xytext=(0, offset), va=side, **how)


def _name_bars(axes: Axes, names: Sequence[str]) -> None:
    places = range(0, len(names), max(1, len(names) // 40))
    long = max(len(line) for name in names for line in name.split("\n")) > 60 // max(1, len(names))
    axes.set_xticks(list(places), [names[place] for place in places], rotation=60 if long else 0)
    axes.grid(visible=False, axis="x")
