"""The tables of a diagnosis for readers: on the page, and the short one in a terminal."""

from collections.abc import Sequence

import numpy as np

from fedga.diagnosis.diagnosis import Diagnosis
from fedga.diagnosis.numbers import Record, cell_rows, class_rows, field_text, site_rows, span
from fedga.diagnosis.picture import most_telling, place_of
from fedga.diagnosis.verdict import KIND_NAMES, kind_of
from fedga.report.documents import NOTHING, Cell, Table

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
    tables = [_table("classes", "Every class", names, _class_rows(found), caption)]
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
    return Table(name, title, headings, tuple(tuple(_cell(row, name) for name in names) for row in rows), caption)


def _cell(row: Record, name: str) -> Cell:
    text, value = field_text(name, row[name]), row[name]
    number = None if text == NOTHING or isinstance(value, str) else value
    return Cell(text, number, note=_FEW if name == "ea" and not row["enough_samples"] else "")
