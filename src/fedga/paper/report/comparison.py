"""Our cells beside the paper's, one by one, and how many of them agree."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedga.errors import FedGAError
from fedga.paper.printed import PrintedScore, printed_score
from fedga.paper.report.scores import Reading, Score, paper_panels, score
from fedga.report.curves import Curve, mean
from fedga.report.series import Panel, Series
from fedga.spec.catalog import dataset_name
from fedga.spec.presets import preset_settings
from fedga.spec.settings import SETTINGS

DEVIATIONS, SMALL = 2.0, 0.01  # a cell agrees that is within either
TABLES = {"main": "the paper's main table", "at_80": "the paper's table at 80 % of the rounds"}
_ROUNDING = 1e-9
# Settings a reproduction may choose: what is compared, what is looked at, and where training stops.
_LOOKED_AT = ("evaluate_every", "diagnose_every", "server_average")
_FREE = ("dataset", "alpha", "algorithm", "preset", "seed", "rounds", "precision", *_LOOKED_AT)


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
    """How many of the cells that can be compared lie within two pooled deviations or 0.01 of what is printed."""

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
    def share(self) -> float:
        """NaN where nothing can be compared."""
        return self.within / self.compared if self.compared else math.nan

    @property
    def bias(self) -> float:
        """The mean of ours less the printed ones; NaN where nothing can be compared."""
        return mean(np.array([cell.difference for cell in self.cells]))

    @property
    def by_algorithm(self) -> Mapping[str, Agreement]:
        return self._by(lambda cell: cell.series.algorithm)

    @property
    def by_dataset(self) -> Mapping[str, Agreement]:
        return self._by(lambda cell: cell.panel.dataset)

    def _by(self, key: Callable[[Comparison], str]) -> Mapping[str, Agreement]:
        groups: dict[str, list[Comparison]] = {}
        for cell in self.cells:
            groups.setdefault(key(cell), []).append(cell)
        return {name: replace(self, cells=tuple(cells)) for name, cells in groups.items()}


def is_papers(settings: Mapping[str, Any], dataset: str, alpha: float | None) -> bool:
    """Whether runs have the paper's setting, as far as these settings tell; a run without a preset takes it too."""
    if settings.get("preset") not in (None, "", "paper"):
        return False
    expected = {name: setting.default for name, setting in SETTINGS.items()}
    expected |= preset_settings("paper", dataset, alpha).values
    return all(settings[name] == expected[name] for name in settings if name in expected and name not in _FREE)


def compare(
    curves: Sequence[Curve],
    which: str = "at_80",
    *,
    metric: str = "accuracy",
    at: str = "80",
    model: str = "last",
    algorithms: Sequence[str] | None = None,
) -> Agreement:
    """Every cell that the printed table ``which`` ("main" or "at_80") has too.

    Runs of another setting than the paper's reproduce nothing and are left out.
    """
    reading = Reading(metric, at, model)
    cells = []
    for panel in _of_paper(paper_panels(curves, algorithms)):
        for series in panel.series:
            printed = printed_score(which, panel.dataset, panel.alpha, series.algorithm, metric)
            if printed is not None:
                cells.append(Comparison(panel, series, score(series, reading), printed))
    if not cells:
        raise FedGAError(f"there is nothing to compare: {TABLES[which]} has none of these runs")
    return Agreement(tuple(cells), which, reading)


def _of_paper(panels: Sequence[Panel]) -> list[Panel]:
    """The runs of the paper's setting, grouped again: among themselves they need fewer words to be told apart."""
    kept = [
        curve
        for panel in panels
        for series in panel.series
        if is_papers(series.settings, panel.dataset, panel.alpha)
        for curve in series.curves
    ]
    return paper_panels(kept) if kept else []


def printed_heading(cells: Sequence[Comparison]) -> str:
    """Names the data set where all printed numbers are another one's than ours."""
    theirs = {cell.printed.dataset for cell in cells}
    return f"{dataset_name(theirs.pop())}, printed" if all(cell.stands_in for cell in cells) else "printed"


def printed_prefix(cell: Comparison, heading: str) -> str:
    """Says whose a printed number is where the heading does not."""
    return f"{dataset_name(cell.printed.dataset)}: " if cell.stands_in and heading == "printed" else ""
