"""What a round of local training costs the clients, class by class; alone, and beside accuracy over rounds."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedga.drawing.canvas import Axes, Figure, PanelSize, compose, rows_and_columns, text_width
from fedga.drawing.style import MUTED, SMALL, TEXT, drawing, shade
from fedga.errors import FedGAError
from fedga.report.curves import Curve, deviation, main_accuracy, mean, metric_title
from fedga.report.figures.lines import curves_caption, draw_accuracy, end_texts, seeds_text
from fedga.report.series import Panel, Series, make_panels, panels_with
from fedga.report.words import signed

KINDS = {f"forgetting_{kind}": f"{kind}\nclasses" for kind in ("frequent", "rare", "missing")}
_MOST_WRITTEN = 9  # bars of a group: the heights of more would overlap
_CAPTION = (
    "Drop of the test accuracy of a client's classes from the model it received to the one it returns; above 0 it "
    "forgot. Missing: it holds no sample of the class; frequent: at least its mean count; rare: in between."
)
_GROUPS = {"forgetting_rare": "rare classes", "forgetting_missing": "missing classes"}


def forgetting_bars(curves: Sequence[Curve], *, title: str = "") -> Figure:
    """Accuracy a round takes from the clients' classes: mean over evaluated rounds, then seeds, with deviations."""
    panels = forgetting_panels(curves)
    if not panels:
        raise FedGAError("there is no forgetting to draw: no run has evaluated its active clients yet")
    with drawing():
        bars = max(len(panel.series) for panel in panels)
        columns = 2 if bars <= 4 else 1
        size = PanelSize(min(max(4.2, 0.42 * (3 * bars + 2)), 11.0), 2.7, top=0.36 if len(panels) > 1 else 0.15)
        heading = title or ("" if len(panels) > 1 else f"Accuracy lost in a round of local training: {panels[0].title}")
        caption = f"{_CAPTION} Mean over the evaluated rounds and {seeds_text(panels)}."
        legend = {series.label: bar_style(series) for panel in panels for series in panel.series}
        grid = rows_and_columns(len(panels), columns)
        figure, axes = compose(*grid, size, title=heading, legend=legend, caption=caption, number=len(panels))
        for at, panel in zip(axes, panels, strict=True):
            _draw_forgetting(at, panel)
            at.set_title(panel.title if len(panels) > 1 else "")
    return figure


def forgetting_panels(curves: Sequence[Curve]) -> list[Panel]:
    """The series in which active clients were evaluated."""
    panels = []
    for panel in make_panels(curves):
        series = [of for of in panel.series if any(np.isfinite(per_seed(of, kind)).any() for kind in KINDS)]
        panels += [Panel(panel.dataset, panel.alpha, tuple(series))] if series else []
    return panels


def per_seed(series: Series, kind: str) -> np.ndarray:
    """Mean over the evaluated rounds of every sound run, ``[runs]``."""
    return np.array([curve.over_rounds(kind) for curve in series.sound])


def _draw_forgetting(axes: Axes, panel: Panel) -> None:
    """Groups of bars, one per kind of class; their heights are written on them."""
    number = len(panel.series)
    width = 0.84 / number
    for place, series in enumerate(panel.series):
        at = np.arange(len(KINDS)) + (place - (number - 1) / 2) * width
        height = np.array([mean(per_seed(series, kind)) for kind in KINDS])
        whisker = np.array([deviation(per_seed(series, kind)) for kind in KINDS])
        axes.bar(at, height, 0.92 * width, label=series.label, **bar_style(series))
        known = np.isfinite(height)
        axes.errorbar(at[known], height[known], np.nan_to_num(whisker[known]), fmt="none", ecolor=TEXT, elinewidth=0.9)
        for x, y, error in zip(at, height, np.nan_to_num(whisker), strict=True):
            if np.isfinite(y) and number <= _MOST_WRITTEN:
                text, up = signed(y, 2).removeprefix("+"), 1 if y >= 0 else -1
                where: Any = {"textcoords": "offset points", "ha": "center", "va": "bottom" if up > 0 else "top"}
                axes.annotate(text, (x, y + up * error), (0, 2 * up), size=0.85 * SMALL, **where)
    axes.axhline(0, color=MUTED, linewidth=0.8)
    axes.margins(y=0.12)
    axes.grid(axis="x", visible=False)
    axes.set_xticks(range(len(KINDS)), list(KINDS.values()))
    axes.tick_params(axis="x", length=0, labelcolor=TEXT)
    axes.set_ylabel("accuracy lost")


def bar_style(series: Series) -> dict[str, Any]:
    color = series.style().color
    if series.preset == "strong":
        return {"facecolor": shade(color, 0.55), "edgecolor": color, "hatch": "////", "linewidth": 0.8}
    return {"facecolor": color, "edgecolor": color, "linewidth": 0.8}


def demo_picture(curves: Sequence[Curve], *, dataset: str | None = None, alpha: float | None = None) -> Figure:
    """Left accuracy over rounds, right what clients forget; by default of the first data set and its smallest α."""
    metric = main_accuracy(curves)
    panels = panels_with(curves, (metric, f"averaged_{metric}"))
    fitting = [one for one in panels if dataset in (None, one.dataset) and alpha in (None, one.alpha)]
    if not fitting:
        raise FedGAError(f"there is nothing to draw of {dataset}, α = {alpha}: the results have other data sets and α")
    panel = fitting[0]
    forgetting = next((one for one in forgetting_panels(curves) if one.title == panel.title), None)
    with drawing():
        room = max(text_width(text, SMALL) for text in end_texts(panel, metric, names=True)) + 0.3
        height = max(3.5, 0.17 * (2 * len(panel.series) + 3))
        sizes = [PanelSize(4.4, height, right=room, top=0.42)]
        caption = curves_caption([panel], metric)
        if forgetting:
            names = max(text_width(series.label, SMALL) for series in forgetting.series)
            sizes.append(PanelSize(2.4, height, left=names + 0.3, right=0.3, top=0.42))
            caption += " Rare: fewer samples than the client's mean class has; missing: none."
        figure, axes = compose(1, len(sizes), sizes, title=_headline(panel, metric), caption=caption)
        draw_accuracy(axes[0], panel, metric, names=True)
        whose = "the global model" if metric == "accuracy" else "clients' own models"
        axes[0].set_title(f"Accuracy of {whose}")
        if forgetting:
            _draw_forgotten(axes[1], forgetting)
    return figure


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
            axes.annotate(signed(length, 2).removeprefix("+"), (edge, place), (4, 0), **beside)
        place += 1.5
    axes.axvline(0, color=MUTED, linewidth=0.8)
    axes.set_yticks(list(names), list(names.values()))
    axes.tick_params(axis="y", length=0, labelcolor=TEXT)
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    axes.set(ylim=(place - 0.9, -0.7), xlim=(None, max(1.22 * longest, 0.02)))
    axes.set(xlabel="accuracy lost in a round", title="What clients forget")


def _headline(panel: Panel, metric: str) -> str:
    """The place, and which series has the highest accuracy after the last round."""
    ends = {series.label: series.per_round(metric, mean)[-1] for series in panel.series if len(series.rounds)}
    known = {label: value for label, value in ends.items() if np.isfinite(value)}
    curves = [curve for series in panel.series for curve in series.curves]
    title = f"{metric_title(metric, curves).capitalize()} on {panel.title}"
    if not known:
        return title
    best = max(known, key=lambda label: known[label])
    return f"{title}: best is {best} with {known[best]:.3f}"
