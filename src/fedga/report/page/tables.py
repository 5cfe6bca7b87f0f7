"""The tables of a page: results, and who holds what."""

from __future__ import annotations

from dataclasses import dataclass

from fedga.measures.columns import MetricColumn
from fedga.report.documents import NOTHING, Cell, Table
from fedga.report.page.study import Cohort, Member, Scenario, Study
from fedga.report.summary import Row, explanations, number_text, odd_runs, plus_minus, summary_metrics


@dataclass(frozen=True)
class Filtered:
    """A table, and those of its columns whose values a reader can choose from."""

    table: Table
    columns: tuple[int, ...]


def results_table(study: Study) -> Filtered:
    """One row per data set, α, preset, own settings and algorithm; metrics as mean ± deviation over seeds."""
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
    filters = tuple(at for at, cells in enumerate(columns.values()) if len(set(cells)) > 1)
    rows = [member.row for _, _, member in entries]
    known = summary_metrics(study.curves)
    metrics = [metric for metric in known if any(row[metric.name] is not None for row in rows)]
    for metric in metrics:
        columns[metric.heading] = [cell for place in study.places for cell in _metric_cells(place, metric)]
    for name in ("round", "seeds"):
        columns[name] = [
            Cell(NOTHING) if row[name] is None else Cell(f"{row[name]:,}", float(row[name])) for row in rows
        ]
    if any(map(odd_runs, rows)):
        columns["note"] = [Cell(odd_runs(row)) for row in rows]
    behind = any(member.row["seeds"] and member not in contestants(place, cohort) for place, cohort, member in entries)
    caption = "The last round; mean ± standard deviation over seeds. Bold: best of its data set and α"
    caption += (", leaving out what is unfinished." if behind else ".") + explanations(metrics)
    breaks = tuple(at for at in range(len(entries) - 1) if entries[at][0] is not entries[at + 1][0])
    title = title.replace(f", {NOTHING}", "") or "All results"
    table = Table("results", title, tuple(columns), tuple(zip(*columns.values(), strict=True)), caption, breaks)
    return Filtered(table, filters)


def contestants(place: Scenario, cohort: Cohort) -> tuple[Member, ...]:
    """Of a cohort, who is compared with the others of its place: unfinished runs while there is nothing else."""
    finished = any(other.finished for other in place.cohorts)
    return cohort.contestants if cohort.finished or not finished else ()


def _metric_cells(place: Scenario, metric: MetricColumn) -> list[Cell]:
    """What is printed like the best of its place is bold, unless it is the only one or not at its end yet."""
    competes = [member in contestants(place, cohort) for cohort, member in place.members]
    rows = [member.row for _, member in place.members]
    values = [row[metric.name] for row, counts in zip(rows, competes, strict=True) if counts]
    best = number_text(metric.best([value for value in values if value is not None]), metric.ratio)
    return [_metric_cell(row, metric, best if counts else "") for row, counts in zip(rows, competes, strict=True)]


def _metric_cell(row: Row, metric: MetricColumn, best: str) -> Cell:
    value, wide = row[metric.name], row.get(f"{metric.name}_deviation")
    if value is None:
        return Cell(NOTHING)
    shown = number_text(value, metric.ratio)
    return Cell(shown if wide is None else plus_minus(value, wide), value, bold=shown == best, deviation=wide)


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
