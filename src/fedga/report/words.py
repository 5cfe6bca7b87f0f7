"""Words that several tables and pictures share."""

from __future__ import annotations

from collections.abc import Sequence


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
