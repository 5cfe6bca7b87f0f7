"""How many rounds it takes an algorithm to come near the best accuracy of FedAvg, here and in print."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedga.errors import FedGAError
from fedga.paper.printed import STAND_IN, PrintedRounds, printed_rounds, stand_in_text
from fedga.paper.report.agreement import is_papers
from fedga.paper.report.scores import dataset_breaks, paper_panels, place_cells, series_labels
from fedga.report.curves import Curve, median
from fedga.report.documents import NOTHING, Cell, Table
from fedga.report.series import Panel, Series
from fedga.report.words import plural
from fedga.spec.catalog import dataset_name

BASELINE, ALIGNED = "fedavg", "fedga"
_OWN = ("algorithm", "algorithm_options")  # settings in which a series and its FedAvg differ


@dataclass(frozen=True)
class Reach:
    """Rounds until the target, the first round being 1, and FedAvg's over them; NaN where it was never reached."""

    rounds: float
    speedup: float
    note: str = ""

    @property
    def complete(self) -> bool:
        """No run was left out, and the target was reached: only then it can win."""
        return not self.note

    def cell(self, fewest: float) -> Cell:
        """
        >>> Reach(5, 1.8).cell(5).text, Reach(math.nan, math.nan).cell(5).text
        ('5 (1.80×)', '–')
        """
        if math.isnan(self.rounds):
            return Cell(NOTHING, note=self.note)
        text = f"{self.rounds:.0f} ({self.speedup:.2f}×)"
        return Cell(text, self.rounds, self.complete and self.rounds == fewest, self.note)


def reach(series: Series, baseline: Series, fraction: float) -> Reach:
    """How soon the mean came to ``fraction`` of FedAvg's best, over the seeds that ended under both algorithms."""
    ours, theirs = (
        {curve.seed: curve for curve in of.curves if curve.status == "done" and len(curve.rounds)}
        for of in (series, baseline)
    )
    seeds = [seed for seed in ours if seed in theirs]
    left_out, total = len(series.curves) - len(seeds), len(series.curves)
    notes = [f"{left_out} of {total} runs left out: they or FedAvg's of the same seed did not end"] if left_out else []
    if not seeds:
        return Reach(math.nan, math.nan, "; ".join(notes))
    own, base = (Series({}, "", tuple(of[seed] for seed in seeds)) for of in (ours, theirs))
    best = base.by_seed("accuracy").mean(axis=0)
    target = fraction * np.max(best[np.isfinite(best)], initial=-math.inf)
    rounds, of_baseline = _first(own, target), _first(base, target)
    if math.isnan(rounds + of_baseline):
        notes.append(f"not there in {own.rounds[-1]} rounds")
        rounds = math.nan
    return Reach(rounds, of_baseline / rounds, "; ".join(notes))


def _first(series: Series, target: float) -> float:
    """The first evaluated round from 1 on whose mean accuracy is at or above the target; NaN if there is none."""
    accuracy = series.by_seed("accuracy").mean(axis=0)
    reached = series.rounds[(accuracy >= target) & (series.rounds >= 1)]
    return float(reached[0]) if len(reached) else math.nan


def speed_table(curves: Sequence[Curve], fraction: float = 0.9) -> Table:
    """Per data set and α a row of ours, "rounds (speed-up)", and below it the paper's; the fewest rounds in bold."""
    if not 0 < fraction <= 1:
        raise FedGAError(f"the fraction of FedAvg's best accuracy must be above 0 and at most 1, not {fraction:g}")
    panels = [panel for panel in paper_panels(curves) if any(_baseline(panel, of) for of in panel.series)]
    if not panels:
        raise FedGAError("there is no FedAvg to compare with: run --algorithm fedavg with the same settings")
    labels = series_labels(panels)
    lines = [line for panel in panels for line in _lines(panel, labels, fraction)]
    percent = f"{100 * fraction:g} %"
    title, headings = f"Rounds to {percent} of FedAvg's best accuracy", ("data set", "α", "from", *labels)
    rows = tuple((*place_cells(panel), *cells) for panel, cells in lines)
    breaks = dataset_breaks([panel for panel, _ in lines])
    return Table(f"rounds-to-{100 * fraction:g}", title, headings, rows, _caption(panels, percent), breaks)


def speed_headline(curves: Sequence[Curve], fraction: float) -> str:
    """FedGA's speed-up over FedAvg in the middle of all data sets and α; empty where there is none."""
    pairs = [(of, _baseline(panel, of)) for panel in paper_panels(curves) for of in panel.series]
    found = [reach(of, base, fraction).speedup for of, base in pairs if base and of.algorithm == ALIGNED]
    known = np.array([speedup for speedup in found if math.isfinite(speedup)])
    if not len(known):
        return ""
    settings = f"median of {plural(len(known), 'setting')}, {known.min():.2f} to {known.max():.2f}"
    target = f"{100 * fraction:g} % of FedAvg's best accuracy"
    return f"To {target}, FedAvg's rounds over FedGA's are {median(known):.2f} ({settings}); above 1 FedGA is sooner."


def _baseline(panel: Panel, series: Series) -> Series | None:
    """FedAvg under the same settings."""
    settings = [{key: of.settings[key] for key in of.settings if key not in _OWN} for of in (series, *panel.series)]
    pairs = zip(panel.series, settings[1:], strict=True)
    return next((of for of, others in pairs if of.algorithm == BASELINE and others == settings[0]), None)


def _lines(panel: Panel, labels: Sequence[str], fraction: float) -> list[tuple[Panel, tuple[Cell, ...]]]:
    found: dict[str, Reach] = {}
    printed: dict[str, PrintedRounds] = {}
    for series in panel.series:
        if (baseline := _baseline(panel, series)) is not None:
            found[series.label] = reach(series, baseline, fraction)
        theirs = printed_rounds(panel.dataset, panel.alpha, series.algorithm)
        if theirs is not None and is_papers(series.settings, panel.dataset, panel.alpha):
            printed[series.label] = theirs
    complete = [one.rounds for one in found.values() if one.complete]
    fewest = min(complete) if len(complete) > 1 else math.nan  # a number alone has nothing to beat
    here = tuple(found[label].cell(fewest) if label in found else Cell(NOTHING) for label in labels)
    lines = [(panel, (Cell("here", "here"), *here))]
    if printed:
        other = STAND_IN.get(panel.dataset)
        source = "printed" if other is None else f"{dataset_name(other)}, printed"
        texts = {label: (f"{of.rounds} ({of.speedup:.2f}×)", of.rounds, of.bold) for label, of in printed.items()}
        there = (Cell(*texts[label]) if label in texts else Cell(NOTHING) for label in labels)
        lines.append((panel, (Cell(source, source), *there)))
    return lines


def _caption(panels: Sequence[Panel], percent: str) -> str:
    caption = f"First round whose mean over seeds is {percent} of the best that FedAvg has in any round. In brackets: "
    caption += "FedAvg's rounds over the algorithm's. Bold: fewest."
    if any(printed_rounds(panel.dataset, panel.alpha, BASELINE) for panel in panels):
        caption += " The first round is 1 here and 0 in the paper; its text says 90 %, its numbers fit 80 %."
    curves = [curve for panel in panels for of in panel.series for curve in of.curves]
    every = max(int(np.diff(curve.rounds).max(initial=1)) for curve in curves)
    if every > 1:
        caption += f" The models were evaluated every {every} rounds: a number is known to within {every}."
    return f"{caption} {stand_in_text(panel.dataset for panel in panels)}".strip()
