"""How many rounds it takes an algorithm to come near the best accuracy of FedAvg, here and in print."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedga.drawing.style import display_name
from fedga.errors import FedGAError
from fedga.paper.printed import STAND_IN, PrintedRounds, printed_rounds, stand_in_text
from fedga.paper.report.comparison import is_papers
from fedga.paper.report.scores import dataset_breaks, paper_panels, place_cells, series_labels
from fedga.report.curves import Curve, mean
from fedga.report.documents import NOTHING, Cell, Table
from fedga.report.series import Panel, Series
from fedga.spec.catalog import dataset_name

BASELINE = "fedavg"


@dataclass(frozen=True)
class Reach:
    """Rounds until the target, the first round being 1, and FedAvg's over them; NaN where it was never reached."""

    rounds: float
    speedup: float
    note: str = ""
    complete: bool = True  # no run was left out or never came so far: only then it can win
    whole: bool = True  # a round of the mean curve, not a mean of rounds

    @property
    def text(self) -> str:
        """
        >>> Reach(5, 1.8).text, Reach(5.2, 1.75, whole=False).text, Reach(math.nan, math.nan).text
        ('5 (1.80×)', '5.2 (1.75×)', '–')
        """
        return NOTHING if math.isnan(self.rounds) else f"{self.rounds_text} ({self.speedup:.2f}×)"

    @property
    def rounds_text(self) -> str:
        return f"{self.rounds:.{0 if self.whole else 1}f}"

    def cell(self, fewest: str | None) -> Cell:
        wins = self.complete and self.rounds_text == fewest
        return Cell(self.text, None if math.isnan(self.rounds) else self.rounds, wins, self.note)


@dataclass(frozen=True, eq=False)
class _Line:
    """Accuracy over rounds, of one run or in the mean."""

    rounds: np.ndarray
    accuracy: np.ndarray

    @property
    def best(self) -> float:
        return float(np.max(self.accuracy[np.isfinite(self.accuracy)], initial=-math.inf))

    def first(self, target: float) -> float:
        """The first evaluated round at or above the target; NaN if there is none."""
        reached = self.rounds[(self.accuracy >= target) & (self.rounds >= 1)]
        return float(reached[0]) if len(reached) else math.nan


def reach(series: Series, baseline: Series, fraction: float, *, per_seed: bool = False) -> Reach:
    """How soon a series came to ``fraction`` of FedAvg's best accuracy, on the mean curve or as a mean over seeds.

    Only seeds that ended under both algorithms count, so that both are seen on the same draws.
    """
    ours, theirs = _finished(series), _finished(baseline)
    seeds = [seed for seed in ours if seed in theirs]
    note = _left_out(len(series.curves) - len(seeds), len(series.curves))
    if not seeds:
        return Reach(math.nan, math.nan, note, complete=False, whole=not per_seed)
    if per_seed:
        pairs = [(_mean_line([ours[seed]]), _mean_line([theirs[seed]])) for seed in seeds]
    else:
        pairs = [(_mean_line([ours[seed] for seed in seeds]), _mean_line([theirs[seed] for seed in seeds]))]
    taken = np.array([[line.first(fraction * base.best) for line in (own, base)] for own, base in pairs])
    arrived = taken[np.isfinite(taken).all(axis=1)]
    rounds, of_baseline = (mean(column) for column in arrived.T)
    last = max(int(own.rounds[-1]) for own, _ in pairs)
    said = [note, _never(len(pairs) - len(arrived), len(pairs), last, per_seed=per_seed)]
    return Reach(
        rounds,
        of_baseline / rounds,
        "; ".join(part for part in said if part),
        complete=len(arrived) == len(pairs) and not note,
        whole=not per_seed,
    )


def _finished(series: Series) -> dict[int, Curve]:
    return {curve.seed: curve for curve in series.curves if curve.status == "done" and len(curve.rounds)}


def _mean_line(curves: Sequence[Curve]) -> _Line:
    """The mean accuracy in every round in which all of these were evaluated."""
    series = Series({}, "", tuple(curves))
    return _Line(series.rounds, series.by_seed("accuracy").mean(axis=0))


def _left_out(number: int, total: int) -> str:
    return f"{number} of {total} runs left out: they or FedAvg's of the same seed did not end" if number else ""


def _never(number: int, total: int, last: int, *, per_seed: bool) -> str:
    if not number:
        return ""
    return f"{number} of {total} runs not there in {last} rounds" if per_seed else f"not there in {last} rounds"


def speed_table(
    curves: Sequence[Curve],
    fraction: float = 0.9,
    *,
    per_seed: bool = False,
    algorithms: Sequence[str] | None = None,
    name: str = "",
    title: str = "",
) -> Table:
    """Per data set and α a row of ours, "rounds (speed-up)", and below it the paper's; the fewest rounds in bold.

    ``per_seed`` gives every seed a target and a number of rounds of its own and averages those, instead of looking at
    the mean curve. ``algorithms`` leaves out all others; FedAvg is needed in any case.
    """
    if not 0 < fraction <= 1:
        raise FedGAError(f"the fraction of FedAvg's best accuracy must be above 0 and at most 1, not {fraction:g}")
    wanted = None if algorithms is None else (BASELINE, *algorithms)
    panels = [panel for panel in paper_panels(curves, wanted) if any(_baseline(panel, of) for of in panel.series)]
    if not panels:
        raise FedGAError("there is no FedAvg to compare with: run --algorithm fedavg with the same settings")
    labels = series_labels(panels)
    lines = [line for panel in panels for line in _lines(panel, labels, fraction, per_seed=per_seed)]
    percent = f"{100 * fraction:g} %"
    return Table(
        name or f"rounds-to-{100 * fraction:g}" + ("-per-seed" if per_seed else ""),
        title or f"Rounds to {percent} of FedAvg's best accuracy",
        ("data set", "α", "from", *labels),
        tuple((*place_cells(panel), *cells) for panel, cells in lines),
        _caption(panels, percent, per_seed=per_seed),
        dataset_breaks([panel for panel, _ in lines]),
    )


def speed_words(
    curves: Sequence[Curve], fractions: Sequence[float], *, algorithm: str = "fedga", most_alpha: float = 0.1
) -> tuple[str, ...]:
    """FedAvg's rounds over those of ``algorithm`` where skew is strong, whoever is sooner; a sentence per data set."""
    told: dict[str, list[str]] = {}
    for panel in paper_panels(curves):
        if panel.alpha is not None and panel.alpha <= most_alpha and (factors := _factors(panel, algorithm, fractions)):
            told.setdefault(panel.dataset, []).append(f"{factors} at α = {panel.alpha:g}")
    name = display_name(algorithm)
    of_target = " and ".join(f"{100 * fraction:g} %" for fraction in fractions)
    return tuple(
        f"{dataset_name(dataset)}: FedAvg's rounds to {of_target} of its best accuracy, over {name}'s to the same, "
        f"come to {', '.join(factors)}; above 1 {name} is sooner."
        for dataset, factors in told.items()
    )


def _factors(panel: Panel, algorithm: str, fractions: Sequence[float]) -> str:
    """The speed-ups to every fraction; empty where one of the two never came so far."""
    ours = next((of for of in panel.series if of.algorithm == algorithm), None)
    base = None if ours is None else _baseline(panel, ours)
    if ours is None or base is None:
        return ""
    found = [reach(ours, base, fraction).speedup for fraction in fractions]
    return " and ".join(f"{speedup:.2f}" for speedup in found) if all(map(math.isfinite, found)) else ""


def _baseline(panel: Panel, series: Series) -> Series | None:
    """FedAvg under the same settings."""
    return next((of for of in panel.series if of.algorithm == BASELINE and _others(of) == _others(series)), None)


def _others(series: Series) -> Mapping[str, Any]:
    own = ("algorithm", "algorithm_options")
    return {name: value for name, value in series.settings.items() if name not in own}


def _lines(
    panel: Panel, labels: Sequence[str], fraction: float, *, per_seed: bool
) -> list[tuple[Panel, tuple[Cell, ...]]]:
    found: dict[str, Reach] = {}
    printed: dict[str, PrintedRounds] = {}
    for series in panel.series:
        if (baseline := _baseline(panel, series)) is not None:
            found[series.label] = reach(series, baseline, fraction, per_seed=per_seed)
        theirs = printed_rounds(panel.dataset, panel.alpha, series.algorithm)
        if theirs is not None and is_papers(series.settings, panel.dataset, panel.alpha):
            printed[series.label] = theirs
    fewest = _fewest(list(found.values()))
    here = tuple(found[label].cell(fewest) if label in found else Cell(NOTHING) for label in labels)
    lines = [(panel, (Cell("here", "here"), *here))]
    if printed:
        there = tuple(_printed_cell(printed.get(label)) for label in labels)
        lines.append((panel, (_source(panel), *there)))
    return lines


def _fewest(found: Sequence[Reach]) -> str | None:
    """The fewest rounds of a row as they are printed; a number alone has nothing to beat."""
    complete = [one for one in found if one.complete]
    return min(complete, key=lambda one: one.rounds).rounds_text if len(complete) > 1 else None


def _printed_cell(theirs: PrintedRounds | None) -> Cell:
    if theirs is None:
        return Cell(NOTHING)
    return Cell(f"{theirs.rounds} ({theirs.speedup:.2f}×)", theirs.rounds, theirs.bold)


def _source(panel: Panel) -> Cell:
    other = STAND_IN.get(panel.dataset)
    text = "printed" if other is None else f"{dataset_name(other)}, printed"
    return Cell(text, text)


def _caption(panels: Sequence[Panel], percent: str, *, per_seed: bool) -> str:
    said = [
        f"Test accuracy has to reach {percent} of the best that FedAvg has in any round"
        + (", seed by seed; mean over seeds." if per_seed else ", both on the mean curve over seeds."),
        "In brackets: FedAvg's rounds over the algorithm's. Bold: fewest.",
    ]
    if any(printed_rounds(panel.dataset, panel.alpha, BASELINE) for panel in panels):
        said.append(
            "The first round is 1 here and 0 in the paper, its speed-ups included; its text says 90 %, its numbers fit"
            " 80 % far better."
        )
    every = max(
        int(np.diff(curve.rounds).max(initial=1)) for panel in panels for of in panel.series for curve in of.curves
    )
    if every > 1:
        said.append(f"The models were evaluated every {every} rounds: a number is known to within {every}.")
    said.append(stand_in_text(panel.dataset for panel in panels))
    return " ".join(part for part in said if part)
