"""Algorithms written for version 0.1: their hooks are called as they were, and a warning names what they are now."""

import inspect
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

# Class attributes that have another name now.
RENAMED = {"surveys": "evaluates_all_clients", "keeps": "client_state_spec"}

# By hook: what it takes today, and what of the last of that it took instead.
CHANGED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "correct": (("gradient", "client"), ("client_state", "received")),
    "server_state": (("setup",), ("params", "num_clients", "num_classes")),
    "update_server": (("state", "result"), ("clients", "reports", "survey")),
}


def _adapt(kind: Any, name: str, taken: int, parts: tuple[str, ...]) -> None:
    """Call the hook with what it took; a class put above it takes the same from its ``super()``."""
    hook, current = vars(kind)[name], threading.local()

    @wraps(hook)
    def called(self: Any, *given: Any) -> Any:
        *first, current.it = given
        found = hook(self, *first, *(getattr(current.it, part) for part in parts))
        current.it = None  # its tensors are not kept from being freed
        return found

    def upward(self: Any, *given: Any) -> Any:
        if len(given) == taken:
            changed = dict(zip(parts, given[-len(parts) :], strict=True))
            given = (*given[: -len(parts)], replace(current.it, **changed))
        return getattr(super(above, self), name)(*given)

    above: Any = type(kind.__name__, kind.__bases__, {name: upward, "__module__": kind.__module__})
    kind.__bases__ = (above,)
    setattr(kind, name, called)


def adapt_hooks(kind: type) -> None:
    """Give a class of 0.1 the hooks of today."""
    for before, new in RENAMED.items():
        if before in vars(kind):
            setattr(kind, new, vars(kind)[before])
            _warn(f"{kind.__name__}: {before} is called {new} now")
    for name, (today, parts) in CHANGED.items():
        hook, taken = vars(kind).get(name), len(today) - 1 + len(parts)
        if callable(hook) and _positional(hook) == taken + 1:
            _adapt(kind, name, taken, parts)
            _warn(f"{kind.__name__}: {name} takes other arguments now: write def {name}({', '.join(('self', *today))})")
    if "select" in vars(kind):
        _warn(f"{kind.__name__}: select is a rule of its own now (fedga.selection): move it there, and give --select")


def _positional(hook: Callable[..., Any]) -> int:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in kinds for each in inspect.signature(hook).parameters.values())


def _warn(text: str) -> None:
    warnings.warn(f"{text} (see the migration page of the documentation)", FutureWarning, stacklevel=4)
