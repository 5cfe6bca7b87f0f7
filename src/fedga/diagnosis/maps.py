"""Maps of sites and classes, and the bars of a label: where everything goes, for the page's template to draw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedga.diagnosis.example import Sample
from fedga.diagnosis.picture import most_telling
from fedga.diagnosis.verdict import number, percent
from fedga.drawing.heatmap import depth
from fedga.report.summary import number_text

if TYPE_CHECKING:
    from fedga.diagnosis.diagnosis import Diagnosis

_MOST_CLASSES, _MOST_SITES = 24, 40
_MOST_BARS = 6
_STEPS = (1 / 8, 1 / 4, 1 / 2, 1 / 1.3, 1.3, 2, 4, 8)  # between the nine colours of EA
_COUNT_COLOURS = 5


@dataclass(frozen=True)
class MapCell:
    column: int
    row: int
    colour: str
    text: str
    said: str
    faint: bool = False


@dataclass(frozen=True)
class Map:
    """Sites across, classes down; a pair that there is nothing of has no cell."""

    sites: tuple[str, ...]
    classes: tuple[str, ...]
    cells: tuple[MapCell, ...]


def _mapped(found: Diagnosis) -> tuple[list[int], list[int]]:
    """The classes and sites that both maps show, the most one-sided first."""
    telling, _ = most_telling(found.everywhere.asymmetry, _MOST_CLASSES)
    others = [at for at in range(len(found.class_names)) if np.isnan(found.everywhere.asymmetry[at])]
    classes = [*telling, *others][:_MOST_CLASSES]
    sure = found.sites.low if found.sites is not None else found.holdings.counts
    top = np.where(np.isnan(sure[:, classes]), -np.inf, sure[:, classes]).max(1)
    order = np.argsort(-top, kind="stable")[:_MOST_SITES]
    return classes, sorted(order.tolist()) if len(top) <= _MOST_SITES else order.tolist()


def asymmetry_map(found: Diagnosis) -> Map | None:
    """EA of every class at every site."""
    if found.sites is None:
        return None
    classes, sites = _mapped(found)
    cells = []
    for column, site in enumerate(sites):
        errors = found.sites.at(site)
        for row, of_class in enumerate(classes):
            ea = errors.asymmetry[of_class]
            if not errors.samples[of_class] or np.isnan(ea):
                continue
            said = (
                f"{found.class_names[of_class]} at {found.site_names[site]}: error asymmetry {number_text(ea, True)}, "
                f"missed {number_text(errors.missed[of_class])}, "
                f"false alarm {number_text(errors.false_alarm[of_class])}, "
                f"{percent(errors.accuracy[of_class])} of {errors.samples[of_class]:,} recognised"
            )
            colour = f"ea{int(np.searchsorted(_STEPS, ea))}"
            cells.append(MapCell(column, row, colour, _short(ea), said, not errors.enough[of_class]))
    return Map(_names(found.site_names, sites), _names(found.class_names, classes), tuple(cells))


def holdings_map(found: Diagnosis) -> Map | None:
    """Samples of every class that each site trained on; sites stand as in the other map where they are the same."""
    holdings = found.holdings
    if not holdings.site_names:
        return None
    classes, sites = _mapped(found)
    if holdings.site_names != found.site_names:
        sites = list(range(min(len(holdings.site_names), _MOST_SITES)))
    counts = holdings.counts[np.ix_(sites, classes)]
    places = depth(counts, int(holdings.counts.max(initial=1)))
    cells = [
        MapCell(
            column,
            row,
            f"n{min(int(_COUNT_COLOURS * places[column, row]), _COUNT_COLOURS - 1)}",
            _short(counts[column, row]),
            f"{holdings.site_names[sites[column]]}: {number(counts[column, row])} of {found.class_names[classes[row]]}",
        )
        for column in range(len(sites))
        for row in range(len(classes))
        if counts[column, row]
    ]
    return Map(_names(holdings.site_names, sites), _names(found.class_names, classes), tuple(cells))


def _names(names: Sequence[str], places: Sequence[int]) -> tuple[str, ...]:
    return tuple(names[at] for at in places)


def _short(value: float) -> str:
    """
    >>> [_short(value) for value in (0.00001, 0.034, 0.5, 12.3, 1234.0, 45678.0, float("inf"))]
    ['≈0', '.03', '.50', '12', '1.2k', '46k', '∞']
    """
    if math.isinf(value):
        return "∞"
    if value >= 1000:
        return f"{value / 1000:.{0 if value >= 10_000 else 1}f}k"
    if value >= 10 or float(value).is_integer():
        return f"{value:.0f}"
    text = f"{value:.{1 if value >= 1 else 2}f}".removeprefix("0")
    return "≈0" if text == ".00" else text


@dataclass(frozen=True)
class Bar:
    """A class in the label of a sample: prediction and calibrated label, from zero to where they reach."""

    name: str
    own: bool
    prediction: str
    label: str
    prediction_bar: tuple[float, float]  # left end and width
    label_bar: tuple[float, float]
    negative: bool
    counted: str


@dataclass(frozen=True)
class Bars:
    bars: tuple[Bar, ...]
    zero: float
    left_out: int


def label_bars(found: Diagnosis, sample: Sample, counts: np.ndarray) -> Bars:
    """The true class, and the others whose label or prediction is largest."""
    own = sample.of_class
    weight = np.maximum(np.abs(sample.label), sample.prediction)
    weight[own] = np.inf
    shown = np.argsort(-weight, kind="stable")[:_MOST_BARS].tolist()
    low = min(0.0, float(sample.label[shown].min()))
    high = max(1.0, float(sample.label[shown].max()))

    def at(value: float) -> float:
        return 100 * (value - low) / (high - low)

    def bar(value: float) -> tuple[float, float]:
        return round(min(at(value), at(0)), 2), round(abs(at(value) - at(0)), 2)

    bars = [
        Bar(
            found.class_names[one],
            one == own,
            _fraction(sample.prediction[one]),
            _fraction(sample.label[one]),
            bar(float(sample.prediction[one])),
            bar(float(sample.label[one])),
            bool(sample.label[one] < 0),
            number(counts[one]),
        )
        for one in shown
    ]
    return Bars(tuple(bars), round(at(0), 2), len(sample.label) - len(shown))


def _fraction(value: float) -> str:
    """
    >>> _fraction(0.123), _fraction(-15.2), _fraction(-0.00001), _fraction(1.0)
    ('0.123', '−15.2', '−0.000', '1.000')
    """
    text = f"{abs(value):.3f}" if abs(value) < 10 else f"{abs(value):,.1f}"
    return f"−{text}" if value < 0 else text
