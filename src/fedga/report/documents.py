"""What a report is made of, whoever shows it: tables and pictures as values, grouped in sections."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from fedga.drawing.style import Figure

NOTHING = "–"  # the text of a cell that has no value


@dataclass(frozen=True)
class Cell:
    """``text`` is what a reader sees, ``value`` what sorts, filters and goes into CSV: the text itself if left out."""

    text: str
    value: float | str | None = None
    bold: bool = False
    note: str = ""  # said of this cell alone, where a reader can ask for it: "1 of 5 runs never left chance"
    deviation: float | None = None  # over seeds: a column of its own in CSV


def number_cell(text: str, value: float) -> Cell:
    """NaN is no value: it is sorted by nothing and empty in CSV."""
    return Cell(text, None if math.isnan(value) else value)


@dataclass(frozen=True)
class Table:
    """Rows under headings. ``name`` is its file's, without an ending; ``breaks`` are rows after which a rule stands."""

    name: str
    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    breaks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Picture:
    """A figure that is drawn on demand; ``alt`` is its text for readers who cannot see it."""

    name: str
    title: str
    draw: Callable[[], Figure]
    caption: str = ""
    alt: str = ""


@dataclass(frozen=True)
class Section:
    """One experiment in a report: a headline and remarks, then its tables and pictures."""

    name: str
    title: str
    words: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()
