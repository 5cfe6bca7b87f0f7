"""Score tables in the paper's layout: a row per data set and α, a column per algorithm, mean and deviation."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fedga.drawing.style import algorithm_rank
from fedga.errors import FedGAError, check_known
from fedga.measures.columns import COLUMNS
from fedga.report.curves import Curve, deviation, mean, median
from fedga.report.documents import NOTHING, Cell, Table
from fedga.report.series import Panel, make_panels
from fedga.report.summary import number_text
from fedga.report.words import seeds_text
from fedga.spec.catalog import dataset_name, dataset_rank

METRICS = ("accuracy", "macro_f1")  # that the paper prints
MOMENTS = {"last": "after the last round", "80": "at 80 % of the rounds", "mean": "in the mean over the rounds"}
MODELS = ("last", "averaged")
_SHORT = {"macro_f1": "F1", "accuracy": "Acc."}  # as the paper abbreviates them


@dataclass(frozen=True)
class Reading:
    """Which number of a run a table shows: a metric, the moment it is read at, and of which of the server's models."""

    metric: str = "accuracy"
    at: str = "last"
    model: str = "last"

    def __post_init__(self) -> None:
        check_known("metric", self.metric, METRICS)
        check_known("moment", self.at, MOMENTS)
        check_known("model", self.model, MODELS)

    @property
    def heading(self) -> str:
        return COLUMNS[self.metric].heading

    @property
    def moment(self) -> str:
        """
        >>> Reading("macro_f1", "80", "averaged").moment
        'at 80 % of the rounds, model averaged over rounds'
        """
        return MOMENTS[self.at] + (", model averaged over rounds" if self.model == "averaged" else "")

    def of(self, curve: Curve) -> float:
        """The number; NaN where the run did not measure it. Between evaluations the one before counts."""
        name = self.metric if self.model == "last" else f"averaged_{self.metric}"
        if self.at == "mean":
            return curve.over_rounds(name)
        if not len(curve.rounds):
            return math.nan
        wanted = int(curve.rounds[-1]) * 4 // 5 if self.at == "80" else int(curve.rounds[-1])
        place = int(np.searchsorted(curve.rounds, wanted, side="right")) - 1
        return float(curve.metric(name)[place]) if place >= 0 else math.nan


@dataclass(frozen=True)
class Score:
    """One number per finished run of a series, and a note on runs that are not like the others."""

    values: tuple[float, ...]
    note: str = ""

    @property
    def mean(self) -> float:
        return mean(np.array(self.values))

    @property
    def deviation(self) -> float:
        """Sample standard deviation over seeds; NaN for a single one."""
        return deviation(np.array(self.values))

    @property
    def known(self) -> bool:
        return bool(self.values)

    @property
    def mean_text(self) -> str:  # those that print alike are level
        return number_text(self.mean)

    def cell(self, *, bold: bool = False) -> Cell:
        """
        >>> [Score(values).cell().text for values in ((0.8, 0.9), (0.8,), ())]
        ['0.850 (0.071)', '0.800', '–']
        """
        text, wide = score_text(self.mean, self.deviation), None if math.isnan(self.deviation) else self.deviation
        return Cell(text, self.mean if self.known else None, bold and self.known, self.note, wide)


def score_text(middle: float, wide: float) -> str:
    """Mean and deviation as the paper prints them."""
    return number_text(middle) + ("" if math.isnan(wide) else f" ({number_text(wide)})")


def score_of(curves: Sequence[Curve], reading: Reading) -> Score:
    """Of runs that differ in their seed alone: the finished are in the mean, those that diverged or go on are noted."""
    finished = [curve for curve in curves if curve.status == "done"]
    values = tuple(value for value in map(reading.of, finished) if math.isfinite(value))
    total, diverged = len(curves), sum(curve.diverged for curve in curves)
    going, stuck = total - diverged - len(finished), sum(never_left(curve, finished) for curve in finished)
    counts = {"diverged": diverged, "unfinished": going, "never left the start plateau": stuck}
    return Score(values, "; ".join(f"{number} of {total} runs {what}" for what, number in counts.items() if number))


def never_left(curve: Curve, finished: Sequence[Curve]) -> bool:
    """Whether a run stayed, from first to last, below half of what the other seeds end at (their median)."""
    others = median(np.array([other.last("accuracy") for other in finished if other is not curve]))
    measured = curve.metric("accuracy")
    return bool(np.isfinite(measured).any() and np.nanmax(measured) < others / 2)


def score_table(curves: Sequence[Curve], readings: Sequence[Reading], name: str, title: str = "") -> Table:
    """A row per data set, α and reading, a column per algorithm: "mean (deviation)" over seeds, the best in bold."""
    panels = paper_panels(curves)
    labels = series_labels(panels)
    lines = [(panel, reading) for panel in panels for reading in readings]
    rows, numbers = [], set()
    for panel, reading in lines:
        scores = {series.label: score_of(series.curves, reading) for series in panel.series}
        best = best_text(scores.values())
        numbers |= {len(found.values) for found in scores.values() if found.known}
        cells = (scores.get(label, Score(())) for label in labels)
        metric = (Cell(_SHORT[reading.metric], reading.metric),) if len(readings) > 1 else ()
        rows.append((*place_cells(panel), *metric, *(found.cell(bold=found.mean_text == best) for found in cells)))
    headings = ("data set", "α", *(("metric",) if len(readings) > 1 else ()), *labels)
    title = title or f"{' and '.join(of.heading for of in readings)} {readings[0].moment}"
    breaks = dataset_breaks([panel for panel, _ in lines])
    return Table(name, title[:1].upper() + title[1:], headings, tuple(rows), _caption(numbers), breaks)


def paper_table(curves: Sequence[Curve], name: str, *, at: str = "last", model: str = "last") -> Table:
    """`score_table` with the paper's two rows per data set and α, macro F1 above accuracy."""
    return score_table(curves, [Reading(metric, at, model) for metric in _SHORT], name)


def paper_panels(curves: Sequence[Curve]) -> list[Panel]:
    """The runs by data set, in the paper's order, and α, ascending; none at all is the user's error."""
    if not curves:
        raise FedGAError("there is nothing to put into a table: no runs were given")
    return sorted(make_panels(curves), key=lambda panel: dataset_rank(panel.dataset))


def series_labels(panels: Iterable[Panel]) -> list[str]:
    """The series of all panels by label, in the order of every legend and, within an algorithm, of its presets."""
    found = {series.label: series for panel in panels for series in panel.series}
    return sorted(found, key=lambda label: (found[label].preset, algorithm_rank(found[label].algorithm)))


def place_cells(panel: Panel) -> tuple[Cell, Cell]:
    """Data set and α, with which every row begins."""
    alpha = Cell(NOTHING) if panel.alpha is None else Cell(f"{panel.alpha:g}", float(panel.alpha))
    return Cell(dataset_name(panel.dataset), panel.dataset), alpha


def dataset_breaks(panels: Sequence[Panel]) -> tuple[int, ...]:
    """Given the panel of every row, the rows after which another data set begins."""
    return tuple(at for at in range(len(panels) - 1) if panels[at].dataset != panels[at + 1].dataset)


def best_text(scores: Iterable[Score]) -> str | None:
    """The best mean of a row as it is printed; a score alone has nothing to beat."""
    known = [found for found in scores if found.known]
    return max(known, key=lambda found: found.mean).mean_text if len(known) > 1 else None


def _caption(numbers: set[int]) -> str:
    if not numbers:
        return "No run has such a number yet."
    over = f"Mean over {seeds_text(numbers)}, in brackets their standard deviation" if numbers != {1} else "One seed"
    return f"{over}. Bold: best of its row."
