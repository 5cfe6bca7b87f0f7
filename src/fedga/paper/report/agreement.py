"""Our scores beside the paper's: how far each lies from what is printed, as a table and in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedga.drawing.style import display_name
from fedga.paper.printed import stand_in_text
from fedga.paper.report.comparison import TABLES, Agreement, Comparison, printed_heading, printed_prefix
from fedga.paper.report.ranking import rankings
from fedga.paper.report.scores import (
    METRICS,
    Reading,
    capitalised,
    dataset_breaks,
    place_cells,
    score_text,
    table_name,
)
from fedga.report.curves import mean
from fedga.report.documents import NOTHING, Cell, Table
from fedga.report.summary import number_text
from fedga.report.words import listed
from fedga.spec.catalog import dataset_name

_LITERATURE = ("fedrl", "climb", "fedntd")  # built here as their own papers define them


def agreement_table(agreement: Agreement) -> Table:
    """A row per data set, α and algorithm: ours, theirs, how far apart, and whether that is within what seeds do."""
    cells, which, reading = agreement.cells, agreement.which, agreement.reading
    heading = printed_heading(cells)
    return Table(
        table_name("agreement", which, reading.metric, reading.at, reading.model),
        f"{capitalised(METRICS[reading.metric])} here and in {TABLES[which]}",
        ("data set", "α", "algorithm", "here", heading, "difference", "in deviations", "within"),
        tuple(_row(cell, heading) for cell in cells),
        _caption(cells, which, reading),
        dataset_breaks([cell.panel for cell in cells]),
    )


def _row(cell: Comparison, heading: str) -> tuple[Cell, ...]:
    text = score_text(cell.printed.mean, cell.printed.deviation)
    return (
        *place_cells(cell.panel),
        Cell(cell.series.label, cell.series.algorithm),
        cell.ours.cell(),
        Cell(printed_prefix(cell, heading) + text, cell.printed.mean, deviation=cell.printed.deviation),
        _signed(cell.difference, 3),
        _signed(cell.deviations, 1),
        Cell("yes" if cell.within else "no", str(cell.within).lower()) if cell.comparable else Cell(NOTHING),
    )


def _signed(value: float, decimals: int) -> Cell:
    if math.isnan(value):
        return Cell(NOTHING)
    text = f"{value:+.{decimals}f}"
    return Cell(text[1:] if float(text) == 0 else text.replace("-", "−"), value)


def _caption(cells: Sequence[Comparison], which: str, reading: Reading) -> str:
    datasets = {cell.printed.dataset for cell in cells if not cell.stands_in}
    algorithms = {cell.series.algorithm for cell in cells}
    said = [
        f"Here: {reading.words}.",
        "Within: no farther than 0.01 or two pooled deviations, a pooled one being the root mean square of the two."
        if any(cell.comparable for cell in cells)
        else "",
        "With one seed there is no deviation here, and 0.01 decides."
        if any(cell.comparable and math.isnan(cell.pooled) for cell in cells)
        else "",
        "The MNIST rows of the paper's main table fit the mean over the rounds, not the end of training."
        if which == "main" and "mnist" in datasets
        else "",
        "CIFAR-10 and SVHN are printed alike in both of the paper's tables." if datasets & {"cifar10", "svhn"} else "",
        _literature_text([name for name in _LITERATURE if name in algorithms]),
        "FedGA (batch) counts classes per batch as the paper's program does: it stands beside the printed FedGA."
        if "fedga-batch" in algorithms
        else "",
        stand_in_text(cell.panel.dataset for cell in cells),
    ]
    return " ".join(part for part in said if part)


def _literature_text(names: Sequence[str]) -> str:
    if not names:
        return ""
    follows, its = ("follows its own paper", "column") if len(names) == 1 else ("follow their own papers", "columns")
    return (
        f"{listed([display_name(name) for name in names])} {follows} here, which the program behind the printed {its}"
        " did not in every detail: the two stand side by side and may differ."
    )


def agreement_words(agreement: Agreement) -> tuple[str, ...]:
    """What came out of the comparison, in sentences that say of which data and which moment they are."""
    said = [_share_text(agreement), _farthest_text(agreement), _winners_text(agreement)]
    head = f"{listed([dataset_name(name) for name in agreement.by_dataset])}, {agreement.reading.moment}"
    told = [f"{head}: {part}" for part in said if part]
    stand_in = stand_in_text(agreement.by_dataset)
    return (*told, stand_in) if stand_in else tuple(told)


def _share_text(agreement: Agreement) -> str:
    if not agreement.compared:
        return ""
    names = [display_name(name) for name, of in agreement.by_algorithm.items() if of.compared]
    counted = f"{agreement.within} ({100 * agreement.share:.0f} %) lie within two pooled deviations or 0.01"
    return f"of {agreement.compared} printed cells of {listed(names)} {counted}. {_bias_text(agreement.bias)}"


def _bias_text(bias: float) -> str:
    """
    >>> _bias_text(-0.0049), _bias_text(0.012), _bias_text(0.0003)
    ('On average ours are 0.5 points below.', 'On average ours are 1.2 points above.', 'On average they are level.')
    """
    if f"{abs(100 * bias):.1f}" == "0.0":
        return "On average they are level."
    return f"On average ours are {abs(100 * bias):.1f} points {'below' if bias < 0 else 'above'}."


def _farthest_text(agreement: Agreement) -> str:
    beyond = [cell for cell in agreement.cells if cell.comparable and not cell.within]
    if not beyond:
        return ""
    far = max(beyond, key=lambda cell: abs(cell.difference))
    where = dataset_name(far.panel.dataset) + ("" if far.panel.alpha is None else f" with α = {far.panel.alpha:g}")
    numbers = f"{number_text(far.ours.mean)} here, {number_text(far.printed.mean)} printed"
    return f"the farthest from print is {far.series.label} on {where}: {numbers}."


def _winners_text(agreement: Agreement) -> str:
    ranked = rankings(agreement)
    if not ranked:
        return ""
    same = sum(ranking.same_winner for ranking in ranked)
    names = listed([display_name(name) for name in agreement.by_algorithm])
    said = f"in {same} of {len(ranked)} settings (data set and α) the best of {names} here is their best in print too"
    tau = mean(np.array([ranking.tau for ranking in ranked]))
    return said + ("." if math.isnan(tau) else f"; Kendall's τ is {number_text(tau, significant=True)} on average.")
