"""What the algorithms of a study cost and reveal, for the networks they trained."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fedga.algorithms import ALGORITHMS, Algorithm, algorithm_class
from fedga.algorithms.parameters import Parameters
from fedga.common.files import require_regular
from fedga.drawing.style import base_name, display_name
from fedga.errors import FedGAError
from fedga.models import MODELS, build_model
from fedga.plugins import received_part
from fedga.report.documents import NOTHING, Cell, Table
from fedga.report.methods.costs import FLOAT, algorithms_rows, cost_columns, human_bytes
from fedga.report.page.study import Study
from fedga.spec.catalog import find_source
from fedga.spec.settings import RunSpec
from fedga.store.code import stored_code

_OPTIONAL = ("a client keeps", "the server needs", "options")  # columns that may be left out
_HEADINGS = ("extra up", "extra down", "extra forward passes", "the server learns", *_OPTIONAL, "from")


def networks(study: Study) -> list[tuple[str, Parameters | None, int, list[str]]]:
    """Model, parameters (None where unknown), classes and data sets of every network that runs trained."""
    found: dict[tuple[str, int | None, int], tuple[str, Parameters | None, int, list[str]]] = {}
    for spec in {(run.spec.model, run.spec.norm, run.spec.dataset): run.spec for run in study.runs}.values():
        parameters, classes = _size(study, spec)
        key = (spec.model, parameters.total if parameters else None, classes)
        labels = found.setdefault(key, (spec.model, parameters, classes, []))[-1]
        labels += [label for label in [study.labels[spec.dataset]] if label not in labels]
    return list(found.values())


def _size(study: Study, spec: RunSpec) -> tuple[Parameters | None, int]:
    """Parameters and classes. Only our own networks are built: a results file must not choose what code runs here."""
    classes = study.classes(spec.dataset) or 0
    source = find_source(spec.dataset)
    shape = source.shape if source is not None else _saved_shape(study.folder, spec.dataset)
    if spec.model not in MODELS or shape is None or not classes:
        return None, classes
    try:
        with torch.device("meta"):  # only its size is wanted, and the shape may be anything
            model = build_model(spec.model, shape, classes, norm=spec.norm)
    except Exception:  # a shape that this network was never made for: the page does without the number
        return None, classes
    return Parameters(model), classes


def _saved_shape(folder: Path, dataset: str) -> tuple[int, ...] | None:
    """The shape of a sample as a saved model of the folder describes it."""
    from safetensors import SafetensorError, safe_open

    for path in sorted((folder / "models").glob("*.safetensors")):
        try:
            require_regular(path)
            with safe_open(path, "pt") as file:
                described = file.metadata() or {}
            if RunSpec.from_json(described["spec"]).dataset == dataset:
                return tuple(int(side) for side in json.loads(described["input_shape"]))
        except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError):
            continue
    return None


def cost_tables(study: Study) -> list[Table]:
    """What each algorithm of the study adds to FedAvg, once per size of network."""
    ran = {base_name(run.spec.algorithm) for run in study.runs}
    known = {name: kind for name in ran if (kind := _class_of(name))}
    notes = _code_notes(study, ran - ALGORITHMS.keys(), known)
    tables = []
    for number, (model, parameters, classes, datasets) in enumerate(networks(study)):
        rows = algorithms_rows(parameters, classes, known)
        columns = cost_columns(rows, parameters)
        columns["from"] = [row["citation"] for row in rows]
        wanted = _HEADINGS if parameters is not None else _HEADINGS[2:]
        shown = {name: columns[name] for name in wanted if any(columns[name]) or name not in _OPTIONAL}
        named = [Cell(display_name(row["algorithm"]), note=notes.get(row["algorithm"], "")) for row in rows]
        cells = [[Cell(text or NOTHING) for text in texts] for texts in shown.values()]
        complete = list(zip(named, *cells, strict=True))
        unknown = [Cell(NOTHING)] * len(shown)
        complete += [(Cell(display_name(name), note=notes[name]), *unknown) for name in sorted(ran - known.keys())]
        title = f"{model} on {', '.join(datasets)}"
        name = f"costs-{number}" if number else "costs"
        tables.append(Table(name, title, ("algorithm", *shown), tuple(complete), _cost_caption(parameters)))
    return tables


def _class_of(name: str) -> type[Algorithm] | None:
    """None where its code is not here or unusable. Folders come from anybody: only ours and the user's own count."""
    try:
        received_part("algorithms", name, ALGORITHMS, "the folder", "")
        return algorithm_class(name)
    except FedGAError:
        return None


def _code_notes(study: Study, own: set[str], known: Mapping[str, Any]) -> dict[str, str]:
    """Notes on algorithms of somebody's own whose code is not, or is no longer, the one that trained."""
    missing = "its code is not here, so its cost is unknown; fedga.toml of its project names it"
    notes = dict.fromkeys(own - known.keys(), missing)
    for code in stored_code(study.folder):
        if code.kind == "algorithms" and code.name in known and code.fate:
            notes[code.name] = f"{code.origin or code.name} {code.fate}: the cost is that of today's code"
    return notes


def _cost_caption(parameters: Parameters | None) -> str:
    beyond = "Per client and round, beyond what FedAvg sends: the model, once down and once up"
    if parameters is None:
        return f"{beyond}. The size of this network is unknown here, so bytes are left out."
    return f"{beyond} ({parameters.total:,} parameters, {human_bytes(FLOAT * parameters.total)}). A dash is nothing."
