"""Algorithms by name, and the way in for algorithms of the user's own (entry-point group ``fedga.algorithms``)."""

from __future__ import annotations

from dataclasses import fields
from importlib.metadata import entry_points
from typing import Any

from fedga.algorithms.base import Algorithm, Batch, Sent, Server, Trained
from fedga.algorithms.climb import CLIMB
from fedga.algorithms.fedavg import FedAvg
from fedga.algorithms.fedga import FedGA, FedGABatch
from fedga.algorithms.fedntd import FedNTD
from fedga.algorithms.fedprox import FedProx
from fedga.algorithms.fedrl import FedRL
from fedga.algorithms.scaffold import SCAFFOLD
from fedga.errors import FedGAError, unknown_name

__all__ = ["ALGORITHMS", "Algorithm", "Batch", "Sent", "Server", "Trained", "known_algorithms", "make_algorithm"]

ALGORITHMS: dict[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedrl": FedRL,
    "climb": CLIMB,
    "fedntd": FedNTD,
    "fedga": FedGA,
    "fedga-batch": FedGABatch,
    "scaffold": SCAFFOLD,
}


def known_algorithms() -> dict[str, type[Algorithm]]:
    """Ours, and those that installed packages offer under the entry-point group ``fedga.algorithms``."""
    return {entry.name: entry.load() for entry in entry_points(group="fedga.algorithms")} | ALGORITHMS


def make_algorithm(name: str, **options: Any) -> Algorithm:
    """An algorithm by name, its options by keyword; text is converted to the option's type.

    >>> make_algorithm("fedprox", mu="0.01")
    FedProx(mu=0.01)
    """
    # Looking through all installed packages takes 10 ms, and a sweep asks hundreds of times for one of ours.
    known = ALGORITHMS if name in ALGORITHMS else known_algorithms()
    if name not in known:
        raise unknown_name("algorithm", name, known)
    kinds: dict[str, type] = {field.name: type(field.default) for field in fields(known[name])}
    for option, value in options.items():
        if option not in kinds:
            if not kinds:
                raise FedGAError(f"algorithm {name} has no options, and {option!r} was given: leave it out")
            raise unknown_name(f"option of {name}", option, kinds)
        try:
            options[option] = kinds[option](value)
        except (TypeError, ValueError) as error:
            kind = "number" if kinds[option] is float else kinds[option].__name__
            raise FedGAError(f"option {option} of {name} must be a {kind}, not {value!r}") from error
    return known[name](**options)
