"""What the class of an algorithm says of itself: its options, what it sends and keeps, and methods somebody calls.

Its code is not run for that. Each mistake is one sentence; `fedga.algorithms.checking.battery` then calls the hooks.
"""

import difflib
import inspect
from collections.abc import Collection, Iterator
from dataclasses import MISSING, fields
from types import CodeType, FunctionType
from typing import Any

from fedga.algorithms.base import SIZES, Algorithm, Sent
from fedga.errors import FedGAError, a_or_an

OPTION_TYPES = (float, int, str, bool)
_ASKED_FOR = {  # what is called or filled only where another declaration asks for it
    **{"finish": "finishes", "final_report": "finishes", "survey": "evaluates_all_clients"},
    **dict.fromkeys(("embed", "needs_second_moment", "needs_class_moments"), "needs_class_features"),
}
HOOKS = [name for name, value in vars(Algorithm).items() if callable(value) and not name.startswith("_")]


def check_options(kind: type[Algorithm], name: str) -> None:
    """Every option has a type and a default that can be typed on the command line, and nothing else is one."""
    options = {field.name: field.default for field in fields(kind)}
    types = inspect.get_annotations(kind)
    for option in sorted(option for option, written in types.items() if "ClassVar" not in str(written)):
        if option in vars(Algorithm):
            raise FedGAError(
                f"{option} of {name} is written as an option: write {option}: ClassVar[{_written(types[option])}] = ..."
            )
        if option not in options:
            raise FedGAError(f"{name} has {option}, which is not an option: write @dataclass(frozen=True) above it")
    for option, default in options.items():
        if default is MISSING:
            raise FedGAError(f"option {option} of {name} has no default: give it one, as in {option}: float = 1.0")
        if type(default) not in OPTION_TYPES:
            raise FedGAError(
                f"option {option} of {name} is {a_or_an(default)}: make it a float, int, str or bool, which can be "
                "typed on the command line"
            )
    for option, value in vars(kind).items():
        known = option.startswith("_") or option.isupper() or option in vars(Algorithm) or option in types
        if type(value) in OPTION_TYPES and not known:
            written = type(value).__name__
            raise FedGAError(
                f"{option} of {name} has no type, and so is not an option: write {option}: {written} = {value!r}, or "
                f"{option}: ClassVar[{written}] = {value!r} for a constant"
            )


def check_declarations(kind: type[Algorithm], name: str) -> None:
    """What is declared makes sense in itself, and every method is a hook or is called by one."""
    check_hooks(kind, Algorithm, name, ("select",))  # of version 0.1, which still works
    for what in ("downloads", "uploads", "final_uploads", "client_state_spec"):
        _check_sent(what, getattr(kind, what), name)
    for part, needed in _ASKED_FOR.items():
        if getattr(kind, part) is not getattr(Algorithm, part) and not getattr(kind, needed):
            raise FedGAError(f"{name}: has {part} without {needed}: write {needed}: ClassVar[bool] = True")
    if kind.evaluates_all_clients and kind.travels is not Algorithm.travels:
        raise FedGAError(
            f"{name}: evaluates_all_clients asks about the received model, of which travels leaves a part at the "
            "clients: leave out one of the two"
        )
    surveyed = any(sent.name == "survey" for sent in kind.uploads)
    if kind.evaluates_all_clients and not surveyed:
        raise FedGAError(f'{name}: evaluates_all_clients needs an upload: add Sent("survey", "1", "what it reveals")')
    if surveyed and not kind.evaluates_all_clients:
        raise FedGAError(
            f'{name}: declares an upload "survey", and evaluates_all_clients is not True: set it, or rename the upload'
        )


def check_overrides(kind: type[Algorithm], name: str) -> None:
    """Refuse a class that leaves every hook as it is; `Algorithm` itself is FedAvg by design."""
    plain = all(getattr(kind, hook) is getattr(Algorithm, hook) for hook in HOOKS)
    if kind is not Algorithm and plain and not hasattr(kind, "select"):
        raise FedGAError(
            f"algorithm {name} has none of the hooks ({', '.join(HOOKS)}), and would train as fedavg does: write one"
        )


def _check_sent(what: str, declared: Any, name: str) -> None:
    if not isinstance(declared, tuple):
        comma = " with a comma" if isinstance(declared, Sent) else ""
        raise FedGAError(f"{name}: {what} is {a_or_an(declared)} and not a tuple: write (Sent(...),){comma}")
    for sent in declared:
        if not isinstance(sent, Sent) or not set(sent.size.split("×")) <= set(SIZES):
            raise FedGAError(
                f'{name}: {what} holds {sent!r}: write Sent("name", SIZE) with SIZE "1", "classes", "parameters" or '
                '"features", or several with × between them'
            )


def check_hooks(kind: type, base: type, name: str, also: Collection[str] = ()) -> None:
    """Every public method is a hook of ``base`` or is called by one: a misspelt hook would never be called."""
    hooks = [hook for hook, value in vars(base).items() if callable(value) and not hook.startswith("_")]
    for method, value in vars(kind).items():
        known = method.startswith("_") or method in vars(base) or method in also
        if isinstance(value, FunctionType) and not known and method not in names_used(kind):
            near = difflib.get_close_matches(method, hooks, n=1, cutoff=0.8)
            hint = f"did you mean {near[0]}?" if near else f"begin a helper with _; hooks are {', '.join(hooks)}"
            raise FedGAError(f"{name}: {method} is not a hook: {hint}")


def names_used(kind: type, *more: CodeType) -> set[str]:
    """Every name that the methods of a class, and ``more`` code, mention."""
    members = [member for base in kind.__mro__ for member in vars(base).values()]
    functions = [getattr(member, "fget", None) or getattr(member, "__func__", member) for member in members]
    codes = [function.__code__ for function in functions if isinstance(function, FunctionType)]
    return {name for code in (*codes, *more) for name in _names(code)}


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _written(kind: Any) -> str:
    return kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))
