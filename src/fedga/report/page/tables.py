"""The tables of a page: results, who is best where, which runs went wrong, and who holds what. And its headline."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedga.drawing.style import algorithm_rank, base_name, display_name
from fedga.measures.columns import MetricColumn
from fedga.report.curves import Curve, main_accuracy, metric_title
from fedga.report.documents import NOTHING, Cell, Table
from fedga.report.page.study import Cohort, Member, Scenario, Study
from fedga.report.summary import explanations, number_text, odd_runs, plus_minus, summary_metrics
from fedga.report.words import grouped, listed, plural

_BASELINE = "fedavg"
_MOST_NAMED = 8  # algorithms in the headline
_MODELS = {"accuracy": "The best algorithm", "averaged_accuracy": "The best algorithm, by the averaged model"}
_MODELS["client_accuracy"] = "The best algorithm, by the clients' own models"
_TROUBLES = {
    "diverged": "in no mean; ends in a cross in the curves",
    "unfinished": "in a mean only where no other seed of its series got further",
    "at chance": "in the means as it is",
}
Found = list[tuple[Scenario, Cohort]]  # the same setting on one data set, at all its α


def results_table(study: Study) -> tuple[Table, list[int]]:
    """A row per data set, α, preset, own settings and algorithm; and the columns whose values a reader can choose."""
    entries = [(place, cohort, member) for place in study.places for cohort, member in place.members]
    columns = {
        "data set": [Cell(place.dataset_label) for place, _, _ in entries],
        "α": [Cell(place.alpha_label, place.alpha) for place, _, _ in entries],
        "preset": [Cell(cohort.preset or NOTHING) for _, cohort, _ in entries],
        "setting": [Cell(cohort.own or NOTHING) for _, cohort, _ in entries],
        "algorithm": [Cell(member.name) for _, _, member in entries],
    }
    shared = [heading for heading, cells in columns.items() if heading != "algorithm" and len(set(cells)) == 1]
    title = ", ".join(f"α = {columns[name][0].text}" if name == "α" else columns[name][0].text for name in shared)
    columns = {heading: cells for heading, cells in columns.items() if heading not in shared}
    filters = [at for at, cells in enumerate(columns.values()) if len(set(cells)) > 1]
    rows = [member.row for _, _, member in entries]
    known = summary_metrics(study.curves)
    metrics = [metric for metric in known if any(row[metric.name] is not None for row in rows)]
    for metric in metrics:
        columns[metric.heading] = [cell for place in study.places for cell in _metric_cells(place, metric)]
    for name in ("round", "seeds"):
        columns[name] = [Cell(NOTHING) if of[name] is None else Cell(f"{of[name]:,}", float(of[name])) for of in rows]
    if any(map(odd_runs, rows)):
        columns["note"] = [Cell(odd_runs(row)) for row in rows]
    behind = any(member.row["seeds"] and member not in contestants(place, cohort) for place, cohort, member in entries)
    caption = "The last round; mean ± standard deviation over seeds. Bold: best of its data set and α"
    caption += (", leaving out what is unfinished." if behind else ".") + explanations(metrics)
    breaks = tuple(at for at in range(len(entries) - 1) if entries[at][0] is not entries[at + 1][0])
    title = title.replace(f", {NOTHING}", "") or "All results"
    cells = tuple(zip(*columns.values(), strict=True))
    return Table("results", title, tuple(columns), cells, caption, breaks), filters


def contestants(place: Scenario, cohort: Cohort) -> tuple[Member, ...]:
    """Of a cohort, who is compared with the others of its place: unfinished runs while there is nothing else."""
    return cohort.contestants if cohort.finished or not any(of.finished for of in place.cohorts) else ()


def _metric_cells(place: Scenario, metric: MetricColumn) -> list[Cell]:
    """What is printed like the best of its place is bold, unless it is the only one or not at its end yet."""
    competes = [member in contestants(place, cohort) for cohort, member in place.members]
    rows = [member.row for _, member in place.members]
    values = [row[metric.name] for row, counts in zip(rows, competes, strict=True) if counts]
    best = number_text(metric.best([value for value in values if value is not None]), metric.ratio)
    cells = []
    for row, counts in zip(rows, competes, strict=True):
        value, wide = row[metric.name], row.get(f"{metric.name}_deviation")
        shown = NOTHING if value is None else number_text(value, metric.ratio)
        text = shown if wide is None else plus_minus(value, wide)
        cells.append(Cell(text, value, value is not None and counts and shown == best, deviation=wide))
    return cells


def partitions_table(study: Study) -> Table | None:
    """The skew of every partition in numbers; None where the folder does not know them."""
    if not study.partitions:
        return None
    rows = []
    for one in study.partitions:
        held = (one.class_counts > 0).sum(1)
        largest = 100 * one.class_counts.max(1).sum() / max(one.class_counts.sum(), 1)
        rows.append(
            (
                Cell(study.labels.get(one.dataset, one.dataset)),
                Cell(NOTHING if one.alpha is None else f"{one.alpha:g}", one.alpha),
                Cell(one.partition),
                Cell(f"{one.clients:,}", float(one.clients)),
                Cell(f"{held.mean():.1f} of {one.class_counts.shape[1]}", float(held.mean())),
                Cell(f"{held.min()} to {held.max()}", float(held.min())),
                Cell(f"{largest:.0f} %", float(largest)),
            )
        )
    headings = ("data set", "α", "partition", "clients", "classes a client holds", "fewest to most", "in largest class")
    caption = "In largest class: the share of all samples that belong to the most frequent class of their client."
    return Table("partitions", "How skewed the clients are", headings, tuple(rows), caption)


@dataclass(frozen=True)
class Winner:
    """The best of a cohort by one metric, and its lead over FedAvg."""

    best: tuple[Member, ...]  # several where they are printed alike
    value: float
    lead: float | None  # in points; None where FedAvg is among the best, or not there


def winner(cohort: Cohort, metric: str) -> Winner | None:
    """Who is best by the mean over seeds; None before the end of training, and where only one has a value."""
    known = [member for member in cohort.contestants if member.row.get(metric) is not None] if cohort.finished else []
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
    metric = main_accuracy(study.curves)
    cohorts = [cohort for place in study.places for cohort in place.cohorts]
    found = [one for cohort in cohorts if (one := winner(cohort, metric)) is not None]
    wins = Counter(member.name for one in found for member in one.best)
    if not wins:
        return f"{text}."
    first = [name for name, number in wins.items() if number == max(wins.values())]
    compared = f"{max(wins.values())} of {plural(len(found), 'comparison')} under equal settings"
    return f"{text}. Best {metric_title(metric, study.curves)} after the last round: {listed(first)}, in {compared}."


def compared_settings(study: Study) -> list[Found]:
    """Presets as they are and settings at several α; those of a single algorithm only if there are no others."""
    every = [(place, cohort) for place in study.places for cohort in place.cohorts]
    several = [(place, cohort) for place, cohort in every if len(cohort.members) > 1] or every
    together = grouped(several, lambda one: (one[0].dataset, one[1].name))
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
    tables = [_best_table(study, found, alphas, metric, title) for metric, title in _MODELS.items()]
    return [table for table in tables if table.rows]


def _best_table(study: Study, found: Sequence[Found], alphas: Sequence[float | None], metric: str, title: str) -> Table:
    rows, datasets = [], []
    for of in found:
        at = {place.alpha: cohort for place, cohort in of}
        cells = [_best_cell(at[alpha], metric) if alpha in at else Cell(NOTHING) for alpha in alphas]
        if any(cell.text != NOTHING for cell in cells):
            place, cohort = of[0]
            rows.append((Cell(place.dataset_label), Cell(cohort.name or NOTHING), *cells))
            datasets.append(place.dataset)
    headings = ("data set", "setting", *("no α" if alpha is None else f"α = {alpha:g}" for alpha in alphas))
    measured = metric_title(metric.removeprefix("averaged_"), study.curves)
    caption = f"Mean {measured} over seeds after the last round; in brackets, points above FedAvg."
    breaks = tuple(at for at in range(len(rows) - 1) if datasets[at] != datasets[at + 1])
    return Table(f"best-{metric.replace('_', '-')}", title, headings, tuple(rows), caption, breaks)


def _best_cell(cohort: Cohort, metric: str) -> Cell:
    others = [member for member in cohort.members if member not in cohort.contestants]
    reasons = grouped(others, lambda member: member.why_not).items()
    left_out = "; ".join(f"{why}, left out: {', '.join(of.name for of in members)}" for why, members in reasons)
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
    rows.sort(key=lambda row: list(_TROUBLES).index(row[0].text))
    by_kind = grouped(rows, lambda row: row[0].text).items()
    counts = {kind: sum(int(of[1].value or 0) for of in found) for kind, found in by_kind}
    title = ", ".join(f"{plural(number, 'run')} {kind}" for kind, number in counts.items())
    caption = " ".join(f"{kind.capitalize()}: {_TROUBLES[kind]}." for kind in counts)
    return Table("troubles", title, ("what", "runs", "algorithm and setting", "data set"), tuple(rows), caption)


def at_chance(curve: Curve, classes: int | None) -> bool:
    """Whether no evaluation of the run is above what guessing gives, by balanced accuracy and with little slack."""
    if not classes:
        return False
    chance = 1 / classes
    evaluated = curve.metric("balanced_accuracy")[curve.rounds >= 1]
    evaluated = evaluated[np.isfinite(evaluated)]
    return bool(len(evaluated)) and float(evaluated.max()) <= min(1.5 * chance, chance + 0.05 * (1 - chance))
