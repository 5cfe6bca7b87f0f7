"""Classes and sites as rows on a logarithmic axis: where everything goes, for the page's template to draw.

Positions are in per cent of the axis.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedga.diagnosis.measure import Errors
from fedga.diagnosis.verdict import is_favoured, is_forgotten, number, percent
from fedga.report.page.shared import Tick
from fedga.report.summary import number_text

if TYPE_CHECKING:
    from fedga.diagnosis.diagnosis import Diagnosis

MOST_ROWS = 14


@dataclass(frozen=True)
class LogScale:
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

    @property
    def ticks(self) -> list[Tick]:
        decades = range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)
        return [Tick(self.at(10.0**power), f"{10.0**power:,.10g}") for power in decades]


@dataclass(frozen=True)
class Row:
    """One class, or site, on the axis: a dot, the line that it is sure to lie on, and numbers beside it."""

    name: str
    kind: str  # how it is coloured: high, low, even, or few
    dot: float | None
    line: tuple[float, float] | None
    numbers: tuple[str, ...]
    said: str
    band: tuple[float, float] | None = None  # what is expected


@dataclass(frozen=True)
class Rows:
    """Rows under one axis; ``left_out`` say how many others there are, after which row they would stand."""

    rows: tuple[Row, ...]
    ticks: tuple[Tick, ...]
    one: float  # where 1 is
    left_out: int = 0
    gap_after: int = -1


def most_telling(values: np.ndarray, most: int) -> tuple[list[int], int]:
    """Places of the highest values and of a few of the lowest, highest first, and how many of them are the highest.

    >>> most_telling(np.array([1.0, 5.0, np.nan, 0.1, 2.0]), 3)
    ([1, 4, 3], 2)
    """
    order = [at for at in np.argsort(-np.nan_to_num(values, nan=-np.inf), kind="stable") if not np.isnan(values[at])]
    if len(order) <= most:
        return [int(at) for at in order], len(order)
    lowest = max(1, most // 4)
    return [int(at) for at in (*order[: most - lowest], *order[-lowest:])], most - lowest


def class_picture(found: Diagnosis) -> Rows:
    """EA of the classes with the errors it is made of."""
    errors = found.everywhere
    scale = LogScale.over(errors.asymmetry)
    shown, highest = most_telling(errors.asymmetry, MOST_ROWS)
    rows = tuple(_class_row(found, errors, at, scale) for at in shown)
    known = int((~np.isnan(errors.asymmetry)).sum())
    return Rows(rows, tuple(scale.ticks), scale.at(1), known - len(shown), highest - 1)


def _class_row(found: Diagnosis, errors: Errors, at: int, scale: LogScale) -> Row:
    low, high, ea = errors.low[at], errors.high[at], errors.asymmetry[at]
    numbers = (
        number_text(ea, True),
        number_text(errors.missed[at]),
        number_text(errors.false_alarm[at]),
        percent(errors.accuracy[at]),
        f"{errors.samples[at]:,}",
        f"{errors.predicted[at]:,}",
    )
    line = None if np.isnan(low) else (scale.at(low), scale.at(high))
    said = f"{found.class_names[at]}: error asymmetry {numbers[0]}" + (
        "" if line is None else f", 95 % sure between {number_text(low, True)} and {number_text(high, True)}"
    )
    return Row(found.class_names[at], kind_of(errors, at), scale.at(ea), line, numbers, said)


def kind_of(errors: Errors, at: int) -> str:
    """Whether a class is clearly missed too much, given too much, neither, or has too few samples to say."""
    if not errors.enough[at]:
        return "few"
    if is_forgotten(errors)[at]:
        return "high"
    return "low" if is_favoured(errors)[at] else "even"


def bounds_picture(found: Diagnosis) -> Rows:
    """EA of the classes within what plain cross-entropy would lead to."""
    errors, (low, high) = found.everywhere, found.bounds
    scale = LogScale.over(np.concatenate([errors.asymmetry, low, high]))
    shown, highest = most_telling(np.where(np.isnan(high), np.nan, errors.asymmetry), MOST_ROWS)
    rows = []
    for at in shown:
        place = where_of(errors.asymmetry[at], (errors.low[at], errors.high[at]), (low[at], high[at]))
        expected = f"{number_text(low[at], True)} to {number_text(high[at], True)}"
        numbers = (number(found.holdings.totals[at]), expected, number_text(errors.asymmetry[at], True), place)
        band = (scale.at(low[at]), scale.at(high[at]))
        said = f"{found.class_names[at]}: expected {expected}, measured {numbers[2]}, {place}"
        kind = {"above": "high", "below": "low"}.get(place, "even")
        kind = kind if errors.enough[at] else "few"
        line = (scale.at(errors.low[at]), scale.at(errors.high[at]))
        rows.append(Row(found.class_names[at], kind, scale.at(errors.asymmetry[at]), line, numbers, said, band))
    left_out = int((~np.isnan(high) & ~np.isnan(errors.asymmetry)).sum()) - len(shown)
    return Rows(tuple(rows), tuple(scale.ticks), scale.at(1), left_out, highest - 1)


def where_of(ea: float, sure: tuple[float, float], expected: tuple[float, float]) -> str:
    """Where an EA lies; one whose 95 % interval reaches into what is expected is not known to be outside.

    >>> expected = (1.0, 3.0)
    >>> where_of(0.7, (0.5, 0.9), expected), where_of(2.0, (0.5, 4.0), expected), where_of(6.0, (4.0, 9.0), expected)
    ('below', 'inside', 'above')
    >>> where_of(1.8, (1.0, 3.1), (1.6, 1.6))
    'not sure'
    """
    low, high = expected
    if sure[1] < low or sure[0] > high:
        return "below" if ea < low else "above"
    slack = 1e-9  # counts and sums of probabilities are rounded
    return "inside" if low * (1 - slack) <= ea <= high * (1 + slack) else "not sure"


def site_picture(found: Diagnosis) -> Rows | None:
    """From the lowest to the highest EA of any class at each site: a long line is a high EA ratio."""
    if found.sites is None:
        return None
    usable = np.where(found.sites.enough, found.sites.asymmetry, np.nan)
    known = ~np.isnan(usable).all(1)
    scale = LogScale.over(usable)
    top = np.where(known, np.where(np.isnan(usable), -np.inf, usable).max(1), np.nan)
    shown, highest = most_telling(top, MOST_ROWS)
    rows = tuple(_site_row(found, at, usable[at], scale) for at in shown)
    return Rows(rows, tuple(scale.ticks), scale.at(1), int(known.sum()) - len(shown), highest - 1)


def _site_row(found: Diagnosis, at: int, usable: np.ndarray, scale: LogScale) -> Row:
    assert found.sites is not None
    errors = found.sites.at(at)
    worst, best = int(np.nanargmax(usable)), float(np.nanmin(usable))
    numbers = (
        number_text(usable[worst], True),
        found.class_names[worst],
        f"{(~np.isnan(usable)).sum()} of {(errors.samples > 0).sum()}",
        percent(float(errors.overall_accuracy)),
        f"{errors.samples.sum():,}",
    )
    said = f"{found.site_names[at]}: error asymmetry {number_text(best, True)} to {numbers[0]} ({numbers[1]})"
    line = (scale.at(best), scale.at(usable[worst]))
    return Row(found.site_names[at], kind_of(errors, worst), scale.at(usable[worst]), line, numbers, said)
