"""Numbers of a diagnosis as a reader sees them."""

from __future__ import annotations

import math
from typing import Any

from fedga.report.documents import NOTHING
from fedga.report.summary import number_text

MOST_TIMES = 1000  # beyond, EA says how small a number was divided by, and is not spelled out


def percent(share: float) -> str:
    """
    >>> print(percent(0.4567), percent(0.0312), percent(0.00004), percent(0.0), sep=", ")
    46 %, 3.1 %, under 0.1 %, 0 %
    >>> print(percent(0.9961), percent(0.99999), percent(1.0), sep=", ")
    99.6 %, over 99.9 %, 100 %
    """
    if math.isnan(share):
        return NOTHING
    if 0 < share < 0.001:
        return "under 0.1\u00a0%"
    if 0.9995 <= share < 1:
        return "over 99.9\u00a0%"
    whole = share in (0, 1) or 0.1 <= share < 0.99
    return f"{100 * share:.{0 if whole else 1}f}\u00a0%"


def times(ea: float) -> str:
    """
    >>> times(8.04), times(1.26), times(340.2), times(1.01), times(float("inf"))
    ('8 times', '1.3 times', '340 times', '1.0 times', 'more than 1,000 times')
    """
    if ea > MOST_TIMES:
        return f"more than {MOST_TIMES:,} times"
    text = f"{ea:,.0f}" if ea >= 10 else f"{ea:.1f}"
    return f"{text if text == '1.0' else text.removesuffix('.0')} times"


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
