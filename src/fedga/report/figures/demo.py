"""One wide picture of a whole command: accuracy over rounds, and what clients forget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedga.drawing.canvas import PanelSize, compose, text_width
from fedga.drawing.style import MUTED, SMALL, TEXT, drawing
from fedga.errors import FedGAError
from fedga.report.curves import Curve, deviation, mean
from fedga.report.figures.bars import bar_style, forgetting_panels, per_seed, short_number
from fedga.report.figures.lines import curves_caption, draw_accuracy, end_texts
from fedga.report.series import Panel, panels_with

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GROUPS = {"forgetting_rare": "rare classes", "forgetting_missing": "missing classes"}


def demo_picture(curves: Sequence[Curve], *, dataset: str | None = None, alpha: float | None = None) -> Figure:
    """Left the accuracy of every algorithm over rounds, right what its clients forget.

    Of several data sets and α, the first data set and its smallest α (the strongest skew) are shown unless given.
    """
    panel = _choose(panels_with(curves, ("accuracy", "averaged_accuracy")), dataset, alpha)
    forgetting = next((one for one in forgetting_panels(curves) if one.title == panel.title), None)
    with drawing():
        room = max(text_width(text, SMALL) for text in end_texts(panel, "accuracy", names=True)) + 0.3
        height = max(3.5, 0.17 * (2 * len(panel.series) + 3))
        sizes = [PanelSize(4.4, height, right=room, top=0.42)]
        caption = curves_caption([panel], "accuracy")
        if forgetting:
            names = max(text_width(series.label, SMALL) for series in forgetting.series)
            sizes.append(PanelSize(2.4, height, left=names + 0.3, right=0.3, top=0.42))
            caption += " Rare: fewer samples than the client's mean class has; missing: none."
        figure, axes = compose(1, len(sizes), sizes, title=_headline(panel), caption=caption)
        draw_accuracy(axes[0], panel, "accuracy", names=True)
        axes[0].set_title("Accuracy of the global model")
        if forgetting:
            _draw_forgotten(axes[1], forgetting)
    return figure


def _choose(panels: Sequence[Panel], dataset: str | None, alpha: float | None) -> Panel:
    fitting = [
        panel for panel in panels if dataset in (None, panel.dataset) and (alpha is None or panel.alpha == alpha)
    ]
    if not fitting:
        raise FedGAError(f"there is nothing to draw of {dataset}, α = {alpha}: the results have other data sets and α")
    return fitting[0]


def _draw_forgotten(axes: Axes, panel: Panel) -> None:
    """Lying bars with their names beside them, first of the rare, then of the missing classes."""
    place, longest, names = 0.0, 0.0, {}
    beside: Any = {"textcoords": "offset points", "va": "center", "size": SMALL}
    for kind, name in _GROUPS.items():
        axes.annotate(name, (0, place), (2, 0), weight="bold", **beside)
        for series in panel.series:
            place += 1
            values = per_seed(series, kind)
            length, whisker = mean(values), np.nan_to_num(deviation(values))
            names[place] = series.label
            if not np.isfinite(length):
                axes.annotate("not seen", (0, place), (4, 0), **beside)
                continue
            axes.barh(place, length, 0.78, label=f"{series.label}, {name}", **bar_style(series))
            axes.errorbar(length, place, xerr=whisker, fmt="none", ecolor=TEXT, elinewidth=0.9)
            edge = max(length + whisker, 0.0)
            longest = max(longest, edge)
            axes.annotate(short_number(length), (edge, place), (4, 0), **beside)
        place += 1.5
    axes.axvline(0, color=MUTED, linewidth=0.8)
    axes.set_yticks(list(names), list(names.values()))
    axes.tick_params(axis="y", length=0, labelcolor=TEXT)
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    axes.set_ylim(place - 0.9, -0.7)
    axes.set_xlim(right=max(1.22 * longest, 0.02))
    axes.set_xlabel("accuracy lost in a round")
    axes.set_title("What clients forget")


def _headline(panel: Panel) -> str:
    """The place, and which series has the highest accuracy after the last round."""
    ends = {series.label: series.per_round("accuracy", mean)[-1] for series in panel.series if len(series.rounds)}
    known = {label: value for label, value in ends.items() if np.isfinite(value)}
    if not known:
        return f"Test accuracy on {panel.title}"
    best = max(known, key=lambda label: known[label])
    return f"Test accuracy on {panel.title}: best is {best} with {known[best]:.3f}"
