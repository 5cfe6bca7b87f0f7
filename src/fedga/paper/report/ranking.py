"""Whether the algorithms come out in the paper's order, whatever their numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedga.errors import FedGAError
from fedga.paper.printed import printed_algorithm, stand_in_text
from fedga.paper.report.comparison import TABLES, Agreement, Comparison, printed_heading, printed_prefix
from fedga.paper.report.scores import METRICS, Reading, dataset_breaks, place_cells, table_name
from fedga.report.documents import NOTHING, Cell, Table
from fedga.report.series import Panel
from fedga.report.summary import number_text


@dataclass(frozen=True, eq=False)
class Ranking:
    """The algorithms of one data set and α, here and in print; means that print alike are level."""

    cells: tuple[Comparison, ...]

    @property
    def panel(self) -> Panel:
        return self.cells[0].panel

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
    """One per data set and α with two algorithms or more to rank."""
    places: dict[tuple[str, float | None], list[Comparison]] = {}
    for cell in agreement.cells:
        if cell.ours.known:
            places.setdefault((cell.panel.dataset, cell.panel.alpha), []).append(cell)
    ranked = [Ranking(tuple(_one_per_column(cells))) for cells in places.values()]
    return [ranking for ranking in ranked if len(ranking.cells) > 1]


def _one_per_column(cells: Sequence[Comparison]) -> list[Comparison]:
    """Without the second way to count FedGA's classes where the first is there: it has no printed number of its own."""
    present = {cell.series.algorithm for cell in cells}
    return [
        cell
        for cell in cells
        if printed_algorithm(cell.series.algorithm) == cell.series.algorithm or cell.printed.algorithm not in present
    ]


def ranking_table(agreement: Agreement) -> Table:
    """A row per data set and α: the order of the algorithms here and in print, and how alike the two are."""
    ranked = rankings(agreement)
    if not ranked:
        raise FedGAError("there is nothing to rank: no data set and α has finished runs of two printed algorithms")
    cells = [cell for ranking in ranked for cell in ranking.cells]
    heading, reading = printed_heading(cells), agreement.reading
    return Table(
        table_name("ranking", agreement.which, reading.metric, reading.at, reading.model),
        f"Algorithms by {METRICS[reading.metric]}, here and in {TABLES[agreement.which]}",
        ("data set", "α", "here", heading, "same winner", "Kendall's τ"),
        tuple(_ranking_row(ranking, heading) for ranking in ranked),
        _ranking_caption(cells, reading),
        dataset_breaks([ranking.panel for ranking in ranked]),
    )


def _ranking_row(ranking: Ranking, heading: str) -> tuple[Cell, ...]:
    here, there = ranking.order(ranking.ours), ranking.order(ranking.printed)
    tau = Cell(NOTHING) if math.isnan(ranking.tau) else Cell(number_text(ranking.tau, significant=True), ranking.tau)
    winner = Cell("yes" if ranking.same_winner else "no", str(ranking.same_winner).lower())
    shown = printed_prefix(ranking.cells[0], heading) + there
    return (*place_cells(ranking.panel), Cell(here, here), Cell(shown, there), winner, tau)


def _ranking_caption(cells: Sequence[Comparison], reading: Reading) -> str:
    said = f"Here: {reading.words}. Means that print alike in three decimals are level (=)."
    said += " Kendall's τ-b is 1 for the same order and −1 for the reverse."
    return " ".join(part for part in (said, stand_in_text(cell.panel.dataset for cell in cells)) if part)
