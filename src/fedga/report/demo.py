"""One wide picture of a whole command: accuracy over rounds, what clients forget, and what is seen in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedga.drawing.canvas import Cell, compose, text_width
from fedga.drawing.style import MUTED, SMALL, TEXT, base_name, display_name, drawing
from fedga.errors import FedGAError
from fedga.report.bars import bar_style, forgetting_panels, per_seed
from fedga.report.curves import Curve, deviation, mean
from fedga.report.lines import draw_accuracy, end_texts
from fedga.report.series import Panel, Series, panels_with
from fedga.report.words import curves_caption

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GROUPS = {"forgetting_rare": "rare classes", "forgetting_missing": "missing classes"}
_SETTINGS = {"": "", "paper": " in the paper's setting", "strong": " in the strong setting"}


def demo_picture(curves: Sequence[Curve], *, dataset: str | None = None, alpha: float | None = None) -> Figure:
    """Left the accuracy of every algorithm over rounds, right what its clients forget, above both what that means.

    Of several data sets and α, the first data set and its smallest α (the strongest skew) are shown unless given.
    """
    panel = _choose(panels_with(curves, ("accuracy", "averaged_accuracy")), dataset, alpha)
    examined = [one for one in forgetting_panels(curves) if one.title == panel.title]
    with drawing():
        room = max(text_width(text, SMALL) for text in end_texts(panel, "accuracy", names=True)) + 0.3
        height = max(3.5, 0.17 * (2 * len(panel.series) + 3))
        cells = [Cell(4.4, height, right=room, top=0.42)]
        if examined:
            names = max(text_width(series.label, SMALL) for series in examined[0].series)
            cells.append(Cell(2.4, height, left=names + 0.3, right=0.3, top=0.42))
        title, subtitle = what_is_seen(panel, examined[0] if examined else None)
        caption = curves_caption([panel], "accuracy")
        if examined:
            caption += " Rare: fewer samples than the client's mean class has; missing: none."
        figure, axes = compose(1, len(cells), cells, title=title, subtitle=subtitle, caption=caption)
        draw_accuracy(axes[0], panel, "accuracy", names=True)
        axes[0].set_title("Accuracy of the global model")
        if examined:
            _draw_forgotten(axes[1], examined[0])
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
    place, ticks, labels = 0.0, [], []
    longest = 0.0
    for kind, name in _GROUPS.items():
        axes.annotate(name, (0, place), (2, 0), textcoords="offset points", va="center", weight="bold", size=SMALL)
        for series in panel.series:
            place += 1
            values = per_seed(series, kind)
            length, whisker = mean(values), np.nan_to_num(deviation(values))
            ticks.append(place)
            labels.append(series.label)
            if not np.isfinite(length):
                axes.annotate("not seen", (0, place), (4, 0), textcoords="offset points", va="center", size=SMALL)
                continue
            axes.barh(place, length, 0.78, label=f"{series.label}, {name}", **bar_style(series))
            axes.errorbar(length, place, xerr=whisker, fmt="none", ecolor=TEXT, elinewidth=0.9)
            edge = max(length + whisker, 0.0)
            longest = max(longest, edge)
            text = f"{length:.2f}".replace("-0.00", "0.00").replace("-", "−")
            axes.annotate(text, (edge, place), (4, 0), textcoords="offset points", va="center", size=SMALL)
        place += 1.5
    axes.axvline(0, color=MUTED, linewidth=0.8)
    axes.set_yticks(ticks, labels)
    axes.tick_params(axis="y", length=0, labelcolor=TEXT)
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    axes.set_ylim(place - 0.9, -0.7)
    axes.set_xlim(right=max(1.22 * longest, 0.02))
    axes.set_xlabel("accuracy lost in a round")
    axes.set_title("What clients forget")


def what_is_seen(panel: Panel, examined: Panel | None) -> tuple[str, str]:
    """Title and subtitle in plain words, from the numbers of the picture."""
    reached, lost = [], []
    for preset in dict.fromkeys(series.preset for series in panel.series):
        of_preset = [series for series in panel.series if series.preset == preset and series.sound]
        averaged = all(np.isfinite(_last(series, "averaged_accuracy")) for series in of_preset)
        metric = "averaged_accuracy" if averaged else "accuracy"
        told = _worth_telling([(series, _last(series, metric)) for series in of_preset])
        reached += [_listed(told, of_preset, 3) + (" (averaged model)" if averaged else "")] if told else []
        if examined:
            forgotten = [(series, mean(per_seed(series, "forgetting_missing"))) for series, _ in told]
            known = [(series, value) for series, value in forgotten if np.isfinite(value)]
            lost += [_listed(known, of_preset, 2)] if known else []
    title = f"Test accuracy on {panel.title.replace(', ', ' with ')}" + (f": {'; '.join(reached)}" if reached else "")
    subtitle = "Accuracy that a round of local training costs the classes a client has no sample of: "
    return title, subtitle + "; ".join(lost) if lost else ""


def _worth_telling(scored: Sequence[tuple[Series, float]]) -> list[tuple[Series, float]]:
    """The best of these, FedGA and FedAvg (or the worst, where FedAvg is not among them), best first."""
    ranked = sorted([pair for pair in scored if np.isfinite(pair[1])], key=lambda pair: -pair[1])
    names = [base_name(series.algorithm) for series, _ in ranked]
    told = {0, *(names.index(name) for name in ("fedga", "fedavg") if name in names)} if ranked else set()
    if "fedavg" not in names and ranked:
        told.add(len(ranked) - 1)
    return [ranked[at] for at in sorted(told)]


def _listed(values: Sequence[tuple[Series, float]], among: Sequence[Series], digits: int) -> str:
    """Names and numbers, then the preset; options and settings are named where an algorithm appears more than once."""
    algorithms = [base_name(series.algorithm) for series in among]
    preset = among[0].preset
    parts = []
    for series, value in values:
        alone = algorithms.count(base_name(series.algorithm)) == 1
        first, *others = [part for part in series.label.split(", ") if part != preset]
        named = f"{first} ({', '.join(others)})" if others else first
        name = display_name(base_name(series.algorithm)) if alone else named
        parts.append(f"{name}\u00a0{value:.{digits}f}".replace("\u00a0-", "\u00a0−"))
    return ", ".join(parts) + _SETTINGS.get(preset, f" with preset {preset}")


def _last(series: Series, metric: str) -> float:
    """The end of the series' line."""
    values = series.per_round(metric, mean)
    return float(values[-1]) if len(values) else np.nan
