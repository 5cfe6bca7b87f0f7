"""The paper's figures, drawn from runs on any data set; every function returns a matplotlib figure."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedga.drawing.canvas import Axes, Figure, LineEnd, PanelSize, compose, label_ends, rows_and_columns, text_width
from fedga.drawing.heatmap import check_counts, counts_summary, draw_counts, draw_scale, names_width
from fedga.drawing.style import MUTED, SMALL, TEXT, LineStyle, algorithm_rank, display_name, drawing, line_style, shade
from fedga.errors import FedGAError
from fedga.paper.report.scores import Reading, score_of
from fedga.paper.report.tuning import chosen_rates
from fedga.report.curves import Curve, mean, metric_title
from fedga.report.figures import lines
from fedga.report.series import Panel, panels_with
from fedga.report.words import plural
from fedga.spec.catalog import dataset_name, dataset_rank
from fedga.spec.presets import preset_settings

_METRIC = "accuracy"
_MOST_CLIENTS = 30  # whose labels are shown
_STAR: Any = {"marker": "*", "markersize": 14, "markeredgewidth": 0.8, "linestyle": "none"}
_RING: Any = {"marker": "o", "markersize": 13, "markeredgewidth": 1.2, "linestyle": "none"}
_RING |= {"markerfacecolor": "none", "markeredgecolor": TEXT}
_FAILED: Any = {"marker": "x", "markersize": 8, "markeredgewidth": 2.0, "linestyle": "none"}


def curves_picture(curves: Sequence[Curve], *, averaged: bool = False, title: str = "") -> Figure:
    """Accuracy over rounds of the last or the ``averaged`` model, deviation over seeds: the paper's Fig. 7."""
    return lines.accuracy_curves(one_model(curves, averaged), title=title)


def zoom_picture(curves: Sequence[Curve], last_round: int, *, title: str = "") -> Figure:
    """`curves_picture` of the rounds up to ``last_round``, its axis fitted to these: supplement, Fig. 3 to 5."""
    begun = []
    for curve in curves:
        shown = curve.rounds <= last_round
        begun.append(replace(curve, rounds=curve.rounds[shown], values={_METRIC: curve.metric(_METRIC)[shown]}))
    return lines.accuracy_curves(begun, title=title, from_start=True)


def one_model(curves: Sequence[Curve], averaged: bool = False) -> list[Curve]:
    """The curves with accuracy alone: of the last model, or of the averaged one under the same name."""
    name = f"averaged_{_METRIC}" if averaged else _METRIC
    return [replace(curve, values={_METRIC: curve.metric(name)}) for curve in curves]


def client_ea_picture(curves: Sequence[Curve]) -> Figure:
    """EA ratio of the active clients over rounds, median and range over seeds: the paper's Fig. 5."""
    panels = panels_with(curves, ("client_ea_ratio",))
    with drawing():
        alone = len(panels) == 1
        widest = max(text_width(lines.ratio_end(2e7, of.label), SMALL) for panel in panels for of in panel.series)
        size = PanelSize(4.6, 3.4, left=0.8, right=widest + 0.35, top=0.15) if alone else PanelSize(2.9, 2.4, left=0.8)
        heading = f"EA ratio of the active clients: {panels[0].title}" if alone else ""
        caption = "1 is unbiased. Mean over a round's active clients after local training, in evaluated rounds. "
        caption += lines.over_seeds(panels, "Median", ", band from the lowest to the highest seed")
        caption += lines.diverged_text(panels)
        grid, legend = rows_and_columns(len(panels)), {} if alone else lines.line_legend(panels, "client_ea_ratio")
        figure, axes = compose(*grid, size, title=heading, legend=legend, caption=caption, number=len(panels))
        for at, panel in zip(axes, panels, strict=True):
            lines.draw_ratio(at, panel, "client_ea_ratio", names=alone)
            at.set(ylabel="EA ratio of active clients", title="" if alone else panel.title)
    return figure


def epochs_picture(curves: Sequence[Curve]) -> Figure:
    """Accuracy over all epochs of a client (equal work), one column per local epochs: supplement, Fig. 9 to 11."""
    worked: dict[int, list[Curve]] = {}
    for curve in one_model(curves):
        if curve.settings.get("local_epochs") is None:
            raise FedGAError("there are no local epochs to compare: give runs that differ in --local-epochs")
        epochs = int(curve.settings["local_epochs"])
        worked.setdefault(epochs, []).append(replace(curve, rounds=epochs * curve.rounds))
    found = [(epochs, panel) for epochs in sorted(worked) for panel in panels_with(worked[epochs], (_METRIC,))]
    panels = {(panel.dataset, panel.alpha, epochs): panel for epochs, panel in found}
    every, columns = list(panels.values()), sorted(worked)
    rows = sorted({place[:2] for place in panels}, key=lambda place: (dataset_rank(place[0]), place[1] or 0.0))
    with drawing():
        ends = [text for panel in every for text in lines.end_texts(panel, _METRIC, names=False)]
        room = max(text_width(text, SMALL) for text in ends) + 0.3
        sizes = [PanelSize(2.45, 2.6, left=0.85 if at == 0 else 0.15, right=room) for at in range(len(columns))]
        heading = "" if len(rows) > 1 else f"Local epochs at equal work: {every[0].title}"
        around: Any = {"legend": lines.line_legend(every, _METRIC), "caption": lines.curves_caption(every, _METRIC)}
        figure, axes = compose(len(rows), len(columns), sizes, title=heading, **around)
        for at, (row, epochs) in zip(axes, itertools.product(rows, columns), strict=True):
            panel = panels.get((*row, epochs))
            if panel is None:
                at.set_visible(False)
                continue
            limits = lines.fitted_limits([panel for place, panel in panels.items() if place[:2] == row], _METRIC)
            lines.draw_accuracy(at, panel, _METRIC, names=False, limits=limits)
            at.set(title=plural(epochs, "local epoch"), xlabel="local epochs in all")
            if epochs != columns[0]:
                at.set_ylabel("")
                at.tick_params(axis="y", labelleft=False)
            elif len(rows) > 1:
                at.set_ylabel(f"{panel.title}\n{at.get_ylabel()}")
    return figure


def labels_picture(class_counts_by_alpha: Mapping[float, np.ndarray], class_names: Sequence[str]) -> Figure:
    """Who holds which classes (``[clients, classes]``) under several α: supplement, Fig. 1 and 2."""
    if not class_counts_by_alpha:
        raise FedGAError("there are no label counts to draw: give those of one α or more")
    every = {alpha: check_counts(counts, class_names) for alpha, counts in class_counts_by_alpha.items()}
    shown = {alpha: counts[:_MOST_CLIENTS] for alpha, counts in every.items()}
    largest = int(max(counts.max() for counts in shown.values()))
    clients, classes = max(len(counts) for counts in shown.values()), len(class_names)
    with drawing():
        caption = "Empty: the client has no sample of the class. "
        caption += " ".join(f"α = {alpha:g}: {counts_summary(counts)}" for alpha, counts in every.items())
        left = names_width(class_names) + 0.45
        size = PanelSize(min(0.27 * clients, 8.1), min(0.2 * classes, 4.5), left=left, right=0.95)
        heading = f"Samples of every class at the first {clients} clients"
        figure, axes = compose(len(shown), 1, size, title=heading, caption=caption, least_width=6.0)
        for at, (alpha, counts) in zip(axes, shown.items(), strict=True):
            mesh = draw_counts(at, counts, class_names, largest)
            at.set_title(f"α = {alpha:g}")
        draw_scale(figure, mesh, largest, axes[0], axes[-1])
    return figure


def alphas_picture(curves: Sequence[Curve]) -> Figure:
    """Accuracy over rounds, mean over seeds, the smaller α the darker; one panel per data set: the paper's Fig. 4."""
    panels = panels_with(one_model(curves), ("accuracy",))
    datasets, alphas = _datasets(panels), _alphas(panels)
    with drawing():
        names = [_under_alpha(series.label, panel.alpha) for panel in panels for series in panel.series]
        widest = max(text_width(f"0.000 {name}", SMALL) for name in names)
        alone = len(datasets) == 1
        size = PanelSize(4.9, 3.9, right=widest + 0.35, top=0.15 if alone else 0.36)
        heading = f"Accuracy on {dataset_name(datasets[0])} by α" if alone else ""
        caption = lines.over_seeds(panels, "Mean")
        figure, axes = compose(len(datasets), 1, size, title=heading, caption=caption + lines.diverged_text(panels))
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
    return LineStyle(shade(line_style(algorithm).color, amount), line_style(algorithm).marker, "-", 1.8)


def _draw_alphas(axes: Axes, panels: Sequence[Panel], alphas: Sequence[float | None]) -> None:
    ends = []
    for panel in panels:
        for number, series in enumerate(panel.series):
            style = _alpha_style(series.algorithm, panel.alpha, alphas)
            name = _under_alpha(series.label, panel.alpha)
            line_alone = (mean, lambda _: (np.nan, np.nan))
            rounds, values = lines.draw_line(axes, series, "accuracy", style, name, line_alone, number)
            if len(rounds):
                ends.append(LineEnd(rounds[-1], values[-1], f"{values[-1]:.3f} {name}", shade(style.color, -0.3)))
    axes.set(xlim=(0, max((end.x for end in ends), default=1)), ylim=lines.fitted_limits(panels, "accuracy"))
    axes.set(xlabel="round", ylabel="test accuracy")
    label_ends(axes, ends)


def tuning_picture(curves: Sequence[Curve]) -> Figure:
    """FedAvg's accuracy at the end over the learning rate; the best has a star, that of preset ``paper`` a ring."""
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
        caption = lines.over_seeds(panels, "Mean", ", bars: their standard deviation")
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
            at.set(xlim=(rates[0] / 1.5, rates[-1] * 1.5), ylim=(0, None))
            at.set(xlabel="learning rate", ylabel=metric_title("accuracy", curves), title=dataset_name(dataset))
    return figure


def _rates_legend(panels: Sequence[Panel], alphas: Sequence[float | None]) -> dict[str, dict[str, Any]]:
    styles = {panel.alpha: _alpha_style(panel.series[0].algorithm, panel.alpha, alphas) for panel in panels}
    entries = {"no α" if alpha is None else f"α = {alpha:g}": styles[alpha].keywords() for alpha in alphas}
    entries |= {"chosen rate": {"color": MUTED, "markeredgecolor": "white", **_STAR}, "rate of preset paper": _RING}
    if any(series.diverged for panel in panels for series in panel.series):
        entries["a run diverged"] = {"color": MUTED, **_FAILED}
    return entries


def _draw_rates(axes: Axes, panel: Panel, style: LineStyle, marks: tuple[float, float]) -> None:
    """One line: what every rate came to, which one is chosen and which the preset has, and where a run diverged."""
    tried = sorted(panel.series, key=lambda series: float(series.settings["lr"]))
    rates = np.array([float(series.settings["lr"]) for series in tried])
    reached = [score_of(series.curves, Reading()) for series in tried]
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
