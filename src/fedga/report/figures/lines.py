"""Curves over rounds: accuracy and error asymmetry, seeds as a line with a band."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedga.drawing.canvas import Axes, Figure, LineEnd, PanelSize, compose, label_ends, rows_and_columns, text_width
from fedga.drawing.style import BAND, SMALL, LineStyle, drawing, shade
from fedga.measures.columns import metric_column
from fedga.report import words
from fedga.report.curves import Curve, deviation, mean, median, metric_title
from fedga.report.series import Panel, Series, measured, panels_with

AVERAGED = ", averaged"
_MARKERS = 7  # per line
Statistics = tuple[Callable[[np.ndarray], float], Callable[[np.ndarray], tuple[float, float]]]  # over seeds: line, band


def seeds_text(panels: Sequence[Panel]) -> str:
    """How many seeds the lines are made of."""
    return words.seeds_text(len(series.sound) for panel in panels for series in panel.series if series.sound)


def over_seeds(panels: Sequence[Panel], statistic: str, spread: str = "") -> str:
    """What a line and its band are: "Mean over 3 seeds, band: their standard deviation."."""
    seeds = seeds_text(panels)
    return "One seed." if seeds == "one seed" else f"{statistic} over {seeds}{spread}."


def curves_caption(panels: Sequence[Panel], metric: str) -> str:
    """What lines, bands and crosses of `draw_accuracy` are."""
    caption = over_seeds(panels, "Mean", ", band: their standard deviation")
    if measured(panels, f"averaged_{metric}"):
        caption += " Dotted: the model averaged over rounds on the server."
    return caption + diverged_text(panels)


def diverged_text(panels: Sequence[Panel]) -> str:
    """Which runs a picture shows with a cross; empty if none."""
    every = [(series, panel.title) for panel in panels for series in panel.series if series.diverged]
    where = " at {}" if len(panels) > 1 else ""
    found = [f"{len(of.diverged)} of {len(of.curves)} of {of.label}{where.format(title)}" for of, title in every]
    return f" ×: runs that diverged, left out of the mean ({'; '.join(found)})." if found else ""


def accuracy_curves(
    curves: Sequence[Curve], *, metric: str = "accuracy", title: str = "", from_start: bool = False
) -> Figure:
    """Accuracy (or another metric of the global model) over rounds: one panel per data set and α.

    The line is the mean over seeds, the band their standard deviation. The model averaged over rounds on the server is
    a second, dotted line. A run that diverged is a thin line that ends in a cross, and counts in no mean. The axis is
    fitted to the lines once they have left chance, or, with ``from_start``, to all of them.
    """
    panels = panels_with(curves, (metric, f"averaged_{metric}"))
    with drawing():
        alone = len(panels) == 1
        legend = {} if alone else line_legend(panels, metric)
        room = max(text_width(end, SMALL) for panel in panels for end in end_texts(panel, metric, names=alone)) + 0.3
        size = PanelSize(5.6, 3.9, right=room, top=0.15) if alone else PanelSize(2.75, 2.3, right=room)
        caption = curves_caption(panels, metric)
        heading = title or (panels[0].title if alone else "")
        grid = rows_and_columns(len(panels))
        figure, axes = compose(*grid, size, title=heading, legend=legend, caption=caption, number=len(panels))
        for at, panel in zip(axes, panels, strict=True):
            draw_accuracy(at, panel, metric, names=alone, limits=fitted_limits([panel], metric, from_start=from_start))
            at.set_title("" if alone else panel.title)
    return figure


def ea_ratio_curves(curves: Sequence[Curve], *, title: str = "") -> Figure:
    """Error asymmetry over rounds; its tail is heavy: median over seeds, band from the lowest to the highest."""
    columns = {"ea_ratio": "global model", "client_ea_ratio": "active clients"}
    panels = panels_with(curves, tuple(columns))
    known = [metric for metric in columns if measured(panels, metric)]
    with drawing():
        caption = "1 is unbiased. Active clients: the mean of their models after local training. "
        caption += f"Median over {seeds_text(panels)}, band from the lowest to the highest seed.{diverged_text(panels)}"
        legend = line_legend(panels, "ea_ratio")
        size = PanelSize(3.7, 2.5, left=0.75)
        heading = title or ("" if len(panels) > 1 else f"Error asymmetry: {panels[0].title}")
        figure, axes = compose(len(panels), len(known), size, title=heading, legend=legend, caption=caption)
        for at, (panel, metric) in zip(axes, itertools.product(panels, known), strict=True):
            draw_ratio(at, panel, metric)
            at.set_title(f"{panel.title}: {columns[metric]}" if len(panels) > 1 else columns[metric].capitalize())
            at.set_ylabel("EA ratio" if metric == known[0] else "")
    return figure


def draw_accuracy(
    axes: Axes, panel: Panel, metric: str, *, names: bool, limits: tuple[float, float] | None = None
) -> None:
    """One panel's lines, limits and end labels; ``names`` puts the series' name beside its last value."""
    ends = []
    for label, style, rounds, values in _draw_lines(axes, panel, metric, (mean, plus_minus)):
        ends.append(LineEnd(rounds[-1], values[-1], _end_text(label, values[-1], names), shade(style.color, -0.25)))
    axes.set(xlim=(0, _last_round(panel)), ylabel=_title([panel], metric))
    if metric_column(metric).bounded:
        axes.set_ylim(limits or fitted_limits([panel], metric))
    label_ends(axes, ends)


def draw_ratio(axes: Axes, panel: Panel, metric: str, *, names: bool = False) -> None:
    """One panel's EA ratios; ``names`` writes the name of every series beside its last value."""
    highest, ends = 10.0, []
    for label, style, rounds, values in _draw_lines(axes, panel, metric, (median, _lowest_highest)):
        if style.filled:  # not the averaged model
            highest = max(highest, *values)
            ends.append(LineEnd(rounds[-1], values[-1], ratio_end(values[-1], label), shade(style.color, -0.25)))
    axes.set_yscale("log")
    axes.set_ylim(1, 20 * highest)  # a band may leave the picture: one seed in one round must not set its scale
    axes.set_xlim(left=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value < 1e5 else power_text(value))
    if names:
        axes.set_xlim(0, max((end.x for end in ends), default=1))
        label_ends(axes, ends)


def _draw_lines(
    axes: Axes, panel: Panel, metric: str, statistics: Statistics
) -> list[tuple[str, LineStyle, np.ndarray, np.ndarray]]:
    """Every series, its averaged model and its diverged runs; label, style, rounds and values of each line."""
    drawn = []
    for number, series in enumerate(panel.series):
        for name, averaged in ((metric, False), (f"averaged_{metric}", True)):
            style, label = series.style(averaged=averaged), series.label + (AVERAGED if averaged else "")
            rounds, values = draw_line(axes, series, name, style, label, statistics, number)
            drawn += [(label, style, rounds, values)] if len(rounds) else []
        for curve in series.diverged:
            known = np.isfinite(curve.metric(metric))
            rounds, values, style = curve.rounds[known], curve.metric(metric)[known], series.style()
            cross: Any = {"ms": 9, "mew": 2.2, "clip_on": False, "zorder": 5, "label": "_cross"}
            axes.plot(rounds, values, color=style.color, linestyle=style.line, linewidth=0.9, label="_diverged")
            axes.plot(rounds[-1:], values[-1:], "x", color=style.color, **cross)
    axes.set_xlabel("round")
    return drawn


def draw_line(
    axes: Axes, series: Series, metric: str, style: LineStyle, label: str, statistics: Statistics, number: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """A series' line with its band; the rounds that have a value, and the values."""
    middle, band = statistics
    values = series.per_round(metric, middle)
    known = np.isfinite(values)
    rounds, values = series.rounds[known], values[known]
    if not len(rounds):
        return rounds, values
    edges = np.array([band(column) for column in series.by_seed(metric).T])[known]
    alpha = BAND if style.filled else BAND / 2
    axes.fill_between(rounds, edges[:, 0], edges[:, 1], color=style.color, alpha=alpha, linewidth=0)
    step = max(1, len(rounds) // _MARKERS)
    every = (min(number * step // 4, len(rounds) - 1), step)
    axes.plot(rounds, values, label=label, markevery=every, **style.keywords())
    return rounds, values


def plus_minus(column: np.ndarray) -> tuple[float, float]:
    """The edges of a band of one standard deviation."""
    middle, width = mean(column), deviation(column)
    return middle - width, middle + width


def _lowest_highest(column: np.ndarray) -> tuple[float, float]:
    finite = column[np.isfinite(column)]
    return (float(finite.min()), float(finite.max())) if len(finite) > 1 else (np.nan, np.nan)


def ratio_end(value: float, label: str) -> str:
    """What `draw_ratio` writes at the end of a line.

    >>> ratio_end(12.3, "FedGA"), ratio_end(3.1e7, "FedAvg")
    ('12 FedGA', '3·10⁷ FedAvg')
    """
    if value < 1e5:
        return f"{value:,.0f} {label}"
    digit, power = f"{value:.0e}".split("e")
    return f"{digit}·{power_text(10.0 ** int(power))} {label}"


def power_text(value: float) -> str:
    """A power of ten.

    >>> power_text(1e12)
    '10¹²'
    """
    return "10" + f"{math.log10(value):.0f}".translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))


def fitted_limits(panels: Sequence[Panel], metric: str, *, from_start: bool = False) -> tuple[float, float]:
    """The range of the lines once training is under way, or with ``from_start`` of all rounds."""
    seen = [np.zeros(0)]
    for panel in panels:
        begin = -1.0 if from_start else 0.1 * _last_round(panel)
        for series in panel.series:
            means = [series.per_round(name, mean)[series.rounds > begin] for name in (metric, f"averaged_{metric}")]
            seen += [*means, *(curve.metric(metric) for curve in series.diverged)]
    values = np.concatenate(seen)
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 1.0
    low, high = float(np.quantile(values, 0.02)), float(values.max())
    pad = max(0.06 * (high - low), 0.005)
    return max(0.0, low - pad), min(1.0, high + pad)


def _title(panels: Sequence[Panel], metric: str) -> str:
    return metric_title(metric, [curve for panel in panels for series in panel.series for curve in series.curves])


def _last_round(panel: Panel) -> int:
    every = (int(curve.rounds[-1]) for series in panel.series for curve in series.curves if len(curve.rounds))
    return max(every, default=1)


def _end_text(label: str, value: float, names: bool) -> str:
    return f"{value:.3f} {label}" if names else f"{value:.3f}"


def end_texts(panel: Panel, metric: str, *, names: bool) -> list[str]:
    averaged = [series.label + AVERAGED for series in panel.series if series.has(f"averaged_{metric}")]
    return [_end_text(label, 0.0, names) for label in [series.label for series in panel.series] + averaged]


def line_legend(panels: Sequence[Panel], metric: str) -> dict[str, dict[str, Any]]:
    """One entry for every line that `draw_accuracy` or `draw_ratio` draws."""
    every = [series for panel in panels for series in panel.series]
    averaged = [series for series in every if series.has(f"averaged_{metric}")]
    plain = {series.label: series.style().keywords() for series in every}
    return plain | {series.label + AVERAGED: series.style(averaged=True).keywords() for series in averaged}
