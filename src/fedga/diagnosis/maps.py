"""Maps of sites and classes, and the bars of a label: where everything goes, for the page's template to draw."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedga.diagnosis.example import TypicalSample
from fedga.diagnosis.formatting import number, percent
from fedga.diagnosis.picture import most_telling
from fedga.drawing.heatmap import depth
from fedga.report.summary import number_text

if TYPE_CHECKING:
    from fedga.diagnosis.diagnosis import Diagnosis

_MOST_CLASSES, _MOST_SITES = 24, 40
_MOST_BARS = 6
_STEPS = (1 / 8, 1 / 4, 1 / 2, 1 / 1.3, 1.3, 2, 4, 8)  # between the nine colours of EA
_COUNT_COLOURS = 5


class Pair(NamedTuple):
    """What a map shows of a site and a class."""

    colour: str
    text: str
    said: str
    faint: bool = False


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


def _map(
    found: Diagnosis,
    names: Sequence[str],
    sites: Sequence[int],
    classes: Sequence[int],
    pair: Callable[[int, int], Pair | None],
) -> SiteMap:
    every = ((x, y, pair(site, of_class)) for x, site in enumerate(sites) for y, of_class in enumerate(classes))
    cells = tuple((column, row, shown) for column, row, shown in every if shown is not None)
    return SiteMap(tuple(names[at] for at in sites), tuple(found.class_names[at] for at in classes), cells)


def asymmetry_map(found: Diagnosis) -> SiteMap | None:
    """EA of every class at every site."""
    if (errors := found.sites) is None:
        return None
    classes, sites = _mapped(found)

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

    return _map(found, found.site_names, sites, classes, pair)


def holdings_map(found: Diagnosis) -> SiteMap | None:
    """Samples of every class that each site trained on; sites stand as in the other map where they are the same."""
    names, counts = found.holdings.site_names, found.holdings.counts
    if not names:
        return None
    classes, sites = _mapped(found)
    if names != found.site_names:
        sites = list(range(min(len(names), _MOST_SITES)))
    places = depth(counts, int(counts.max(initial=1)))

    def pair(site: int, of_class: int) -> Pair | None:
        count = counts[site, of_class]
        colour = min(int(_COUNT_COLOURS * places[site, of_class]), _COUNT_COLOURS - 1)
        said = f"{names[site]}: {number(count)} of {found.class_names[of_class]}"
        return Pair(f"n{colour}", _short(count), said) if count else None

    return _map(found, names, sites, classes, pair)


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
