"""Words that several tables and pictures share."""

from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from typing import TypeVar

K = TypeVar("K")
T = TypeVar("T")


def listed(names: Sequence[str]) -> str:
    """
    >>> listed(["FedAvg", "FedNTD", "FedGA"]), listed(["FedAvg"]), listed([])
    ('FedAvg, FedNTD and FedGA', 'FedAvg', '')
    """
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)


def plural(number: int, noun: str) -> str:
    """
    >>> plural(1, "run"), plural(1200, "run")
    ('1 run', '1,200 runs')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


def seeds_text(numbers: Iterable[int]) -> str:
    """
    >>> seeds_text([1, 1]), seeds_text([5, 3])
    ('one seed', '3 to 5 seeds')
    """
    found = sorted(set(numbers))
    if found in ([], [1]):
        return "one seed"
    return f"{found[0]} seeds" if len(found) == 1 else f"{found[0]} to {found[-1]} seeds"


def signed(value: float, decimals: int) -> str:
    """
    >>> signed(2.34, 1), signed(-0.51, 1), signed(-0.01, 1), signed(float("nan"), 1)
    ('+2.3', '−0.5', '0.0', '–')
    """
    if not isfinite(value):
        return "–"
    text = f"{value:+.{decimals}f}"
    return text[1:] if float(text) == 0 else text.replace("-", "−")


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The items by their key, both in the order they came."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
