"""The paper's figures, drawn from runs on any data set; every function returns a matplotlib figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedga.errors import FedGAError
from fedga.experiments.presets import preset_settings
from fedga.report.canvas import Cell, LineEnd, compose, label_ends, text_width
from fedga.report.clients import before_after_algorithms
from fedga.report.curves import Curve, mean
from fedga.report.heatmap import check_counts, counts_summary, draw_counts, draw_scale, names_width
from fedga.report.lines import (
    accuracy_curves,
    draw_accuracy,
    draw_line,
    draw_ratio,
    end_texts,
    fitted_limits,
    line_legend,
    ratio_end,
)
from fedga.report.paper.printed import dataset_name, dataset_rank
from fedga.report.paper.scores import Reading, score
from fedga.report.paper.tuning import chosen_rates
from fedga.report.series import Panel, Series, panels_with
from fedga.report.style import (
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
from fedga.report.words import curves_caption, diverged_text, seeds_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_STAR: Mapping[str, Any] = {"marker": "*", "markersize": 14, "markeredgewidth": 0.8, "linestyle": "none"}
_RING: Mapping[str, Any] = {
    "marker": "o",
    "markersize": 13,
    "markerfacecolor": "none",
    "markeredgecolor": TEXT,
    "markeredgewidth": 1.2,
    "linestyle": "none",
}
_FAILED: Mapping[str, Any] = {"marker": "x", "markersize": 8, "markeredgewidth": 2.0, "linestyle": "none"}

__all__ = [
    "alphas_picture",
    "before_after_algorithms",
    "client_ea_picture",
    "curves_picture",
    "epochs_picture",
    "labels_picture",
    "tuning_picture",
    "zoom_picture",
]


def curves_picture(
    curves: Sequence[Curve], *, metric: str = "accuracy", averaged: bool = False, title: str = ""
) -> Figure:
    """Accuracy over rounds with the deviation over seeds, one panel per data set and α: the paper's Fig. 7.

    One model of the server is drawn, the last or the ``averaged`` one; `accuracy_curves` draws both.
    """
    return accuracy_curves(_one_model(curves, metric, averaged), metric=metric, title=title)


def zoom_picture(
    curves: Sequence[Curve],
    last_round: int,
    *,
    metric: str = "accuracy",
    averaged: bool = False,
    title: str = "",
) -> Figure:
    """`curves_picture` of the rounds up to ``last_round``, its axis fitted to these: supplement, Fig. 3 to 5."""
    begun = [_until(curve, last_round) for curve in _one_model(curves, metric, averaged)]
    return accuracy_curves(begun, metric=metric, title=title, from_start=True)


def _one_model(curves: Sequence[Curve], metric: str, averaged: bool) -> list[Curve]:
    """The curves with one metric alone: of the last model, or of the averaged one under the same name."""
    name = f"averaged_{metric}" if averaged else metric
    return [replace(curve, values={metric: curve.metric(name)}) for curve in curves]


def _until(curve: Curve, last_round: int) -> Curve:
    shown = curve.rounds <= last_round
    return replace(
        curve, rounds=curve.rounds[shown], values={name: values[shown] for name, values in curve.values.items()}
    )


def alphas_picture(curves: Sequence[Curve], *, averaged: bool = False, title: str = "") -> Figure:
    """Accuracy over rounds under several α, one panel per data set: the paper's Fig. 4.

    A colour is an algorithm, and the smaller α, the darker it is. Bands of so many lines would hide each other: the
    line is the mean over seeds, and no more.
    """
    panels = panels_with(_one_model(curves, "accuracy", averaged), ("accuracy",))
    datasets = _datasets(panels)
    alphas = _alphas(panels)
    with drawing():
        names = [_under_alpha(series.label, panel.alpha) for panel in panels for series in panel.series]
        widest = max(text_width(f"0.000 {name}", SMALL) for name in names)
        alone = len(datasets) == 1
        cell = Cell(4.9, 3.9, right=widest + 0.35, top=0.15 if alone else 0.36)
        heading = title or (_over_alphas(panels) if alone else "")
        caption = "One seed." if seeds_text(panels) == "one seed" else f"Mean over {seeds_text(panels)}."
        figure, axes = compose(len(datasets), 1, cell, title=heading, caption=caption + diverged_text(panels))
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
    axes.set_xlim(0, max((end.x for end in ends), default=1))
    axes.set_ylim(fitted_limits(panels, "accuracy"))
    axes.set_xlabel("round")
    axes.set_ylabel("test accuracy")
    label_ends(axes, ends)


def _no_band(column: np.ndarray) -> tuple[float, float]:
    return np.nan, np.nan


def _over_alphas(panels: Sequence[Panel]) -> str:
    """What skew costs every algorithm, in words."""
    by_skew = sorted(panels, key=lambda panel: -np.inf if panel.alpha is None else -panel.alpha)
    mild, strong = by_skew[0], by_skew[-1]
    heading = f"Accuracy on {dataset_name(panels[0].dataset)}"
    if mild is strong:
        return f"{heading}, α = {mild.alpha:g}" if mild.alpha is not None else heading
    told = []
    for series in mild.series:
        ends = [_end(other) for other in (series, *strong.series) if other.label == series.label]
        if len(ends) == 2 and np.isfinite(ends).all():
            told.append(f"{series.label} from {ends[0]:.3f} to {ends[1]:.3f}")
    mildest = "no α" if mild.alpha is None else f"α = {mild.alpha:g}"  # data that are not dealt out by one
    return f"{heading} from {mildest} to {strong.alpha:g}" + (f": {', '.join(told)}" if told else "")


def _end(series: Series) -> float:
    values = series.per_round("accuracy", mean)
    return float(values[-1]) if len(values) else np.nan


def client_ea_picture(curves: Sequence[Curve], *, title: str = "") -> Figure:
    """EA ratio of the active clients over rounds, one panel per data set and α: the paper's Fig. 5.

    A round's value is the mean over its clients. The ratio has a heavy tail, so the line is the median over seeds and
    the band goes from the lowest to the highest.
    """
    panels = panels_with(curves, ("client_ea_ratio",))
    with drawing():
        alone = len(panels) == 1
        widest = max(text_width(ratio_end(2e7, series.label), SMALL) for panel in panels for series in panel.series)
        cell = Cell(4.6, 3.4, left=0.8, right=widest + 0.35, top=0.15) if alone else Cell(2.9, 2.4, left=0.8)
        heading = title or (f"EA ratio of the active clients: {panels[0].title}" if alone else "")
        caption = (
            "1 is unbiased. Mean over a round's active clients after their local training, in the rounds in which "
        )
        caption += "they are examined. "
        seeds = seeds_text(panels)
        caption += (
            f"Median over {seeds}, band from the lowest to the highest seed." if seeds != "one seed" else "One seed."
        )
        columns = min(3, len(panels)) if len(panels) != 4 else 2
        rows = -(-len(panels) // columns)
        legend = [] if alone else line_legend(panels, "client_ea_ratio")
        figure, axes = compose(
            rows, columns, cell, title=heading, legend=legend, caption=caption + diverged_text(panels)
        )
        for at, panel in zip(axes, panels, strict=False):
            draw_ratio(at, panel, "client_ea_ratio", names=alone)
            at.set_ylabel("EA ratio of active clients")
            at.set_title("" if alone else panel.title)
        for at in axes[len(panels) :]:
            at.set_visible(False)
    return figure


def epochs_picture(
    curves: Sequence[Curve], *, metric: str = "accuracy", averaged: bool = False, title: str = ""
) -> Figure:
    """Accuracy over the work done, one column per number of local epochs: supplement, Fig. 9 to 11.

    A round of more local epochs is more work; over all epochs of a client together, runs compare at equal work. Data
    sets and α are rows, and the panels of a row have one axis.
    """
    worked: dict[int, list[Curve]] = {}
    for curve in _one_model(curves, metric, averaged):
        if curve.settings.get("local_epochs") is None:
            raise FedGAError("there are no local epochs to compare: give runs that differ in --local-epochs")
        epochs = int(curve.settings["local_epochs"])
        worked.setdefault(epochs, []).append(replace(curve, rounds=epochs * curve.rounds))
    columns = {epochs: panels_with(worked[epochs], (metric,)) for epochs in sorted(worked)}
    every = [panel for panels in columns.values() for panel in panels]
    rows = sorted({_place(panel) for panel in every}, key=lambda place: (dataset_rank(place[0]), place[1] or 0.0))
    with drawing():
        room = max(text_width(text, SMALL) for panel in every for text in end_texts(panel, metric, names=False)) + 0.3
        cells = [Cell(2.45, 2.6, left=0.85 if at == 0 else 0.15, right=room) for at in range(len(columns))]
        heading = title or ("" if len(rows) > 1 else f"Local epochs at equal work: {every[0].title}")
        figure, axes = compose(
            len(rows),
            len(columns),
            cells,
            title=heading,
            legend=line_legend(every, metric),
            caption=curves_caption(every, metric),
        )
        places = iter(axes)
        for row in rows:
            limits = fitted_limits([panel for panel in every if _place(panel) == row], metric)
            for epochs, panels in columns.items():
                at, found = next(places), [panel for panel in panels if _place(panel) == row]
                if not found:
                    at.set_visible(False)
                    continue
                draw_accuracy(at, found[0], metric, names=False, limits=limits)
                at.set_title(f"{epochs} local epoch" + "s" * (epochs != 1))
                at.set_xlabel("local epochs in all")
                if epochs != min(columns):
                    at.set_ylabel("")
                    at.tick_params(axis="y", labelleft=False)
                elif len(rows) > 1:
                    at.set_ylabel(f"{found[0].title}\n{at.get_ylabel()}")
    return figure


def _place(panel: Panel) -> tuple[str, float | None]:
    return panel.dataset, panel.alpha


def labels_picture(
    class_counts_by_alpha: Mapping[float, np.ndarray],
    class_names: Sequence[str],
    *,
    most_clients: int = 30,
    title: str = "",
) -> Figure:
    """Who holds which classes under several α, one map above the other: supplement, Fig. 1 and 2.

    class_counts_by_alpha: ``[clients, classes]`` for every α; the first ``most_clients`` are drawn.
    """
    if not class_counts_by_alpha:
        raise FedGAError("there are no label counts to draw: give those of one α or more")
    every = {alpha: check_counts(counts, class_names) for alpha, counts in class_counts_by_alpha.items()}
    shown = {alpha: counts[:most_clients] for alpha, counts in every.items()}
    largest = int(max(counts.max() for counts in shown.values()))
    clients, classes = max(len(counts) for counts in shown.values()), len(class_names)
    with drawing():
        caption = "Empty: the client has no sample of the class. "
        caption += " ".join(f"α = {alpha:g}: {counts_summary(counts)}" for alpha, counts in every.items())
        left = names_width(class_names) + 0.45
        cell = Cell(min(0.27 * clients, 8.1), min(0.2 * classes, 4.5), left=left, right=0.95)
        heading = title or f"Samples of every class at the first {clients} clients"
        figure, axes = compose(len(shown), 1, cell, title=heading, caption=caption, least_width=6.0)
        for at, (alpha, counts) in zip(axes, shown.items(), strict=True):
            mesh = draw_counts(at, counts, class_names, largest)
            at.set_title(f"α = {alpha:g}")
        draw_scale(figure, mesh, largest, axes[0], axes[-1])
    return figure


def tuning_picture(
    curves: Sequence[Curve], chosen: Mapping[tuple[str, float | None], float] | None = None, *, title: str = ""
) -> Figure:
    """Accuracy after the last round over the learning rate, one panel per data set, a line per α.

    The rate that is ``chosen`` for a data set and α (by default the best) is a star, that of the preset ``paper`` has a
    ring.
    """
    panels = panels_with(_one_model(curves, "accuracy", averaged=False), ("accuracy",))
    if any(series.settings.get("lr") is None for panel in panels for series in panel.series):
        raise FedGAError("there are no learning rates to compare: give runs that differ in --lr")
    best = chosen_rates(curves)  # refuses runs that differ in more than their rate, which no line could join
    datasets, alphas, stars = _datasets(panels), _alphas(panels), best if chosen is None else chosen
    algorithms = sorted({series.algorithm for panel in panels for series in panel.series}, key=algorithm_rank)
    with drawing():
        columns = min(3, len(datasets))
        cell = Cell(5.0, 3.2) if columns == 1 else Cell(2.9, 2.6)
        heading = title or f"{', '.join(map(display_name, algorithms))} after the last round, by learning rate"
        several = seeds_text(panels) != "one seed"
        caption = f"Mean over {seeds_text(panels)}, bars: their standard deviation." if several else "One seed."
        legend = _rates_legend(panels, alphas)
        rows = -(-len(datasets) // columns)
        figure, axes = compose(rows, columns, cell, title=heading, legend=legend, caption=caption)
        for at, dataset in zip(axes, datasets, strict=False):
            _draw_rates(at, [panel for panel in panels if panel.dataset == dataset], alphas, stars)
            at.set_title(dataset_name(dataset))
        for at in axes[len(datasets) :]:
            at.set_visible(False)
    return figure


def _rates_legend(panels: Sequence[Panel], alphas: Sequence[float | None]) -> list[Line2D]:
    from matplotlib.lines import Line2D

    told = len({series.algorithm for panel in panels for series in panel.series}) > 1 or None in alphas
    entries = {
        _under_alpha(display_name(series.algorithm), alpha) if told else f"α = {alpha:g}": _alpha_style(
            series.algorithm, alpha, alphas
        )
        for alpha in alphas
        for panel in panels
        for series in panel.series
        if panel.alpha == alpha
    }
    lines = [Line2D([], [], label=label, **style.keywords()) for label, style in entries.items()]
    lines.append(Line2D([], [], label="chosen rate", color=MUTED, markeredgecolor="white", **_STAR))
    lines.append(Line2D([], [], label="rate of preset paper", **_RING))
    if any(series.diverged for panel in panels for series in panel.series):
        lines.append(Line2D([], [], label="a run diverged", color=MUTED, **_FAILED))
    return lines


def _draw_rates(
    axes: Axes,
    panels: Sequence[Panel],
    alphas: Sequence[float | None],
    chosen: Mapping[tuple[str, float | None], float],
) -> None:
    rates = sorted({_rate(series) for panel in panels for series in panel.series})
    for panel in panels:
        marks = (chosen.get((panel.dataset, panel.alpha), np.nan), _rate_of_paper(panel))
        for algorithm in dict.fromkeys(series.algorithm for series in panel.series):
            tried = sorted((series for series in panel.series if series.algorithm == algorithm), key=_rate)
            style = _alpha_style(algorithm, panel.alpha, alphas)
            _draw_tried(axes, tried, style, _under_alpha(display_name(algorithm), panel.alpha), marks)
    axes.set_xscale("log")
    axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
    axes.minorticks_off()
    axes.set(xlim=(rates[0] / 1.5, rates[-1] * 1.5), ylim=(0, None), xlabel="learning rate", ylabel="test accuracy")


def _rate(series: Series) -> float:
    return float(series.settings["lr"])


def _rate_of_paper(panel: Panel) -> float:
    return float(preset_settings("paper", panel.dataset, panel.alpha).values["lr"])


def _draw_tried(axes: Axes, tried: Sequence[Series], style: LineStyle, label: str, marks: tuple[float, float]) -> None:
    """One line: what every rate came to, which one is chosen and which the preset has, and where a run diverged."""
    rates = np.array([_rate(series) for series in tried])
    reached = [score(series, Reading()) for series in tried]
    middle, wide = np.array([one.mean for one in reached]), np.array([one.deviation for one in reached])
    known = np.isfinite(middle)
    bars: dict[str, Any] = {"fmt": "none", "ecolor": style.color, "elinewidth": 0.9, "capsize": 2}
    axes.errorbar(rates[known], middle[known], np.nan_to_num(wide[known]), **bars)
    axes.plot(rates[known], middle[known], label=label, **style.keywords())
    star, ring = (known & np.isclose(rates, rate) for rate in marks)
    axes.plot(rates[star], middle[star], color=style.color, markeredgecolor="white", zorder=4, label="_star", **_STAR)
    axes.plot(rates[ring], middle[ring], zorder=5, label="_ring", **_RING)
    failed = rates[[bool(series.diverged) for series in tried]]
    axes.plot(failed, np.zeros(len(failed)), color=style.color, label="_diverged", clip_on=False, zorder=5, **_FAILED)
