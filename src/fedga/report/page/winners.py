"""Which algorithm came out best where, and which runs went wrong: a headline and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedga.drawing.style import algorithm_rank, base_name, display_name
from fedga.report.curves import Curve
from fedga.report.documents import NOTHING, Cell, Table
from fedga.report.page.study import Cohort, Member, Scenario, Study
from fedga.report.summary import number_text
from fedga.report.words import listed, plural

_BASELINE = "fedavg"
_MOST_NAMED = 8  # algorithms in the headline
_MODELS = {"accuracy": "The best algorithm", "averaged_accuracy": "The best algorithm, by the averaged model"}
_TROUBLES = {
    "diverged": "in no mean; ends in a cross in the curves",
    "unfinished": "in a mean only where no other seed of its series got further",
    "at chance": "in the means as it is",
}
Found = list[tuple[Scenario, Cohort]]  # the same setting on one data set, at all its α


@dataclass(frozen=True)
class Winner:
    """The best of a cohort by one metric, and its lead over FedAvg."""

    best: tuple[Member, ...]  # several where they are printed alike
    value: float
    lead: float | None  # in points; None where FedAvg is among the best, or not there


def winner(cohort: Cohort, metric: str) -> Winner | None:
    """Who is best by the mean over seeds; None before the end of training, and where only one has a value."""
    known = [member for member in cohort.contestants if member.row[metric] is not None] if cohort.finished else []
    if len(known) < 2:
        return None
    value = max(member.row[metric] for member in known)
    best = tuple(member for member in known if number_text(member.row[metric]) == number_text(value))
    others = [member for member in known if base_name(member.series.algorithm) == _BASELINE and member not in best]
    baseline = max((member.row[metric] for member in others), default=None)
    return Winner(best, value, None if baseline is None else 100 * (value - baseline))


def headline(study: Study) -> str:
    """What was run, and who is best most often."""
    names = sorted({run.spec.algorithm for run in study.runs}, key=algorithm_rank)
    named = listed([display_name(name) for name in names]) if len(names) <= _MOST_NAMED else f"{len(names)} algorithms"
    text = f"{plural(len(study.runs), 'run')}: {named} on {listed(study.dataset_labels)}"
    cohorts = [cohort for place in study.places for cohort in place.cohorts]
    found = [one for cohort in cohorts if (one := winner(cohort, "accuracy")) is not None]
    wins = Counter(member.name for one in found for member in one.best)
    if not wins:
        return f"{text}."
    first = [name for name, number in wins.items() if number == max(wins.values())]
    compared = f"{max(wins.values())} of {plural(len(found), 'comparison')} under equal settings"
    return f"{text}. Best test accuracy after the last round: {listed(first)}, in {compared}."


def compared_settings(study: Study) -> list[Found]:
    """The settings that the tables of the best have: presets as they are, and settings at several α.

    Cohorts of a single algorithm compare nothing and are left to the table of results, unless there are no others.
    """
    every = [(place, cohort) for place in study.places for cohort in place.cohorts]
    together: dict[tuple[str, str], Found] = {}
    for place, cohort in [(place, cohort) for place, cohort in every if len(cohort.members) > 1] or every:
        together.setdefault((place.dataset, cohort.name), []).append((place, cohort))
    return [found for found in together.values() if len(found) > 1 or not found[0][1].own] or list(together.values())


def ended_of(found: Found) -> Found:
    """Where somebody trained to the end; all places while that is so nowhere."""
    return [(place, cohort) for place, cohort in found if cohort.finished] or found


def best_tables(study: Study) -> list[Table]:
    """Who is best where, of the last model and of the averaged one: a row per data set and setting, a column per α."""
    found = compared_settings(study)
    alphas = sorted({place.alpha for of in found for place, _ in of}, key=lambda alpha: (alpha is not None, alpha))
    if None in alphas and len(alphas) > 2:
        alphas.remove(None)
    tables = [_best_table(found, alphas, metric, title) for metric, title in _MODELS.items()]
    return [table for table in tables if table.rows]


def _best_table(found: Sequence[Found], alphas: Sequence[float | None], metric: str, title: str) -> Table:
    rows, datasets = [], []
    for of in found:
        at = {place.alpha: cohort for place, cohort in of}
        cells = [_best_cell(at[alpha], metric) if alpha in at else Cell(NOTHING) for alpha in alphas]
        if any(cell.text != NOTHING for cell in cells):
            place, cohort = of[0]
            rows.append((Cell(place.dataset_label), Cell(cohort.name or NOTHING), *cells))
            datasets.append(place.dataset)
    headings = ("data set", "setting", *("no α" if alpha is None else f"α = {alpha:g}" for alpha in alphas))
    caption = "Mean test accuracy over seeds after the last round; in brackets, points above FedAvg."
    breaks = tuple(at for at in range(len(rows) - 1) if datasets[at] != datasets[at + 1])
    return Table(f"best-{metric.replace('_', '-')}", title, headings, tuple(rows), caption, breaks)


def _best_cell(cohort: Cohort, metric: str) -> Cell:
    reasons: dict[str, list[str]] = {}
    for member in cohort.members:
        if member not in cohort.contestants:
            reasons.setdefault(member.why_not, []).append(member.name)
    left_out = "; ".join(f"{why}, left out: {', '.join(names)}" for why, names in reasons.items())
    note = left_out if cohort.finished else "unfinished"
    if (found := winner(cohort, metric)) is None:
        return Cell(NOTHING, note=note)
    above = "" if found.lead is None else f" (+{found.lead:.1f})"
    names = ", ".join(member.name for member in found.best)
    return Cell(f"{names}\u00a0{number_text(found.value)}{above}", note=note)


def troubles_table(study: Study) -> Table | None:
    """Runs that diverged, are unfinished or never learned anything; None where there are none."""
    rows = []
    for place in study.places:
        classes = study.classes(place.dataset)
        for cohort, member in place.members:
            stuck = sum(at_chance(curve, classes) for curve in member.series.sound if curve.status == "done")
            for kind, number in zip(_TROUBLES, (member.row["diverged"], member.row["unfinished"], stuck), strict=True):
                if number:
                    share = Cell(f"{number} of {len(member.series.curves)}", float(number))
                    rows.append((Cell(kind), share, Cell(cohort.label(member)), Cell(place.title)))
    if not rows:
        return None
    order = list(_TROUBLES)
    rows.sort(key=lambda row: order.index(row[0].text))
    counts = Counter[str]()
    for what, number, *_ in rows:
        counts[what.text] += int(number.value or 0)
    title = ", ".join(f"{plural(counts[kind], 'run')} {kind}" for kind in order if counts[kind])
    caption = " ".join(f"{kind.capitalize()}: {_TROUBLES[kind]}." for kind in order if counts[kind])
    return Table("troubles", title, ("what", "runs", "algorithm and setting", "data set"), tuple(rows), caption)


def at_chance(curve: Curve, classes: int | None) -> bool:
    """Whether no evaluation of the run is above what guessing gives, by balanced accuracy and with little slack."""
    if not classes:
        return False
    chance = 1 / classes
    evaluated = curve.metric("balanced_accuracy")[curve.rounds >= 1]
    evaluated = evaluated[np.isfinite(evaluated)]
    return bool(len(evaluated)) and float(evaluated.max()) <= min(1.5 * chance, chance + 0.05 * (1 - chance))
