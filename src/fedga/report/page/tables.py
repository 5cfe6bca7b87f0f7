"""The tables of a page: results, who holds what, and what algorithms cost."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedga.algorithms import Algorithm, algorithm_class
from fedga.data.catalog import find_source
from fedga.errors import FedGAError
from fedga.experiments.spec import RunSpec
from fedga.models import MODELS, build_model
from fedga.report.costs import algorithms_rows, human_bytes
from fedga.report.documents import NOTHING, Cell, Table
from fedga.report.page.story import Found, absent_words, decide, findings, is_baseline, plus_minus
from fedga.report.page.study import Cohort, Member, Place, Study
from fedga.report.series import setting_text
from fedga.report.style import base_name, display_name
from fedga.report.summary import Metric, Row, number_text, summary_metrics

_FLOAT = 4
_OPTIONAL = ("a client keeps", "the server needs", "options")  # columns of costs that may be left out


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


@dataclass(frozen=True)
class Network:
    """A network that runs trained: its name, what it was for, and its size where that can be known."""

    model: str
    datasets: tuple[str, ...]
    parameters: int | None
    classes: int


def networks(study: Study) -> list[Network]:
    """The networks of a study, each once; those of equal size and classes cost the same."""
    found: dict[tuple[str, int | None, int], list[str]] = {}
    shapes: dict[tuple[str, str, str], tuple[int | None, int]] = {}
    for run in study.runs:
        key = (run.spec.model, run.spec.norm, run.spec.dataset)
        if key not in shapes:
            shapes[key] = _size(study, run.spec)
            found.setdefault((run.spec.model, *shapes[key]), []).append(study.labels[run.spec.dataset])
    return [
        Network(model, tuple(dict.fromkeys(datasets)), parameters, classes)
        for (model, parameters, classes), datasets in found.items()
    ]


def _size(study: Study, spec: RunSpec) -> tuple[int | None, int]:
    """Parameters and classes. Only our own networks are built: a results file must not choose what code runs here."""
    classes = study.classes(spec.dataset) or 0
    shape = _input_shape(study.folder, spec)
    if spec.model not in MODELS or shape is None or not classes:
        return None, classes
    try:
        model = build_model(spec.model, shape, classes, norm=spec.norm)
    except Exception:  # a shape that this network was never made for: the page does without the number
        return None, classes
    return sum(p.numel() for p in model.parameters()), classes


def _input_shape(folder: Path, spec: RunSpec) -> tuple[int, ...] | None:
    source = find_source(spec.dataset)
    return source.shape if source is not None else _saved_shape(folder, spec.dataset)


def _saved_shape(folder: Path, dataset: str) -> tuple[int, ...] | None:
    """The shape of a sample as a saved model of the folder describes it."""
    from safetensors import SafetensorError, safe_open

    for path in sorted((folder / "models").glob("*.safetensors")):
        try:
            with safe_open(path, "pt") as file:
                described = file.metadata() or {}
            if RunSpec.from_json(described["spec"]).dataset == dataset:
                return tuple(int(side) for side in json.loads(described["input_shape"]))
        except (SafetensorError, OSError, KeyError, TypeError, ValueError):
            continue
    return None


def cost_tables(study: Study) -> list[Table]:
    """What each algorithm of the study adds to FedAvg, once per size of network."""
    ran = {base_name(run.spec.algorithm) for run in study.runs}
    known = {name: kind for name in ran if (kind := _class_of(name))}
    tables = []
    for number, network in enumerate(networks(study)):
        sized = network.parameters is not None
        rows = algorithms_rows(network.parameters or 0, network.classes, known)
        columns: dict[str, list[str]] = {"algorithm": [display_name(row["algorithm"]) for row in rows]}
        if sized:
            columns |= {"extra up": [_up(row) for row in rows], "extra down": [_down(row) for row in rows]}
        columns |= {
            "extra forward passes": [row["extra_forward_passes"] for row in rows],
            "the server learns": [row["server_learns"] for row in rows],
            "a client keeps": [_kept(row, sized) for row in rows],
            "the server needs": [_needed(row) for row in rows],
            "options": [_options(row) for row in rows],
            "from": [row["citation"] for row in rows],
        }
        shown = {heading: cells for heading, cells in columns.items() if any(cells) or heading not in _OPTIONAL}
        cells = [[Cell(text or NOTHING) for text in texts] for texts in shown.values()]
        title = f"{network.model} on {', '.join(network.datasets)}"
        name = f"costs-{number}" if number else "costs"
        tables.append(Table(name, title, tuple(shown), tuple(zip(*cells, strict=True)), _cost_caption(network)))
    return tables


def _class_of(name: str) -> type[Algorithm] | None:
    """None for an algorithm of somebody's own whose code is not here, or cannot be used: the page does without it."""
    try:
        return algorithm_class(name)
    except FedGAError:
        return None


def _cost_caption(network: Network) -> str:
    beyond = "Per client and round, beyond what FedAvg sends: the model, once down and once up"
    if network.parameters is None:
        return f"{beyond}. How large this network is cannot be told here, so bytes are left out."
    size = human_bytes(_FLOAT * network.parameters)
    return f"{beyond} ({network.parameters:,} parameters, {size}). A dash is nothing."


def _up(row: Mapping[str, Any]) -> str:
    survey = row["survey_up_bytes"]
    own = human_bytes(row["extra_up_bytes"] - survey)
    return "; ".join(part for part in (own, f"{human_bytes(survey)} from every client" if survey else "") if part)


def _down(row: Mapping[str, Any]) -> str:
    survey = row["survey_down_bytes"]
    asked = f"{human_bytes(survey)} to each client not active" if survey else ""
    return "; ".join(part for part in (human_bytes(row["extra_down_bytes"]), asked) if part)


def _kept(row: Mapping[str, Any], sized: bool) -> str:
    size = f" ({human_bytes(row['client_keeps_bytes'])})" if sized and row["client_keeps"] else ""
    return row["client_keeps"] + size


def _needed(row: Mapping[str, Any]) -> str:
    number = row["server_samples_per_class"]
    return f"{number} samples of each class" if number else ""


def _options(row: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={setting_text(value)}" for name, value in row["options"].items())
