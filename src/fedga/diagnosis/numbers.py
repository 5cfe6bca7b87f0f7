"""The numbers of a diagnosis: as tables for readers, as JSON and CSV for programs, and where the files may go."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedga.common.spreadsheet import csv_text
from fedga.diagnosis.diagnosis import Diagnosis
from fedga.diagnosis.measure import Errors
from fedga.diagnosis.verdict import KIND_NAMES, kind_of, percent, worst_of
from fedga.errors import FedGAError
from fedga.report.documents import NOTHING, Cell, Table
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
    if found.before is not None:
        same = ("verdict", "headline", *_OVERALL, "classes")
        content["before"] = {name: value for name, value in as_dict(found.before).items() if name in same}
    return {name: _plain(value) for name, value in content.items()}


def as_json(found: Diagnosis) -> str:
    return json.dumps(as_dict(found), indent=1, ensure_ascii=False, allow_nan=False)


def class_rows(found: Diagnosis) -> list[Record]:
    bounds = zip(found.class_names, found.holdings.totals.tolist(), *map(np.ndarray.tolist, found.bounds), strict=True)
    return [
        {"class": name, "trained_on": trained, **_errors(found.everywhere, at), "bound_low": low, "bound_high": high}
        for at, (name, trained, low, high) in enumerate(bounds)
    ]


def site_rows(found: Diagnosis) -> list[Record]:
    if found.sites is None:
        return []
    rows = []
    for at, name in enumerate(found.site_names):
        errors = found.sites.at(at)
        worst = worst_of(errors.asymmetry, errors.enough & ~np.isnan(errors.asymmetry))
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


def _errors(errors: Errors, at: int) -> Record:
    return {name: getattr(errors, field)[at].item() for name, field in _FIELDS.items()}


def as_csv(rows: Sequence[Record]) -> str:
    """The rows under their names; empty where a number is not known."""
    return csv_text([rows[0], *(map(_cell, row.values()) for row in rows)])


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return None if isinstance(value, float) and math.isnan(value) else value


def _plain(value: Any) -> Any:
    """JSON has neither infinity nor NaN."""
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def most_telling(values: np.ndarray, most: int) -> tuple[list[int], int]:
    """Places of the highest values and of a few of the lowest, highest first, and how many of them are the highest.

    >>> most_telling(np.array([1.0, 5.0, np.nan, 0.1, 2.0]), 3)
    ([1, 4, 3], 2)
    """
    order = np.argsort(-np.nan_to_num(values, nan=-np.inf), kind="stable")
    known = [at for at in order.tolist() if not np.isnan(values[at])]
    if len(known) <= most:
        return known, len(known)
    lowest = max(1, most // 4)
    return [*known[: most - lowest], *known[-lowest:]], most - lowest


def place_of(row: Record) -> str:
    """Where the EA of a class lies; one whose 95 % interval reaches into what is expected is not known to be outside.

    >>> def place(ea, ea_low, ea_high, low=1.0, high=3.0):
    ...     return place_of({"ea": ea, "ea_low": ea_low, "ea_high": ea_high, "bound_low": low, "bound_high": high})
    >>> place(0.7, 0.5, 0.9), place(2.0, 0.5, 4.0), place(6.0, 4.0, 9.0), place(1.8, 1.0, 3.1, 1.6, 1.6)
    ('below', 'inside', 'above', 'not sure')
    """
    ea, low, high = row["ea"], row["bound_low"], row["bound_high"]
    if row["ea_high"] < low or row["ea_low"] > high:
        return "below" if ea < low else "above"
    slack = 1e-9  # counts and sums of probabilities are rounded
    return "inside" if low * (1 - slack) <= ea <= high * (1 + slack) else "not sure"


MOST_CELLS = 300  # pairs of site and class on a page; the CSV file has all
_IN_TERMINAL = 8
_FEW = "too few samples to conclude anything"
_ERRORS = ("samples", "predicted", "accuracy", "missed", "false_alarm", "ea")
_HEADINGS = {
    "accuracy": "recognised",
    "ea": "error asymmetry",
    "ea_ratio": "EA ratio",
    "worst_ea": "its error asymmetry",
    "interval": "95 % sure",
    "place": "measured is",
}


def page_tables(found: Diagnosis) -> list[Table]:
    """Every class, every site, and the most one-sided pairs of the two."""
    caption = (
        f"Trained on: samples, {found.holdings.source}. Recognised: part of the samples that were given to their "
        "class. Missed: probability that they give to other classes. False alarm: probability that samples of other "
        "classes give to this one, added up over these classes."
    )
    names: tuple[str, ...] = ("class", "trained_on", *_ERRORS, "interval", "expected", "place")
    tables = [] if found.before is None else [comparison_table(found, found.before)]
    tables.append(_table("classes", "Every class", names, _class_rows(found), caption))
    if found.sites is None:
        return tables
    names = ("site", "samples", "classes", "accuracy", "ea_ratio", "worst_class", "worst_ea")
    caption = f"The worst class is the one of the highest error asymmetry with enough samples ({_FEW}: {NOTHING})."
    tables.append(_table("sites", "Every site", names, site_rows(found), caption))
    pairs = cell_rows(found)
    ranked = sorted(pairs, key=lambda row: -row["ea_low"] if row["enough_samples"] and row["ea_low"] > 0 else 0.0)
    left = f"The {MOST_CELLS} most one-sided of {len(pairs):,}; the CSV file has all." * (len(pairs) > MOST_CELLS)
    names = ("site", "class", "trained_on", *_ERRORS)
    return [*tables, _table("cells", "Every class at every site", names, ranked[:MOST_CELLS], left)]


def terminal_table(found: Diagnosis) -> Table:
    """The most one-sided classes, for a terminal."""
    rows, ea = _class_rows(found), found.everywhere.asymmetry
    shown, _ = most_telling(ea, _IN_TERMINAL)
    names = ("class", "samples", "accuracy", "missed", "false_alarm", "ea", "interval", "verdict")
    left = int((~np.isnan(ea)).sum()) - len(shown)
    caption = f"{left} more {'class is' if left == 1 else 'classes are'} less one-sided." if left else ""
    return _table("diagnosis", "", names, [rows[at] for at in shown], caption)


_OVERALL = ("accuracy", "balanced_accuracy", "ea_ratio")


def comparison_table(found: Diagnosis, before: Diagnosis) -> Table:
    """Scores without and with an adjustment: of all samples, and of the classes that were rarest in training."""
    whole, whole_before = as_dict(found), as_dict(before)
    rows = [
        (Cell(text), Cell(""), *(_score(name, each[name]) for each in (whole_before, whole)))
        for name, text in zip(_OVERALL, ("accuracy", "balanced accuracy", "EA ratio"), strict=True)
    ]
    rarest = np.argsort(found.holdings.totals, kind="stable")[:_IN_TERMINAL].tolist()
    for at in rarest:
        name = Cell(f"recognised of {found.class_names[at]}")
        recognised = (each.everywhere.accuracy[at].item() for each in (before, found))
        rows.append((name, Cell(number(found.holdings.totals[at])), *(_score("accuracy", of) for of in recognised)))
    caption = f"Trained on: samples, {found.holdings.source}."
    if left := len(found.class_names) - len(rarest):
        caption += f" {left} more {'class' if left == 1 else 'classes'} had no fewer."
    headings = ("", "trained on", "as it is", "adjusted")
    return Table("comparison", "Before and after the adjustment", headings, tuple(rows), caption)


def _score(name: str, value: float | None) -> Cell:
    if value is None or math.isnan(value):
        return Cell(NOTHING)
    return Cell(number_text(value, True) if name == "ea_ratio" else f"{100 * value:.1f} %", value)


def _class_rows(found: Diagnosis) -> list[Record]:
    """The rows of all classes, with what follows from several of their numbers."""
    rows = class_rows(found)
    for at, row in enumerate(rows):
        known = not np.isnan([row["ea"], row["bound_low"]]).any()
        row["interval"] = span(row["ea_low"], row["ea_high"])
        row["expected"] = span(row["bound_low"], row["bound_high"])
        row["place"] = place_of(row) if known else NOTHING
        row["verdict"] = KIND_NAMES[kind_of(found.everywhere, at)]
    return rows


def _table(name: str, title: str, names: Sequence[str], rows: Sequence[Record], caption: str) -> Table:
    headings = tuple(_HEADINGS.get(name, name.replace("_", " ")) for name in names)
    return Table(name, title, headings, tuple(tuple(_shown(row, name) for name in names) for row in rows), caption)


def _shown(row: Record, name: str) -> Cell:
    text, value = field_text(name, row[name]), row[name]
    number = None if text == NOTHING or isinstance(value, str) else value
    return Cell(text, number, note=_FEW if name == "ea" and not row["enough_samples"] else "")


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
