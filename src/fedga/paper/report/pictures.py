"""The paper's figures, drawn from runs on any data set; every function returns a matplotlib figure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedga.drawing.canvas import PanelSize, compose, rows_and_columns, text_width
from fedga.drawing.heatmap import check_counts, counts_summary, draw_counts, draw_scale, names_width
from fedga.drawing.style import SMALL, drawing
from fedga.errors import FedGAError
from fedga.report.curves import Curve
from fedga.report.figures.lines import (
    accuracy_curves,
    curves_caption,
    diverged_text,
    draw_accuracy,
    draw_ratio,
    end_texts,
    fitted_limits,
    line_legend,
    over_seeds,
    ratio_end,
)
from fedga.report.series import panels_with
from fedga.report.words import plural
from fedga.spec.catalog import dataset_rank

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_METRIC = "accuracy"


def curves_picture(curves: Sequence[Curve], *, averaged: bool = False, title: str = "") -> Figure:
    """Accuracy over rounds with the deviation over seeds, one panel per data set and α: the paper's Fig. 7.

    One model of the server is drawn, the last or the ``averaged`` one; `accuracy_curves` draws both.
    """
    return accuracy_curves(one_model(curves, averaged), title=title)


def zoom_picture(curves: Sequence[Curve], last_round: int, *, title: str = "") -> Figure:
    """`curves_picture` of the rounds up to ``last_round``, its axis fitted to these: supplement, Fig. 3 to 5."""
    begun = []
    for curve in curves:
        shown = curve.rounds <= last_round
        begun.append(replace(curve, rounds=curve.rounds[shown], values={_METRIC: curve.metric(_METRIC)[shown]}))
    return accuracy_curves(begun, title=title, from_start=True)


def one_model(curves: Sequence[Curve], averaged: bool = False) -> list[Curve]:
    """The curves with accuracy alone: of the last model, or of the averaged one under the same name."""
    name = f"averaged_{_METRIC}" if averaged else _METRIC
    return [replace(curve, values={_METRIC: curve.metric(name)}) for curve in curves]


def client_ea_picture(curves: Sequence[Curve], *, title: str = "") -> Figure:
    """EA ratio of the active clients over rounds, one panel per data set and α: the paper's Fig. 5.

    A round's value is the mean over its clients. The ratio has a heavy tail, so the line is the median over seeds and
    the band goes from the lowest to the highest.
    """
    panels = panels_with(curves, ("client_ea_ratio",))
    with drawing():
        alone = len(panels) == 1
        widest = max(text_width(ratio_end(2e7, series.label), SMALL) for panel in panels for series in panel.series)
        size = PanelSize(4.6, 3.4, left=0.8, right=widest + 0.35, top=0.15) if alone else PanelSize(2.9, 2.4, left=0.8)
        heading = title or (f"EA ratio of the active clients: {panels[0].title}" if alone else "")
        caption = "1 is unbiased. Mean over a round's active clients after local training, in evaluated rounds. "
        caption += over_seeds(panels, "Median", ", band from the lowest to the highest seed") + diverged_text(panels)
        grid, legend = rows_and_columns(len(panels)), [] if alone else line_legend(panels, "client_ea_ratio")
        figure, axes = compose(*grid, size, title=heading, legend=legend, caption=caption, number=len(panels))
        for at, panel in zip(axes, panels, strict=True):
            draw_ratio(at, panel, "client_ea_ratio", names=alone)
            at.set_ylabel("EA ratio of active clients")
            at.set_title("" if alone else panel.title)
    return figure


def epochs_picture(curves: Sequence[Curve], *, title: str = "") -> Figure:
    """Accuracy over the work done, one column per number of local epochs: supplement, Fig. 9 to 11.

    A round of more local epochs is more work; over all epochs of a client together, runs compare at equal work. Data
    sets and α are rows, and the panels of a row have one axis.
    """
    worked: dict[int, list[Curve]] = {}
    for curve in one_model(curves):
        if curve.settings.get("local_epochs") is None:
            raise FedGAError("there are no local epochs to compare: give runs that differ in --local-epochs")
        epochs = int(curve.settings["local_epochs"])
        worked.setdefault(epochs, []).append(replace(curve, rounds=epochs * curve.rounds))
    panels = {
        (panel.dataset, panel.alpha, epochs): panel
        for epochs in sorted(worked)
        for panel in panels_with(worked[epochs], (_METRIC,))
    }
    every, columns = list(panels.values()), sorted(worked)
    rows = sorted({place[:2] for place in panels}, key=lambda place: (dataset_rank(place[0]), place[1] or 0.0))
    with drawing():
        room = max(text_width(text, SMALL) for panel in every for text in end_texts(panel, _METRIC, names=False)) + 0.3
        sizes = [PanelSize(2.45, 2.6, left=0.85 if at == 0 else 0.15, right=room) for at in range(len(columns))]
        heading = title or ("" if len(rows) > 1 else f"Local epochs at equal work: {every[0].title}")
        around: Any = {"legend": line_legend(every, _METRIC), "caption": curves_caption(every, _METRIC)}
        figure, axes = compose(len(rows), len(columns), sizes, title=heading, **around)
        for at, (row, epochs) in zip(axes, itertools.product(rows, columns), strict=True):
            panel = panels.get((*row, epochs))
            if panel is None:
                at.set_visible(False)
                continue
            limits = fitted_limits([panel for place, panel in panels.items() if place[:2] == row], _METRIC)
            draw_accuracy(at, panel, _METRIC, names=False, limits=limits)
            at.set_title(plural(epochs, "local epoch"))
            at.set_xlabel("local epochs in all")
            if epochs != columns[0]:
                at.set_ylabel("")
                at.tick_params(axis="y", labelleft=False)
            elif len(rows) > 1:
                at.set_ylabel(f"{panel.title}\n{at.get_ylabel()}")
    return figure


def labels_picture(
    class_counts_by_alpha: Mapping[float, np.ndarray], class_names: Sequence[str], *, most_clients: int = 30
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
        size = PanelSize(min(0.27 * clients, 8.1), min(0.2 * classes, 4.5), left=left, right=0.95)
        heading = f"Samples of every class at the first {clients} clients"
        figure, axes = compose(len(shown), 1, size, title=heading, caption=caption, least_width=6.0)
        for at, (alpha, counts) in zip(axes, shown.items(), strict=True):
            mesh = draw_counts(at, counts, class_names, largest)
            at.set_title(f"α = {alpha:g}")
        draw_scale(figure, mesh, largest, axes[0], axes[-1])
    return figure
