"""What the paper leaves out: how far plain settings of training explain FedGA's lead, as a table and a headline."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedga.paper.report.arms import (
    ALGORITHMS,
    ALIGNED,
    ALL,
    NO_SKEW,
    NONE,
    PLAIN,
    SETTINGS,
    Ablation,
    Arm,
    ablations,
    even_name,
    points,
    row_name,
    seeds_text,
    share,
)
from fedga.paper.report.scores import MODELS, Score
from fedga.report.documents import Cell, Table
from fedga.spec.catalog import dataset_name


def beyond_table(of: Sequence[Arm]) -> Table:
    """Every setting in numbers: both models of both algorithms, FedGA's lead, and what is left of it.

    The highest accuracy under skew is bold.
    """
    rows: list[tuple[Cell, ...]] = []
    breaks = []
    found = ablations(of)
    for place in found:
        rows += [_table_row(place, axes) for axes in SETTINGS if place.shown(axes)]
        rows += [_even_row(place, axes) for axes in (NONE, ALL) if place.without_skew(axes).known]
        breaks.append(len(rows) - 1)
    each = ("FedAvg", "FedGA", "lead", "lead left")
    headings = ("data set", "α", "setting", *each, *(f"{heading}, averaged" for heading in each))
    caption = (
        f"Accuracy after the last round, mean (deviation) over {seeds_text(found)}; averaged: the model averaged over "
        "rounds. Lead: FedGA less FedAvg, in points. Left: as a share of the last model's lead in the paper's setting; "
        "a dash where that is within two standard errors (paired by seed) of 0, or where either does not train. "
        f"{NO_SKEW}"
    )
    title = "What explains FedGA's lead, and what is left to gain"
    return Table("beyond", title, headings, tuple(rows), caption, tuple(breaks[:-1]))


def _table_row(place: Ablation, axes: frozenset[str]) -> tuple[Cell, ...]:
    cells: list[Cell] = []
    for model in MODELS:
        for one in ((PLAIN, axes, model), (ALIGNED, axes, model)):
            cells += [place.score(*one).cell(bold=place.best == one)]
        lead, left = place.lead(axes, model), place.remains(axes, model)
        cells += [Cell(points(lead), _known(lead)), Cell(share(left), _known(left))]
    return (*_head(place, row_name(axes)), *cells)


def _even_row(place: Ablation, axes: frozenset[str]) -> tuple[Cell, ...]:
    cells: list[Cell] = []
    for model in MODELS:
        found = [place.find(algorithm, axes, even=True) for algorithm in ALGORITHMS]
        scores = [Score(()) if arm is None else arm.scores[model] for arm in found]
        lead = 100 * (scores[1].mean - scores[0].mean)
        cells += [*(one.cell() for one in scores), Cell(points(lead), _known(lead)), Cell("–")]
    return (*_head(place, even_name(axes)), *cells)


def _head(place: Ablation, setting: str) -> tuple[Cell, ...]:
    name = dataset_name(place.dataset)
    alpha = "–" if place.alpha is None else f"{place.alpha:g}"
    return Cell(name, name), Cell(alpha, place.alpha), Cell(setting, setting)


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def beyond_headline(of: Sequence[Arm]) -> str:
    """Every lead in the paper's setting, and what is left of it in the strong one."""
    found = ablations(of)
    together = len({place.alpha for place in found}) == 1
    parts = []
    for place in found:
        leads = [place.lead(NONE, "last"), place.lead(ALL, "averaged")]
        name = dataset_name(place.dataset) if together else place.name
        parts += [f"{points(leads[0])} and {points(leads[1])} on {name}"] if np.isfinite(leads).all() else []
    heading = "FedGA's lead over FedAvg in points"
    heading += f", α = {found[0].alpha:g}" if together and found[0].alpha is not None else ""
    if not parts:
        return heading
    return f"{heading}, in the paper's setting and in the strong one (averaged model): {'; '.join(parts)}"
