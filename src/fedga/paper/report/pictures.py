"""The paper's figures, drawn from runs on any data set; every function returns a matplotlib figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedga.drawing.canvas import Cell, compose, text_width
from fedga.drawing.heatmap import check_counts, counts_summary, draw_counts, draw_scale, names_width
from fedga.drawing.style import (
    SMALL,
    drawing,
)
from fedga.errors import FedGAError
from fedga.report.curves import Curve
from fedga.report.lines import (
    accuracy_curves,
    draw_accuracy,
    draw_ratio,
    end_texts,
    fitted_limits,
    line_legend,
    ratio_end,
)
from fedga.report.series import Panel, panels_with
from fedga.report.words import curves_caption, diverged_text, seeds_text
from fedga.spec.catalog import dataset_rank

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def curves_picture(
    curves: Sequence[Curve], *, metric: str = "accuracy", averaged: bool = False, title: str = ""
) -> Figure:
    """Accuracy over rounds with the deviation over seeds, one panel per data set and α: the paper's Fig. 7.

    One model of the server is drawn, the last or the ``averaged`` one; `accuracy_curves` draws both.
    """
    return accuracy_curves(one_model(curves, metric, averaged), metric=metric, title=title)


def zoom_picture(
    curves: Sequence[Curve],
    last_round: int,
    *,
    metric: str = "accuracy",
    averaged: bool = False,
    title: str = "",
) -> Figure:
    """`curves_picture` of the rounds up to ``last_round``, its axis fitted to these: supplement, Fig. 3 to 5."""
    begun = [_until(curve, last_round) for curve in one_model(curves, metric, averaged)]
    return accuracy_curves(begun, metric=metric, title=title, from_start=True)


def one_model(curves: Sequence[Curve], metric: str, averaged: bool) -> list[Curve]:
    """The curves with one metric alone: of the last model, or of the averaged one under the same name."""
    name = f"averaged_{metric}" if averaged else metric
    return [replace(curve, values={metric: curve.metric(name)}) for curve in curves]


def _until(curve: Curve, last_round: int) -> Curve:
    shown = curve.rounds <= last_round
    return replace(
        curve, rounds=curve.rounds[shown], values={name: values[shown] for name, values in curve.values.items()}
    )


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
    for curve in one_model(curves, metric, averaged):
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
