"""Algorithms written for version 0.1: their hooks are called as they were, and a warning names what they are now."""

import inspect
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

# Class attributes that have another name now.
RENAMED = {"surveys": "evaluates_all_clients", "keeps": "client_state_spec"}


# By hook: how many arguments it took besides self, and these from those of today.
CHANGED: dict[str, tuple[int, Callable[..., tuple[Any, ...]]]] = {
    "correct": (3, lambda gradient, client: (gradient, client.client_state, client.received)),
    "server_state": (3, lambda setup: (setup.params, setup.num_clients, setup.num_classes)),
    "update_server": (4, lambda state, result: (state, result.clients, result.reports, result.survey)),
}


def _adapted(hook: Callable[..., Any], old: Callable[..., tuple[Any, ...]]) -> Callable[..., Any]:
    return wraps(hook)(lambda self, *given: hook(self, *old(*given)))


def adapt_hooks(kind: type) -> None:
    """Give a class of 0.1 the hooks of today."""
    for before, new in RENAMED.items():
        if before in vars(kind):
            setattr(kind, new, vars(kind)[before])
            _warn(f"{kind.__name__}: {before} is called {new} now")
    for name, (arguments, old) in CHANGED.items():
        hook = vars(kind).get(name)
        if callable(hook) and _positional(hook) == arguments + 1:
            setattr(kind, name, _adapted(hook, old))
            today = ", ".join(("self", *inspect.signature(old).parameters))
            _warn(f"{kind.__name__}: {name} is called with other arguments now: write def {name}({today})")
    if "select" in vars(kind):
        _warn(f"{kind.__name__}: select is a rule of its own now (fedga.selection): move it there, and give --select")


def _positional(hook: Callable[..., Any]) -> int:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in kinds for each in inspect.signature(hook).parameters.values())


def _warn(text: str) -> None:
    warnings.warn(f"{text} (see the migration page of the documentation)", FutureWarning, stacklevel=4)
