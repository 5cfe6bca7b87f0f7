"""The tables of a diagnosis for readers: on the page, and the short one in a terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from fedga.diagnosis.numbers import cell_rows, class_rows, site_rows
from fedga.diagnosis.picture import most_telling, where_of
from fedga.diagnosis.verdict import number, percent
from fedga.report.documents import NOTHING, Cell, Table
from fedga.report.summary import number_text

if TYPE_CHECKING:
    from fedga.diagnosis.diagnosis import Diagnosis

MOST_CELLS = 300  # pairs of site and class on a page; the CSV file has all
_IN_TERMINAL = 8
_FEW = "too few samples to conclude anything"
_ERRORS = {
    "samples": "samples",
    "predicted": "predicted",
    "accuracy": "recognised",
    "missed": "missed",
    "false_alarm": "false alarm",
    "ea": "error asymmetry",
}


def page_tables(found: Diagnosis) -> list[Table]:
    """Every class, every site, and the most one-sided pairs of the two."""
    tables = [_class_table(found)]
    sites = site_rows(found)
    if sites:
        headings = ("site", "samples", "classes", "recognised", "EA ratio", "worst class", "its error asymmetry")
        names = ("site", "samples", "classes", "accuracy", "ea_ratio", "worst_class", "worst_ea")
        rows = tuple(tuple(_cell(name, row[name]) for name in names) for row in sites)
        caption = f"The worst class is the one of the highest error asymmetry with enough samples ({_FEW}: {NOTHING})."
        tables.append(Table("sites", "Every site", headings, rows, caption))
        tables.append(_pairs_table(cell_rows(found)))
    return tables


def _class_table(found: Diagnosis) -> Table:
    rows = class_rows(found)
    headings = ("class", "trained on", *_ERRORS.values(), "95 % sure", "expected", "measured is")
    cells = []
    for row in rows:
        numbers = [_cell(name, row[name]) for name in ("class", "trained_on", *_ERRORS)]
        numbers[-1] = _cell("ea", row["ea"], note="" if row["enough_samples"] else _FEW)
        known = not math.isnan(row["ea"]) and not math.isnan(row["bound_low"])
        sure, expected = (row["ea_low"], row["ea_high"]), (row["bound_low"], row["bound_high"])
        place = where_of(row["ea"], sure, expected) if known else NOTHING
        cells.append((*numbers, Cell(_span(*sure)), Cell(_span(*expected)), Cell(place)))
    caption = (
        "Trained on: samples, " + found.holdings.source + ". Recognised: part of the samples that were given to their "
        "class. Missed: probability that they give to other classes. False alarm: probability that samples of other "
        "classes give to this one, added up over these classes."
    )
    return Table("classes", "Every class", headings, tuple(cells), caption)


def _pairs_table(rows: list[dict[str, Any]]) -> Table:
    ranked = sorted(rows, key=lambda row: -row["ea_low"] if row["enough_samples"] and row["ea_low"] > 0 else 0.0)
    shown = ranked[:MOST_CELLS]
    names = ("site", "class", "trained_on", *_ERRORS)
    cells = tuple(tuple(_cell(name, row[name]) for name in names) for row in shown)
    left = f"The {len(shown)} most one-sided of {len(rows):,}; the CSV file has all." if len(shown) < len(rows) else ""
    headings = ("site", "class", "trained on", *_ERRORS.values())
    return Table("cells", "Every class at every site", headings, cells, left)


def terminal_table(found: Diagnosis) -> Table:
    """The most one-sided classes, for a terminal."""
    rows = class_rows(found)
    shown, _ = most_telling(found.everywhere.asymmetry, _IN_TERMINAL)
    names = ("class", "samples", "accuracy", "missed", "false_alarm", "ea")
    cells = tuple(
        (
            *(_cell(name, rows[at][name]) for name in names),
            Cell(_span(rows[at]["ea_low"], rows[at]["ea_high"])),
        )
        for at in shown
    )
    headings = ("class", "samples", "recognised", "missed", "false alarm", "error asymmetry", "95 % sure")
    left = sum(not math.isnan(row["ea"]) for row in rows) - len(shown)
    caption = f"{left} more {'class is' if left == 1 else 'classes are'} less one-sided." if left else ""
    return Table("diagnosis", "", headings, cells, caption)


def _cell(name: str, value: Any, note: str = "") -> Cell:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return Cell(NOTHING, note=note)
    if isinstance(value, str):
        return Cell(value)
    if name == "accuracy":
        return Cell(percent(value), value)
    if name in ("missed", "false_alarm"):
        return Cell(number_text(value), value)
    if name in ("ea", "ea_ratio", "worst_ea"):
        return Cell(number_text(value, True), value, note=note)
    return Cell(number(value), value)


def _span(low: float, high: float) -> str:
    return NOTHING if math.isnan(low) else f"{number_text(low, True)} to {number_text(high, True)}"
