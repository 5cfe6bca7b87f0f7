"""Algorithms written for version 0.1: their hooks are called as they were, and a warning names what they are now."""

import inspect
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

# Class attributes that have another name now.
RENAMED = {"surveys": "evaluates_all_clients", "keeps": "client_state_spec"}


def _correct(hook: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, gradient, client: hook(self, gradient, client.client_state, client.received)


def _server_state(hook: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, setup: hook(self, setup.params, setup.num_clients, setup.num_classes)


def _update_server(hook: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, state, result: hook(self, state, result.clients, result.reports, result.survey)


# By hook: how many arguments it took besides self, how it is called now, and the adapter.
CHANGED: dict[str, tuple[int, str, Callable[[Callable[..., Any]], Callable[..., Any]]]] = {
    "correct": (3, "correct(self, gradient, client)", _correct),
    "server_state": (3, "server_state(self, setup)", _server_state),
    "update_server": (4, "update_server(self, state, result)", _update_server),
}


def adapt_hooks(kind: type) -> None:
    """Give a class of 0.1 the hooks of today."""
    for old, new in RENAMED.items():
        if old in vars(kind):
            setattr(kind, new, vars(kind)[old])
            _warn(f"{kind.__name__}: {old} is called {new} now")
    for name, (arguments, written, adapter) in CHANGED.items():
        hook = vars(kind).get(name)
        if callable(hook) and _positional(hook) == arguments + 1:
            setattr(kind, name, wraps(hook)(adapter(hook)))
            _warn(f"{kind.__name__}: {name} is called with other arguments now: write def {written}")
    if "select" in vars(kind):
        _warn(f"{kind.__name__}: select is a rule of its own now (fedga.selection): move it there, and give --select")


def _positional(hook: Callable[..., Any]) -> int:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in kinds for each in inspect.signature(hook).parameters.values())


def _warn(text: str) -> None:
    warnings.warn(f"{text} (see the migration page of the documentation)", FutureWarning, stacklevel=4)
