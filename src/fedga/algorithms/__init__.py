"""Algorithms by name: ours, and the user's own (``fedga.plugins``)."""

from __future__ import annotations

from dataclasses import Field, fields
from typing import Any

from fedga import plugins
from fedga.algorithms.base import Algorithm, Batch, Sent, Server, Trained, option
from fedga.algorithms.checking.declared import check_declarations, check_options, check_overrides
from fedga.algorithms.climb import CLIMB
from fedga.algorithms.fedavg import FedAvg
from fedga.algorithms.fedga import FedGA, FedGABatch
from fedga.algorithms.fedntd import FedNTD
from fedga.algorithms.fedprox import FedProx
from fedga.algorithms.fedrl import FedRL
from fedga.algorithms.scaffold import SCAFFOLD
from fedga.common.ranges import Number, wrong_value
from fedga.errors import FedGAError, unknown_name

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Batch",
    "Sent",
    "Server",
    "Trained",
    "known_algorithms",
    "make_algorithm",
    "option",
    "own_algorithms",
]

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


_ANY_FLOAT32 = Number(largest=3e38)  # of an option that declares no range
_PASSED: set[type[Algorithm]] = set()


def own_algorithms(*, installed: bool = True) -> dict[str, plugins.Plugin]:
    """The user's own algorithms by name, of her project file and of installed packages; their code is not run."""
    return plugins.parts("algorithms", ALGORITHMS, installed=installed)


def known_algorithms() -> dict[str, type[Algorithm]]:
    """Ours, and the user's own."""
    return {name: algorithm_class(name) for name in (*ALGORITHMS, *own_algorithms())}


def algorithm_class(name: str) -> type[Algorithm]:
    """The class of that name; the code of one of the user's own is run for it."""
    # Looking through all installed packages takes 10 ms, and a sweep asks hundreds of times for one of ours.
    mine = own_algorithms(installed=name not in ALGORITHMS)
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    if name not in mine:
        raise plugins.unknown("algorithms", name, [*ALGORITHMS, *mine])
    return as_algorithm(mine[name].load(), str(mine[name]))


def as_algorithm(found: object, name: str) -> type[Algorithm]:
    """What someone calls an algorithm, once it is one: a subclass of `Algorithm` whose declarations make sense."""
    if not isinstance(found, type) or not issubclass(found, Algorithm):
        raise FedGAError(f"{name} is not an algorithm: make it a class that inherits from fedga.algorithms.Algorithm")
    check_options(found, name)
    check_declarations(found, name)
    return found


def _checked(algorithm: Algorithm, name: str) -> Algorithm:
    """An algorithm, whose hooks have been checked in this process if it is the user's own."""
    kind = type(algorithm)
    if kind not in ALGORITHMS.values() and kind not in _PASSED:
        from fedga.algorithms.checking.battery import check_hooks

        check_hooks(algorithm, name)
        check_overrides(kind, name)
        _PASSED.add(kind)
    return algorithm


def make_algorithm(name: str | Algorithm | type[Algorithm], **options: Any) -> Algorithm:
    """An algorithm by name or by class, its options by keyword; text is converted to the option's type.

    One of the user's own has passed `fedga.algorithms.checking.battery.check_hooks`.

    >>> make_algorithm("fedprox", mu="0.01")
    FedProx(mu=0.01)
    """
    if isinstance(name, Algorithm):
        return _checked(name, type(name).__name__) if not options else make_algorithm(type(name), **options)
    if isinstance(name, str):
        kind, called = algorithm_class(name), name
    else:
        called = getattr(name, "__name__", str(name))
        kind = as_algorithm(name, called)
    declared = {field.name: field for field in fields(kind)}
    given = {name: _option(called, declared, name, value) for name, value in options.items()}
    return _checked(kind(**given), called)


def _option(name: str, declared: dict[str, Field[Any]], option: str, value: Any) -> Any:
    """An option's value in the type of its default and within its range."""
    if option not in declared:
        if not declared:
            raise FedGAError(f"algorithm {name} has no options, and {option!r} was given: leave it out")
        raise unknown_name(f"option of {name}", option, declared)
    where, wanted = f"--algorithm {name}: {option}", type(declared[option].default)
    if wanted is bool:
        return _switch(where, value)
    if wanted is str:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise wrong_value(where, "a text", value)
        return str(value)
    kind = declared[option].metadata.get("range", Number(whole=True) if wanted is int else _ANY_FLOAT32)
    if isinstance(value, str):
        return kind.parse(where, value)
    if wanted is int and isinstance(value, float) and value.is_integer():
        value = int(value)  # on the command line every number is a float
    return kind.check(where, value)


def _switch(where: str, value: Any) -> bool:
    switches = {"true": True, "false": False}
    if str(value).lower() not in switches:
        raise wrong_value(where, "true or false", value)
    return switches[str(value).lower()]
