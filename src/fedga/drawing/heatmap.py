"""Who holds what: samples of every class at every client, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedga.drawing.canvas import PanelSize, compose, text_width
from fedga.drawing.style import GRID, SMALL, TEXT, drawing
from fedga.errors import FedGAError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.figure import Figure

RAMP = ("#deebf7", "#9ecae1", "#4292c6", "#08519c", "#08306b")  # few samples to many; none is no colour at all
_MOST_NAMED = 40  # classes
_MOST_NUMBERS = 400  # cells
_MOST_PATHS = 2000  # cells: an SVG of more holds them as a picture, since each would take it 100 bytes and time to draw


def check_counts(class_counts: np.ndarray, class_names: Sequence[str]) -> np.ndarray:
    counts = np.asarray(class_counts)
    if counts.ndim != 2 or counts.shape[1] != len(class_names) or not counts.size:
        raise FedGAError(f"class_counts must be [clients, {len(class_names)}], but is {list(counts.shape)}")
    return counts


def depth(counts: np.ndarray, largest: int) -> np.ndarray:
    """Place of each count on the colour scale, 0 for one sample to 1 for the largest, on a logarithm."""
    return np.log(np.maximum(counts, 1)) / np.log(max(largest, 2))


def counts_summary(counts: np.ndarray) -> str:
    """The skew in one sentence, over all clients."""
    clients, classes = counts.shape
    held = (counts > 0).sum(1)
    largest = counts.max(1).sum() / max(counts.sum(), 1)
    return (
        f"{clients:,} clients hold {held.mean():.1f} of {classes} classes on average (fewest {held.min()}, most "
        f"{held.max()}); {100 * largest:.0f} % of the samples belong to their client's largest class."
    )


def label_heatmap(
    class_counts: np.ndarray,
    class_names: Sequence[str],
    title: str = "",
    *,
    client_names: Sequence[str] = (),
    most_clients: int = 100,
) -> Figure:
    """Samples of each class at each client, ``[clients, classes]``; a class that a client misses is left white."""
    every = check_counts(class_counts, class_names)
    counts = every[:most_clients]
    clients, classes = counts.shape
    largest = int(every.max())
    with drawing():
        side = min(0.42, max(9.6 / clients, 0.075)) if clients > 12 else 0.45
        tall = min(max(side, 0.2), 0.45) if classes <= _MOST_NAMED else max(4.5 / classes, 0.035)
        caption = f"Empty: the client has no sample of the class. {counts_summary(every)}"
        if clients < len(every):
            caption += f" Shown: the first {clients} of {len(every):,} clients."
        named = bool(client_names) and side >= 0.2
        below = max(text_width(name, SMALL) for name in client_names[:clients]) if named else 0.1
        left = names_width(class_names) + 0.45
        cell = PanelSize(side * clients, tall * classes, left=left, right=0.95, top=0.1, bottom=below + 0.42)
        figure, [axes] = compose(1, 1, cell, title=title, caption=caption, least_width=6.0)
        mesh = draw_counts(axes, counts, class_names, largest, numbers=counts.size <= _MOST_NUMBERS and side >= 0.3)
        if named:
            axes.set_xticks(np.arange(clients) + 0.5, client_names[:clients], rotation=90)
        draw_scale(figure, mesh, largest, axes, axes)
    return figure


def names_width(class_names: Sequence[str]) -> float:
    """Inches of the labels that `draw_counts` puts beside a map."""
    return max(text_width(name, SMALL) for name in class_names) if len(class_names) <= _MOST_NAMED else 0.3


def draw_counts(
    axes: Axes, counts: np.ndarray, class_names: Sequence[str], largest: int, *, numbers: bool = False
) -> QuadMesh:
    """The map of ``counts``, ``[clients, classes]``: a column per client, colours on a logarithm up to ``largest``."""
    from matplotlib.colors import LinearSegmentedColormap, LogNorm

    clients, classes = counts.shape
    tall = axes.bbox.height / axes.figure.dpi / classes
    scale = LogNorm(vmin=1, vmax=max(largest, 2))
    ramp = LinearSegmentedColormap.from_list("counts", RAMP)
    masked = np.ma.masked_equal(counts.T, 0)
    # Lines between cells, where cells are tall enough to be told apart by them.
    edges: Any = {"edgecolors": "white", "linewidth": 0.6} if tall > 0.1 else {"edgecolors": "none"}
    mesh = axes.pcolormesh(masked, cmap=ramp, norm=scale, rasterized=counts.size > _MOST_PATHS, **edges)
    if numbers:
        for client, of_class in zip(*np.nonzero(counts), strict=True):
            value = int(counts[client, of_class])
            color = "white" if depth(np.array(value), largest) > 0.5 else TEXT
            at = (client + 0.5, of_class + 0.5)
            axes.text(*at, f"{value}", ha="center", va="center", size=0.8 * SMALL, color=color)
    axes.set(xlim=(0, clients), ylim=(classes, 0), xlabel="client", ylabel="class")
    axes.grid(visible=False)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set(visible=True, color=GRID)
    _number(axes.xaxis, clients)
    if classes <= _MOST_NAMED:
        axes.set_yticks(np.arange(classes) + 0.5, class_names)
    else:
        _number(axes.yaxis, classes)
    return mesh


def draw_scale(figure: Figure, mesh: QuadMesh, largest: int, highest: Axes, lowest: Axes) -> None:
    """What the colours mean, in a bar to the right that reaches from the lowest to the highest of the maps."""
    upper, lower, (width, _) = highest.get_position(), lowest.get_position(), figure.get_size_inches()
    beside = figure.add_axes((upper.x1 + 0.15 / width, lower.y0, 0.14 / width, upper.y1 - lower.y0))
    bar = figure.colorbar(mesh, cax=beside)
    steps = (1, 10, 100, 1000, 10_000, 100_000) if largest >= 100 else (1, 2, 5, 10, 20, 50)
    ticks = [*(step for step in steps if step < 0.7 * largest), largest]
    bar.set_ticks(ticks, labels=[f"{value:,}" for value in ticks])
    bar.minorticks_off()
    bar.outline.set_visible(False)
    bar.set_label("samples")


def _number(axis: object, number: int) -> None:
    """Every so many-th number under the middle of its cell."""
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 1000) if number / step <= 25 or step == 1000)
    places = np.arange(0, number, step)
    axis.set_ticks(places + 0.5, labels=[str(place) for place in places])  # type: ignore[attr-defined]
