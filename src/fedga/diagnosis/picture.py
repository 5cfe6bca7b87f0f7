"""Pictures for the page's template to draw: classes on a logarithmic axis, maps of sites and classes, labels."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from fedga.diagnosis.diagnosis import Diagnosis
from fedga.diagnosis.numbers import class_rows, field_text, most_telling, number, span
from fedga.diagnosis.verdict import Kind, TypicalSample, kind_of, percent
from fedga.drawing.heatmap import depth
from fedga.report.page.shared import Tick
from fedga.report.summary import number_text

MOST_ROWS = 14


class LogScale(NamedTuple):
    """A logarithmic axis that holds 1 and the given numbers; 0 and infinity lie at its ends."""

    low: float
    high: float

    @classmethod
    def over(cls, values: np.ndarray) -> Self:
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


_MOST_CLASSES, _MOST_SITES = 24, 40
_MOST_BARS = 6
_STEPS = (1 / 8, 1 / 4, 1 / 2, 1 / 1.3, 1.3, 2, 4, 8)  # between the nine colours of EA
_COUNT_COLOURS = 5


class Pair(NamedTuple):
    colour: str
    text: str
    said: str
    faint: bool = False


_PairOf = Callable[[int, int], Pair | None]  # of a site and a class


class SiteMap(NamedTuple):
    """Sites across, classes down; a pair without a sample has no cell."""

    sites: tuple[str, ...]
    classes: tuple[str, ...]
    cells: tuple[tuple[int, int, Pair], ...]  # column, row


def _mapped(found: Diagnosis) -> tuple[list[int], list[int]]:
    """The classes and sites that both maps show, the most one-sided first."""
    ea = found.everywhere.asymmetry
    telling, _ = most_telling(ea, _MOST_CLASSES)
    classes = [*telling, *np.flatnonzero(np.isnan(ea)).tolist()][:_MOST_CLASSES]
    sure = found.sites.low if found.sites is not None else found.holdings.counts
    top = np.where(np.isnan(sure[:, classes]), -np.inf, sure[:, classes]).max(1)
    order = np.argsort(-top, kind="stable")[:_MOST_SITES].tolist()
    return classes, sorted(order) if len(top) <= _MOST_SITES else order


def _map(found: Diagnosis, names: Sequence[str], sites: Sequence[int], pair: _PairOf) -> SiteMap:
    classes, _ = _mapped(found)
    every = ((x, y, pair(site, of_class)) for x, site in enumerate(sites) for y, of_class in enumerate(classes))
    cells = tuple((column, row, shown) for column, row, shown in every if shown is not None)
    return SiteMap(tuple(names[at] for at in sites), tuple(found.class_names[at] for at in classes), cells)


def asymmetry_map(found: Diagnosis) -> SiteMap | None:
    """EA of every class at every site."""
    if (errors := found.sites) is None:
        return None

    def pair(site: int, of_class: int) -> Pair | None:
        at = site, of_class
        ea, samples = errors.asymmetry[at], errors.samples[at]
        if not samples or np.isnan(ea):
            return None
        said = (
            f"{found.class_names[of_class]} at {found.site_names[site]}: error asymmetry {number_text(ea, True)}, "
            f"missed {number_text(errors.missed[at])}, false alarm {number_text(errors.false_alarm[at])}, "
            f"{percent(errors.accuracy[at])} of {samples:,} recognised"
        )
        return Pair(f"ea{int(np.searchsorted(_STEPS, ea))}", _short(ea), said, not errors.enough[at])

    return _map(found, found.site_names, _mapped(found)[1], pair)


def holdings_map(found: Diagnosis) -> SiteMap | None:
    """Samples of every class that each site trained on; sites stand as in the other map where they are the same."""
    names, counts = found.holdings.site_names, found.holdings.counts
    if not names:
        return None
    sites = _mapped(found)[1] if names == found.site_names else range(min(len(names), _MOST_SITES))
    places = depth(counts, int(counts.max(initial=1)))

    def pair(site: int, of_class: int) -> Pair | None:
        count = counts[site, of_class]
        colour = min(int(_COUNT_COLOURS * places[site, of_class]), _COUNT_COLOURS - 1)
        said = f"{names[site]}: {number(count)} of {found.class_names[of_class]}"
        return Pair(f"n{colour}", _short(count), said) if count else None

    return _map(found, names, sites, pair)


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


class LabelBars(NamedTuple):
    """Classes in the label of a sample, on an axis from ``low`` to ``high``."""

    bars: list[dict[str, Any]]
    low: float
    high: float
    left_out: int


def label_bars(found: Diagnosis, sample: TypicalSample, counts: np.ndarray) -> LabelBars:
    """The true class, and the others whose label or prediction is largest."""
    weight = np.maximum(np.abs(sample.label), sample.prediction)
    weight[sample.of_class] = np.inf
    shown = np.argsort(-weight, kind="stable")[:_MOST_BARS].tolist()
    low, high = min(0.0, float(sample.label[shown].min())), max(1.0, float(sample.label[shown].max()))
    bars = [
        {
            "name": found.class_names[at],
            "own": at == sample.of_class,
            "counted": number(counts[at]),
            "values": [("p", float(sample.prediction[at])), ("q", float(sample.label[at]))],
            "texts": [_fraction(sample.prediction[at]), _fraction(sample.label[at])],
        }
        for at in shown
    ]
    return LabelBars(bars, low, high, len(sample.label) - len(shown))


def _fraction(value: float) -> str:
    """
    >>> _fraction(0.123), _fraction(-15.2), _fraction(-0.00001), _fraction(1.0)
    ('0.123', '−15.2', '−0.000', '1.000')
    """
    text = f"{abs(value):.3f}" if abs(value) < 10 else f"{abs(value):,.1f}"
    return f"−{text}" if value < 0 else text
