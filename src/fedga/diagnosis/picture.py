"""Classes as rows on a logarithmic axis, for the page's template to draw; positions are per cent of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedga.diagnosis.formatting import field_text, span
from fedga.diagnosis.numbers import Record, class_rows
from fedga.diagnosis.verdict import Kind, kind_of
from fedga.report.page.shared import Tick

if TYPE_CHECKING:
    from fedga.diagnosis.diagnosis import Diagnosis

MOST_ROWS = 14


class LogScale(NamedTuple):
    """A logarithmic axis that holds 1 and the given numbers; 0 and infinity lie at its ends."""

    low: float
    high: float

    @classmethod
    def over(cls, values: np.ndarray) -> LogScale:
        """An axis of at least a decade either side of 1 and at most six."""
        usable = values[np.isfinite(values) & (values > 0)]
        low = min(0.1, max(float(usable.min(initial=1.0)), 1e-6))
        high = max(10.0, min(float(usable.max(initial=1.0)), 1e6))
        return cls(10 ** (math.log10(low) - 0.1), 10 ** (math.log10(high) + 0.1))

    def at(self, value: float) -> float:
        """
        >>> LogScale(0.01, 100).at(1), LogScale(0.01, 100).at(0), LogScale(0.01, 100).at(float("inf"))
        (50.0, 0.0, 100.0)
        """
        if value <= self.low:
            return 0.0
        place = math.log(value / self.low) / math.log(self.high / self.low) if math.isfinite(value) else 1.0
        return round(100 * min(place, 1.0), 2)

    def line(self, low: float, high: float) -> tuple[float, float] | None:
        return None if np.isnan(low) else (self.at(low), self.at(high))

    @property
    def ticks(self) -> list[Tick]:
        decades = range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)
        return [Tick(self.at(10.0**power), f"{10.0**power:,.10g}") for power in decades]


class AxisRow(NamedTuple):
    """One class on the axis: a dot, the 95 % interval, and numbers beside it."""

    name: str
    kind: Kind
    dot: float
    line: tuple[float, float] | None
    numbers: tuple[str, ...]
    said: str
    band: tuple[float, float] | None  # what is expected


class AxisRows(NamedTuple):
    """Rows under one axis; ``left_out`` others would stand after row ``gap_after``."""

    rows: tuple[AxisRow, ...]
    ticks: list[Tick]
    one: float  # where 1 is
    left_out: int
    gap_after: int


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


def class_picture(found: Diagnosis) -> AxisRows:
    """EA of the classes with the errors it is made of, and what plain cross-entropy would lead to."""
    errors, records = found.everywhere, class_rows(found)
    scale = LogScale.over(np.concatenate([errors.asymmetry, *found.bounds]))
    shown, highest = most_telling(errors.asymmetry, MOST_ROWS)
    rows = []
    for at in shown:
        one, name = records[at], found.class_names[at]
        fields = ("ea", "missed", "false_alarm", "accuracy", "samples", "predicted")
        numbers = tuple(field_text(field, one[field]) for field in fields)
        said = f"{name}: error asymmetry {numbers[0]}, 95 % interval {span(one['ea_low'], one['ea_high'])}"
        line, band = scale.line(one["ea_low"], one["ea_high"]), scale.line(one["bound_low"], one["bound_high"])
        rows.append(AxisRow(name, kind_of(errors, at), scale.at(one["ea"]), line, numbers, said, band))
    left_out = int((~np.isnan(errors.asymmetry)).sum()) - len(shown)
    return AxisRows(tuple(rows), scale.ticks, scale.at(1), left_out, highest - 1)


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
