"""The numbers of a diagnosis: as text for readers, as JSON and CSV for programs, and where the files may go."""

import csv
import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedga.common.spreadsheet import text_cell
from fedga.diagnosis.diagnosis import Diagnosis
from fedga.diagnosis.measure import Errors
from fedga.diagnosis.verdict import percent
from fedga.errors import FedGAError
from fedga.report.documents import NOTHING
from fedga.report.summary import number_text


def number(count: float) -> str:
    return f"{count:,.0f}" if float(count).is_integer() else f"{count:,.1f}"


def span(low: float, high: float) -> str:
    return NOTHING if math.isnan(low) else f"{number_text(low, True)} to {number_text(high, True)}"


def field_text(name: str, value: Any) -> str:
    """A value of the row of a class or site, by the name of its column."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return NOTHING
    if isinstance(value, str):
        return value
    if name == "accuracy":
        return percent(value)
    if name in ("missed", "false_alarm"):
        return number_text(value)
    return number_text(value, True) if name in ("ea", "ea_ratio", "worst_ea") else number(value)


FORMAT = "fedga-diagnosis-1"
Record = dict[str, Any]  # a row by the names of its columns
_FIELDS = {name: name for name in ("samples", "predicted", "accuracy", "missed", "false_alarm")}
_FIELDS |= {"ea": "asymmetry", "ea_low": "low", "ea_high": "high", "enough_samples": "enough"}


def as_dict(found: Diagnosis) -> dict[str, Any]:
    """The verdict, the overall numbers, and a list of classes and of sites; what is not a finite number is None."""
    everywhere = found.everywhere
    content = {
        "format": FORMAT,
        "name": found.name,
        "verdict": found.verdict.level,
        "headline": found.headline,
        "samples": int(everywhere.samples.sum()),
        "ea_ratio": found.ea_ratio,
        "accuracy": float(everywhere.overall_accuracy),
        "balanced_accuracy": float(np.nanmean(everywhere.accuracy)),
        "training_counts": found.holdings.source,
        "notes": list(found.notes),
        "classes": class_rows(found),
        "sites": site_rows(found),
    }
    return {name: _plain(value) for name, value in content.items()}


def as_json(found: Diagnosis) -> str:
    return json.dumps(as_dict(found), indent=1, ensure_ascii=False, allow_nan=False)


def class_rows(found: Diagnosis) -> list[Record]:
    """One row per class, in their order."""
    bounds = zip(found.class_names, found.holdings.totals.tolist(), *map(np.ndarray.tolist, found.bounds), strict=True)
    return [
        {"class": name, "trained_on": trained, **_errors(found.everywhere, at), "bound_low": low, "bound_high": high}
        for at, (name, trained, low, high) in enumerate(bounds)
    ]


def site_rows(found: Diagnosis) -> list[Record]:
    """One row per site, in their order."""
    if found.sites is None:
        return []
    rows = []
    for at, name in enumerate(found.site_names):
        errors = found.sites.at(at)
        worst = worst_class(errors)
        row: Record = {"site": name, "samples": int(errors.samples.sum()), "accuracy": float(errors.overall_accuracy)}
        row |= {"classes": int((errors.samples > 0).sum()), "ea_ratio": float(errors.ratio)}
        row["worst_class"] = None if worst is None else found.class_names[worst]
        row["worst_ea"] = math.nan if worst is None else float(errors.asymmetry[worst])
        rows.append(row)
    return rows


def cell_rows(found: Diagnosis) -> list[Record]:
    """One row per site and class that it has samples of."""
    if found.sites is None:
        return []
    trained = dict(zip(found.holdings.site_names, found.holdings.counts, strict=False))
    unknown = np.full(len(found.class_names), math.nan)
    return [
        {"site": site, "class": found.class_names[of_class], "trained_on": float(trained.get(site, unknown)[of_class])}
        | _errors(errors, of_class)
        for site, errors in ((site, found.sites.at(at)) for at, site in enumerate(found.site_names))
        for of_class in np.flatnonzero(errors.samples).tolist()
    ]


def worst_class(errors: Errors) -> int | None:
    """The class of the highest EA, where there are enough samples of it."""
    scores = np.where(errors.enough & ~np.isnan(errors.asymmetry), errors.asymmetry, -np.inf)
    worst = int(np.argmax(scores))
    return worst if scores[worst] > -np.inf else None


def _errors(errors: Errors, at: int) -> Record:
    return {name: getattr(errors, field)[at].item() for name, field in _FIELDS.items()}


def as_csv(rows: Sequence[Record]) -> str:
    """The rows under their names; empty where a number is not known."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(rows[0])
    writer.writerows([_cell(value) for value in row.values()] for row in rows)
    return stream.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return None if isinstance(value, float) and math.isnan(value) else text_cell(value)


def _plain(value: Any) -> Any:
    """JSON has neither infinity nor NaN."""
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_BEGINNINGS = {  # of the files beside a page, by which they are known again
    "numbers.json": b'{\n "format": "fedga-diagnosis-',
    "classes.csv": b"class,trained_on,samples,",
    "sites.csv": b"site,samples,accuracy,",
    "cells.csv": b"site,class,trained_on,",
}


def beside(page: Path) -> dict[str, Path]:
    """The files that may lie beside a page, by what they hold."""
    return {ending: page.with_name(f"{page.stem}-{ending}") for ending in _BEGINNINGS}


def check_target(page: Path) -> None:
    """Refuse a place where no page can go, or where files of others lie, before anything long is done."""
    try:
        problem = _problem(page)
    except OSError as error:  # a name too long, a folder that may not be looked into
        problem = f"{str(page)!r} cannot be written ({error.strerror or error})"
    if problem:
        raise FedGAError(f"{problem}: give another file with --out")


def _problem(page: Path) -> str:
    if page.is_dir():
        return f"the page cannot be written to {str(page)!r}, which is a folder"
    if page.suffix.lower() not in (".html", ".htm"):
        return f"the page {str(page)!r} must end in .html"
    begin = {page: b"<!doctype html"} | dict(zip(beside(page).values(), _BEGINNINGS.values(), strict=True))
    for path, beginning in begin.items():
        if path.exists() and not (path.is_file() and _start(path, len(beginning)) == beginning):
            return f"{str(path)!r} is there and was not written by fedga diagnose, so it is not overwritten"
    folder = next(parent for parent in page.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return f"{str(folder)!r} is no folder that may be written to"
    return ""


def _start(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        return file.read(size).lower()
