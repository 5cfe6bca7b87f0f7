"""Pictures with a line per α: accuracy over rounds under several α, and over the learning rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedga.drawing.canvas import LineEnd, PanelSize, compose, label_ends, text_width
from fedga.drawing.style import (
    MUTED,
    SMALL,
    TEXT,
    LineStyle,
    algorithm_color,
    algorithm_rank,
    display_name,
    drawing,
    line_style,
    shade,
)
from fedga.errors import FedGAError
from fedga.paper.report.pictures import one_model
from fedga.paper.report.scores import Reading, score
from fedga.paper.report.tuning import chosen_rates
from fedga.report.curves import Curve, mean
from fedga.report.figures.lines import diverged_text, draw_line, fitted_limits, over_seeds
from fedga.report.series import Panel, panels_with
from fedga.spec.catalog import dataset_name, dataset_rank
from fedga.spec.presets import preset_settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_STAR: Any = {"marker": "*", "markersize": 14, "markeredgewidth": 0.8, "linestyle": "none"}
_RING: Any = {"marker": "o", "markersize": 13, "markeredgewidth": 1.2, "linestyle": "none"}
_RING |= {"markerfacecolor": "none", "markeredgecolor": TEXT}
_FAILED: Any = {"marker": "x", "markersize": 8, "markeredgewidth": 2.0, "linestyle": "none"}


def alphas_picture(curves: Sequence[Curve], *, title: str = "") -> Figure:
    """Accuracy over rounds under several α, one panel per data set: the paper's Fig. 4.

    A colour is an algorithm, and the smaller α, the darker it is. Bands of so many lines would hide each other: the
    line is the mean over seeds, and no more.
    """
    panels = panels_with(one_model(curves), ("accuracy",))
    datasets = _datasets(panels)
    alphas = _alphas(panels)
    with drawing():
        names = [_under_alpha(series.label, panel.alpha) for panel in panels for series in panel.series]
        widest = max(text_width(f"0.000 {name}", SMALL) for name in names)
        alone = len(datasets) == 1
        size = PanelSize(4.9, 3.9, right=widest + 0.35, top=0.15 if alone else 0.36)
        heading = title or (f"Accuracy on {dataset_name(datasets[0])} by α" if alone else "")
        caption = over_seeds(panels, "Mean")
        figure, axes = compose(len(datasets), 1, size, title=heading, caption=caption + diverged_text(panels))
        for at, dataset in zip(axes, datasets, strict=True):
            _draw_alphas(at, [panel for panel in panels if panel.dataset == dataset], alphas)
            at.set_title("" if alone else dataset_name(dataset))
    return figure


def _datasets(panels: Sequence[Panel]) -> list[str]:
    return sorted({panel.dataset for panel in panels}, key=dataset_rank)


def _alphas(panels: Sequence[Panel]) -> list[float | None]:
    """From the mildest skew to the strongest."""
    return sorted({panel.alpha for panel in panels}, key=lambda alpha: -np.inf if alpha is None else -alpha)


def _under_alpha(name: str, alpha: float | None) -> str:
    return name if alpha is None else f"{name}, α = {alpha:g}"


def _alpha_style(algorithm: str, alpha: float | None, alphas: Sequence[float | None]) -> LineStyle:
    amount = 0.55 - 1.0 * alphas.index(alpha) / max(len(alphas) - 1, 1) if len(alphas) > 1 else 0.0
    return LineStyle(shade(algorithm_color(algorithm), amount), line_style(algorithm).marker, "-", 1.8)


def _draw_alphas(axes: Axes, panels: Sequence[Panel], alphas: Sequence[float | None]) -> None:
    ends = []
    for panel in panels:
        for number, series in enumerate(panel.series):
            style = _alpha_style(series.algorithm, panel.alpha, alphas)
            name = _under_alpha(series.label, panel.alpha)
            rounds, values = draw_line(axes, series, "accuracy", style, name, mean, _no_band, number)
            if len(rounds):
                ends.append(LineEnd(rounds[-1], values[-1], f"{values[-1]:.3f} {name}", shade(style.color, -0.3)))
    axes.set(xlim=(0, max((end.x for end in ends), default=1)), ylim=fitted_limits(panels, "accuracy"))
    axes.set(xlabel="round", ylabel="test accuracy")
    label_ends(axes, ends)


def _no_band(column: np.ndarray) -> tuple[float, float]:
    return np.nan, np.nan


def tuning_picture(curves: Sequence[Curve]) -> Figure:
    """FedAvg's accuracy after the last round over the learning rate, one panel per data set, a line per α.

    The best rate of a data set and α is a star, that of the preset ``paper`` has a ring.
    """
    panels = panels_with(one_model(curves), ("accuracy",))
    if any(series.settings.get("lr") is None for panel in panels for series in panel.series):
        raise FedGAError("there are no learning rates to compare: give runs that differ in --lr")
    best = chosen_rates(curves)  # refuses runs that differ in more than their rate, which no line could join
    datasets, alphas = _datasets(panels), _alphas(panels)
    algorithms = sorted({series.algorithm for panel in panels for series in panel.series}, key=algorithm_rank)
    with drawing():
        grid = (-(-len(datasets) // 3), min(3, len(datasets)))
        size = PanelSize(5.0, 3.2) if len(datasets) == 1 else PanelSize(2.9, 2.6)
        heading = f"{', '.join(map(display_name, algorithms))} after the last round, by learning rate"
        caption = over_seeds(panels, "Mean", ", bars: their standard deviation")
        legend = _rates_legend(panels, alphas)
        figure, axes = compose(*grid, size, title=heading, legend=legend, caption=caption, number=len(datasets))
        for at, dataset in zip(axes, datasets, strict=True):
            shown = [panel for panel in panels if panel.dataset == dataset]
            for panel in shown:
                published = float(preset_settings("paper", dataset, panel.alpha).values["lr"])
                marks = (best.get((dataset, panel.alpha), np.nan), published)
                _draw_rates(at, panel, _alpha_style(panel.series[0].algorithm, panel.alpha, alphas), marks)
            rates = sorted({float(series.settings["lr"]) for panel in shown for series in panel.series})
            at.set_xscale("log")
            at.set_xticks(rates, [f"{rate:g}" for rate in rates])
            at.minorticks_off()
            at.set(xlim=(rates[0] / 1.5, rates[-1] * 1.5), ylim=(0, None), xlabel="learning rate")
            at.set_ylabel("test accuracy")
            at.set_title(dataset_name(dataset))
    return figure


def _rates_legend(panels: Sequence[Panel], alphas: Sequence[float | None]) -> list[Line2D]:
    from matplotlib.lines import Line2D

    styles = {panel.alpha: _alpha_style(panel.series[0].algorithm, panel.alpha, alphas) for panel in panels}
    names = {alpha: "no α" if alpha is None else f"α = {alpha:g}" for alpha in alphas}
    lines = [Line2D([], [], label=names[alpha], **styles[alpha].keywords()) for alpha in alphas]
    lines.append(Line2D([], [], label="chosen rate", color=MUTED, markeredgecolor="white", **_STAR))
    lines.append(Line2D([], [], label="rate of preset paper", **_RING))
    if any(series.diverged for panel in panels for series in panel.series):
        lines.append(Line2D([], [], label="a run diverged", color=MUTED, **_FAILED))
    return lines


def _draw_rates(axes: Axes, panel: Panel, style: LineStyle, marks: tuple[float, float]) -> None:
    """One line: what every rate came to, which one is chosen and which the preset has, and where a run diverged."""
    tried = sorted(panel.series, key=lambda series: float(series.settings["lr"]))
    rates = np.array([float(series.settings["lr"]) for series in tried])
    reached = [score(series, Reading()) for series in tried]
    middle, wide = np.array([one.mean for one in reached]), np.array([one.deviation for one in reached])
    known = np.isfinite(middle)
    bars: dict[str, Any] = {"fmt": "none", "ecolor": style.color, "elinewidth": 0.9, "capsize": 2}
    axes.errorbar(rates[known], middle[known], np.nan_to_num(wide[known]), **bars)
    name = _under_alpha(display_name(tried[0].algorithm), panel.alpha)
    axes.plot(rates[known], middle[known], label=name, **style.keywords())
    star, ring = (known & np.isclose(rates, rate) for rate in marks)
    axes.plot(rates[star], middle[star], color=style.color, markeredgecolor="white", zorder=4, label="_star", **_STAR)
    axes.plot(rates[ring], middle[ring], zorder=5, label="_ring", **_RING)
    failed = rates[[bool(series.diverged) for series in tried]]
    axes.plot(failed, np.zeros(len(failed)), color=style.color, label="_diverged", clip_on=False, zorder=5, **_FAILED)
