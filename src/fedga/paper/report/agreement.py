"""Our scores beside the paper's: how far each lies from what is printed, and whether the order is the same."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedga.errors import FedGAError
from fedga.paper.printed import PrintedScore, printed_algorithm, printed_score, stand_in_text
from fedga.paper.report.scores import Reading, Score, dataset_breaks, paper_panels, place_cells, score_of, score_text
from fedga.report.curves import Curve, mean
from fedga.report.documents import NOTHING, Cell, Table, number_cell
from fedga.report.series import Panel, Series
from fedga.report.summary import number_text
from fedga.report.words import grouped, listed, signed
from fedga.spec.catalog import dataset_name
from fedga.spec.presets import preset_settings
from fedga.spec.settings import SETTINGS

DEVIATIONS, SMALL = 2.0, 0.01  # a cell agrees that is within either
TABLES = {"main": "the paper's main table", "at_80": "the paper's table at 80 % of the rounds"}
_ROUNDING = 1e-9
# Settings a reproduction may choose: what is compared, what is evaluated, and where training stops.
_EVALUATED = ("evaluate_every", "diagnose_every", "server_average")
_FREE = ("dataset", "alpha", "algorithm", "preset", "seed", "rounds", "precision", *_EVALUATED)


@dataclass(frozen=True, eq=False)
class Comparison:
    """One cell: our score of a data set, α and algorithm, and the printed one."""

    panel: Panel
    series: Series
    ours: Score
    printed: PrintedScore

    @property
    def stands_in(self) -> bool:
        """Whether the printed number is that of another data set, so that only orders can be compared."""
        return self.printed.dataset != self.panel.dataset

    @property
    def comparable(self) -> bool:
        return self.ours.known and not self.stands_in

    @property
    def difference(self) -> float:
        """Ours less the printed mean; NaN where the two are of different data."""
        return self.ours.mean - self.printed.mean if self.comparable else math.nan

    @property
    def pooled(self) -> float:
        """The two deviations as one; NaN where ours is of a single seed."""
        return math.sqrt((self.ours.deviation**2 + self.printed.deviation**2) / 2)

    @property
    def deviations(self) -> float:
        """The difference in units of the pooled deviation."""
        return self.difference / self.pooled if self.pooled else math.nan

    @property
    def within(self) -> bool:
        """Within two pooled deviations or 0.01; with a single seed 0.01 alone decides."""
        allowed = SMALL if math.isnan(self.pooled) else max(SMALL, DEVIATIONS * self.pooled)
        return abs(self.difference) <= allowed + _ROUNDING


@dataclass(frozen=True, eq=False)
class Agreement:
    cells: tuple[Comparison, ...]
    which: str  # the printed table
    reading: Reading

    @property
    def compared(self) -> int:
        return sum(cell.comparable for cell in self.cells)

    @property
    def within(self) -> int:
        return sum(cell.within for cell in self.cells if cell.comparable)

    @property
    def bias(self) -> float:
        """The mean of ours less the printed ones; NaN where nothing can be compared."""
        return mean(np.array([cell.difference for cell in self.cells]))

    @property
    def printed_heading(self) -> str:
        """Names the data set where all printed numbers are another one's than ours."""
        theirs = dataset_name(self.cells[0].printed.dataset)
        return f"{theirs}, printed" if all(cell.stands_in for cell in self.cells) else "printed"

    def printed_text(self, cell: Comparison, text: str) -> str:
        """Says whose a printed number is where the heading does not."""
        named = cell.stands_in and self.printed_heading == "printed"
        return f"{dataset_name(cell.printed.dataset)}: {text}" if named else text

    def table(
        self, kind: str, title: str, headings: Sequence[str], rows: Sequence[tuple[Panel, tuple[Cell, ...]]]
    ) -> Table:
        name = f"{kind}-{self.which}-{self.reading.metric}-{self.reading.at}".replace("_", "-")
        panels = [panel for panel, _ in rows]
        said = [f"Here: {self.reading.heading} {self.reading.moment}.", _CAPTIONS[kind]]
        caption = " ".join(filter(None, [*said, stand_in_text(panel.dataset for panel in panels)]))
        cells = tuple((*place_cells(panel), *rest) for panel, rest in rows)
        return Table(name, title, ("data set", "α", *headings), cells, caption, dataset_breaks(panels))


_CAPTIONS = {
    "agreement": "Within: no farther than 0.01 or two pooled deviations, the root mean square of the two; of one seed, "
    "0.01. FedGA (batch) counts classes per batch as the paper's program does.",
    "ranking": "Means that print alike in three decimals are level (=). Kendall's τ-b: 1 is the same order.",
}


def is_papers(settings: Mapping[str, Any], dataset: str, alpha: float | None) -> bool:
    """Whether runs have the paper's setting, as far as these settings tell; a run without a preset takes it too."""
    if settings.get("preset") not in (None, "", "paper"):
        return False
    expected = {name: setting.default for name, setting in SETTINGS.items()}
    expected |= preset_settings("paper", dataset, alpha).values
    return all(settings[name] == expected[name] for name in settings if name in expected and name not in _FREE)


def compare(curves: Sequence[Curve], which: str = "at_80", *, metric: str = "accuracy", at: str = "80") -> Agreement:
    """Every cell that the printed table ``which`` has too, of runs in the paper's setting."""
    reading = Reading(metric, at)
    every = [(panel, series) for panel in paper_panels(curves) for series in panel.series]
    kept = [of.curves for panel, of in every if is_papers(of.settings, panel.dataset, panel.alpha)]
    cells = []
    for panel in paper_panels(list(itertools.chain(*kept))) if kept else ():  # grouped again, under shorter labels
        for series in panel.series:
            printed = printed_score(which, panel.dataset, panel.alpha, series.algorithm, metric)
            if printed is not None:
                cells.append(Comparison(panel, series, score_of(series.curves, reading), printed))
    if not cells:
        raise FedGAError(f"there is nothing to compare: {TABLES[which]} has none of these runs")
    return Agreement(tuple(cells), which, reading)


def agreement_table(agreement: Agreement) -> Table:
    """A row per data set, α and algorithm: ours, theirs, how far apart, and whether that is within what seeds do."""
    rows = []
    for cell in agreement.cells:
        text = agreement.printed_text(cell, score_text(cell.printed.mean, cell.printed.deviation))
        within = Cell("yes" if cell.within else "no", str(cell.within).lower()) if cell.comparable else Cell(NOTHING)
        printed = Cell(text, cell.printed.mean, deviation=cell.printed.deviation)
        apart = [number_cell(signed(of, digits), of) for of, digits in ((cell.difference, 3), (cell.deviations, 1))]
        cells = (Cell(cell.series.label, cell.series.algorithm), cell.ours.cell(), printed, *apart, within)
        rows.append((cell.panel, cells))
    heading = agreement.reading.heading
    title = f"{heading[:1].upper()}{heading[1:]} here and in {TABLES[agreement.which]}"
    headings = ("algorithm", "here", agreement.printed_heading, "difference", "in deviations", "within")
    return agreement.table("agreement", title, headings, rows)


@dataclass(frozen=True, eq=False)
class Ranking:
    """The algorithms of one data set and α, here and in print; means that print alike are level."""

    cells: tuple[Comparison, ...]

    @property
    def ours(self) -> list[float]:
        return [round(cell.ours.mean, 3) for cell in self.cells]

    @property
    def printed(self) -> list[float]:
        return [cell.printed.mean for cell in self.cells]

    @property
    def same_winner(self) -> bool:
        """Whether an algorithm that is best here is best, or level with the best, in print."""
        pairs = zip(self.ours, self.printed, strict=True)
        return any(here == max(self.ours) and there == max(self.printed) for here, there in pairs)

    @property
    def tau(self) -> float:
        return kendall_tau(self.ours, self.printed)

    def order(self, means: Sequence[float]) -> str:
        """The algorithms from best to worst: "FedGA > FedNTD = FedAvg"."""
        labels = [cell.series.label for cell in self.cells]
        levels = sorted(set(means), reverse=True)
        named = ([label for label, at in zip(labels, means, strict=True) if at == level] for level in levels)
        return " > ".join(" = ".join(level) for level in named)


def kendall_tau(one: Sequence[float], other: Sequence[float]) -> float:
    """Kendall's τ-b: 1 for the same order, −1 for the reverse, ties taken into account; NaN if a side is all level.

    >>> kendall_tau([1, 2, 3], [10, 20, 30]), kendall_tau([1, 2, 3], [3, 2, 1]), kendall_tau([1, 2], [5, 5])
    (1.0, -1.0, nan)
    """
    pairs = np.array(list(itertools.combinations(range(len(one)), 2)), dtype=np.int64).reshape(-1, 2)
    a, b = (np.sign(np.asarray(side)[pairs[:, 0]] - np.asarray(side)[pairs[:, 1]]) for side in (one, other))
    untied = math.sqrt(float(np.abs(a).sum() * np.abs(b).sum()))
    return float((a * b).sum()) / untied if untied else math.nan


def rankings(agreement: Agreement) -> list[Ranking]:
    """One per data set and α with two algorithms to rank; of both ways to count FedGA's classes, the first there is."""
    known = [cell for cell in agreement.cells if cell.ours.known]
    places = grouped(known, lambda cell: (cell.panel.dataset, cell.panel.alpha))
    ranked = []
    for cells in places.values():
        present = {cell.series.algorithm for cell in cells}
        own = [of for of in cells if printed_algorithm(of.series.algorithm) not in present - {of.series.algorithm}]
        ranked += [Ranking(tuple(own))] if len(own) > 1 else []
    return ranked


def ranking_table(agreement: Agreement) -> Table:
    """A row per data set and α: the order of the algorithms here and in print, and how alike the two are."""
    rows = []
    for ranking in rankings(agreement):
        here, there = ranking.order(ranking.ours), ranking.order(ranking.printed)
        shown = Cell(agreement.printed_text(ranking.cells[0], there), there)
        winner = Cell("yes" if ranking.same_winner else "no", str(ranking.same_winner).lower())
        tau = number_cell(number_text(ranking.tau, True), ranking.tau)
        rows.append((ranking.cells[0].panel, (Cell(here, here), shown, winner, tau)))
    if not rows:
        raise FedGAError("there is nothing to rank: no data set and α has finished runs of two printed algorithms")
    title = f"Algorithms by {agreement.reading.heading}, here and in {TABLES[agreement.which]}"
    headings = ("here", agreement.printed_heading, "same winner", "Kendall's τ")
    return agreement.table("ranking", title, headings, rows)


def agreement_summary(found: Sequence[Agreement], name: str, algorithms: Sequence[str]) -> Table:
    """A row per comparison: cells that agree with print, mean difference, and how alike the orders are."""
    rows = []
    for one in found:
        ranked = rankings(one)
        mean_tau = mean(np.array([ranking.tau for ranking in ranked]))
        tau = number_cell(number_text(mean_tau, True), mean_tau)
        within = Cell(f"{one.within} of {one.compared}", float(one.within)) if one.compared else Cell(NOTHING)
        bias = number_cell(signed(one.bias, 3), one.bias)
        same = Cell(f"{sum(of.same_winner for of in ranked)} of {len(ranked)}") if ranked else Cell(NOTHING)
        names = listed(list(dict.fromkeys(dataset_name(cell.panel.dataset) for cell in one.cells)))
        rows.append((Cell(names), Cell(one.reading.moment), within, bias, same, tau))
    headings = ("data set", "read", "cells within", "mean difference", "same winner", "mean τ")
    caption = f"Accuracy of {listed(algorithms)}. Within: no farther than 0.01 or two pooled deviations."
    stand_in = stand_in_text(cell.panel.dataset for one in found for cell in one.cells)
    return Table(name, "Agreement with print", headings, tuple(rows), f"{caption} {stand_in}".strip())
