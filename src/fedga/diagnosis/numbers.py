"""A diagnosis for programs: JSON, and tables by class, by site and by both as CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedga.common.spreadsheet import text_cell
from fedga.diagnosis.measure import Errors

if TYPE_CHECKING:
    from fedga.diagnosis.diagnosis import Diagnosis

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
