"""The tables of a page: results, and who holds what."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedga.report.documents import NOTHING, Cell, Table
from fedga.report.page.story import Found, absent_words, decide, findings, is_baseline, plus_minus
from fedga.report.page.study import Cohort, Member, Place, Study
from fedga.report.summary import Metric, Row, number_text, summary_metrics


@dataclass(frozen=True)
class Filtered:
    """A table, and those of its columns whose values a reader can choose from."""

    table: Table
    columns: tuple[int, ...]


def results_table(study: Study) -> Filtered:
    """One row per data set, α, preset, own settings and algorithm; metrics as mean ± deviation over seeds."""
    entries = [(place, cohort, member) for place in study.places for cohort, member in place.members]
    found = summary_metrics(study.curves)
    metrics = [metric for metric in found if any(entry[2].row[metric.name] is not None for entry in entries)]
    named: dict[str, Callable[[Place, Cohort, Member], Cell]] = {
        "data set": lambda place, cohort, member: Cell(place.dataset_label),
        "α": lambda place, cohort, member: Cell(place.alpha_label, place.alpha),
        "preset": lambda place, cohort, member: Cell(cohort.preset or NOTHING),
        "setting": lambda place, cohort, member: Cell(cohort.own or NOTHING),
        "algorithm": lambda place, cohort, member: Cell(member.name),
    }
    columns = {heading: [cell(*entry) for entry in entries] for heading, cell in named.items()}
    shared = [heading for heading, cells in columns.items() if heading != "algorithm" and len(set(cells)) == 1]
    title = ", ".join(f"α = {columns[name][0].text}" if name == "α" else columns[name][0].text for name in shared)
    columns = {heading: cells for heading, cells in columns.items() if heading not in shared}
    filters = tuple(at for at, cells in enumerate(columns.values()) if len(set(cells)) > 1)
    places = [id(place) for place, _, _ in entries]
    rows = [member.row for _, _, member in entries]
    competes = [member in contestants(place, cohort) for place, cohort, member in entries]
    columns |= {metric.heading: _metric_cells(places, rows, competes, metric) for metric in metrics}
    columns["round"] = [_number(row["round"]) for row in rows]
    columns["seeds"] = [_number(row["seeds"]) for row in rows]
    if any(notes := [_note(row) for row in rows]):
        columns["note"] = [Cell(note) for note in notes]
    breaks = tuple(at for at in range(len(places) - 1) if places[at] != places[at + 1])
    table = Table(
        "results",
        title.replace(f", {NOTHING}", "") or "All results",
        tuple(columns),
        tuple(zip(*columns.values(), strict=True)),
        _caption([metric.name for metric in metrics], _behind(rows, competes)),
        breaks,
    )
    return Filtered(table, filters)


def contestants(place: Place, cohort: Cohort) -> tuple[Member, ...]:
    """Of a cohort, who is compared with the others of its place: unfinished runs while there is nothing else."""
    finished = any(other.finished for other in place.cohorts)
    return cohort.contestants if cohort.finished or not finished else ()


def _metric_cells(places: Sequence[int], rows: Sequence[Row], competes: Sequence[bool], metric: Metric) -> list[Cell]:
    """What is printed like the best of its place is bold, unless it is the only one or not at its end yet."""
    cells: list[Cell] = []
    for _, group in itertools.groupby(zip(places, rows, competes, strict=True), lambda entry: entry[0]):
        of_place = [(row, counts) for _, row, counts in group]
        known = [row[metric.name] for row, counts in of_place if counts and row[metric.name] is not None]
        shown = number_text(metric.best(known), metric.heavy_tailed)
        cells += [_metric_cell(row, metric, shown if counts else "") for row, counts in of_place]
    return cells


def _metric_cell(row: Row, metric: Metric, best: str) -> Cell:
    value, wide = row[metric.name], row.get(f"{metric.name}_deviation")
    if value is None:
        return Cell(NOTHING)
    shown = number_text(value, metric.heavy_tailed)
    text = shown if wide is None else plus_minus(value, wide)
    return Cell(text, value, bold=shown == best, deviation=wide)


def _number(value: int | None) -> Cell:
    return Cell(NOTHING) if value is None else Cell(f"{value:,}", float(value))


def _note(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{row[name]} of {row['runs']} {name}" for name in ("diverged", "unfinished") if row[name])


def _behind(rows: Sequence[Row], competes: Sequence[bool]) -> bool:
    """Whether a row has values that are in no comparison."""
    return any(row["seeds"] and not counts for row, counts in zip(rows, competes, strict=True))


def _caption(shown: Sequence[str], behind: bool) -> str:
    caption = "The last round; mean ± standard deviation over seeds. Bold: best of its data set and α"
    caption += ", leaving out what is unfinished." if behind else "."
    if "averaged_accuracy" in shown:
        caption += " Averaged model: accuracy of the model averaged over rounds on the server."
    if "ea_ratio" in shown:
        caption += " EA ratio: error asymmetry of the worst class over the best, median over seeds; 1 is unbiased."
    if {"forgetting_rare", "forgetting_missing"} & set(shown):
        caption += " Lost: accuracy that a round of local training takes from the classes of which a client holds few"
        caption += " (rare) or none (missing), mean over the examined rounds."
    return caption


def best_tables(study: Study) -> list[Table]:
    """Who is best where, of the last model and of the averaged one: a row per data set and setting, a column per α.

    None where no data set has several α: then sentences say it.
    """
    main, _ = findings(study)
    alphas = sorted({place.alpha for found in main for place, _ in found if place.alpha is not None})
    models = {"accuracy": "The best algorithm", "averaged_accuracy": "The best algorithm, by the averaged model"}
    tables = [_best_table(main, alphas, metric, title) for metric, title in models.items()] if len(alphas) > 1 else []
    return [table for table in tables if table.rows]


def _best_table(main: Sequence[Found], alphas: Sequence[float], metric: str, title: str) -> Table:
    rows, datasets = [], []
    for found in main:
        place, cohort = found[0]
        at = {place.alpha: (place, cohort) for place, cohort in found}
        cells = [_best_cell(*at[alpha], metric) if alpha in at else Cell(NOTHING) for alpha in alphas]
        if any(cell.text != NOTHING for cell in cells):
            rows.append((Cell(place.dataset_label), Cell(cohort.name or NOTHING), *cells))
            datasets.append(place.dataset)
    headings = ("data set", "setting", *(f"α = {alpha:g}" for alpha in alphas))
    caption = "Mean test accuracy over seeds after the last round; in brackets, points above FedAvg."
    breaks = tuple(at for at in range(len(rows) - 1) if datasets[at] != datasets[at + 1])
    return Table(f"best-{metric.replace('_', '-')}", title, headings, tuple(rows), caption, breaks)


def _best_cell(place: Place, cohort: Cohort, metric: str) -> Cell:
    verdict = decide(cohort, metric)
    note = "; ".join(absent_words([(place, cohort)])) if cohort.finished else "unfinished"
    if verdict is None:
        return Cell(NOTHING, note=note)
    above = f" (+{verdict.points:.1f})" if verdict.other and is_baseline(verdict.other) else ""
    names = ", ".join(member.name for member in verdict.best)
    return Cell(f"{names}\u00a0{number_text(verdict.value)}{above}", note=note)


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
