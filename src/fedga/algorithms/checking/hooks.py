"""Calling the hooks of an algorithm as the engine does, and saying in one sentence what is wrong with them."""

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError
from pathlib import Path
from traceback import walk_tb
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from fedga.algorithms.base import Algorithm, Tensors
from fedga.algorithms.checking.declared import HOOKS, names_used
from fedga.common.mapping import DRAWS, FirstChange, in_brackets, why_not_mapped
from fedga.common.tracing import format_error, line_of
from fedga.errors import FedGAError, a_or_an

# Where what a hook reads by name comes from.
_COMES_FROM = {
    "local_loss": "return it from broadcast, and declare it in downloads",
    "head": "params has the names of the network at hand, so take the last matrix in it; or return it from broadcast",
    **dict.fromkeys(("start", "gradient", "earlier"), "return it from client_state, declared in client_state_spec"),
    **dict.fromkeys(
        ("correct", "report"),
        "return it from client_state, declared in client_state_spec, or from broadcast, declared in downloads",
    ),
    "update_server": "return it from report, declared in uploads, or from server_state",
    **dict.fromkeys(("broadcast", "weights", "aggregate"), "return it from server_state"),
    **{"select": "return it from state", "update": "return it from inspect, or from state"},
}
# What a hook is given where the class asks for it.
_ASKED_FOR = {
    "batch.global_features": ("needs_features", "needs_global_logits"),
    "batch.features": ("needs_features",),
    "batch.global_logits": ("needs_global_logits",),
    "trained.class_features": ("needs_class_features",),
    "trained.second_moment": ("needs_class_features", "needs_second_moment"),
    "trained.class_moments": ("needs_class_features", "needs_class_moments"),
    "batch.earlier_features": ("needs_features",),
    "server.auxiliary": ("auxiliary_samples",),
    "result.survey": ("evaluates_all_clients",),
    "choice.class_counts": ("needs_class_counts",),
    "choice.losses": ("needs_losses",),
}

# Where a hook finds the number of classes.
_CLASSES = {
    "local_loss": "batch.logits.shape[-1]",
    "survey": "batch.logits.shape[-1]",
    "report": "len(trained.class_counts)",
    "server_state": "setup.num_classes",
    "broadcast": "server.num_classes",
}
_ABOUT_SIZES = re.compile(r"\b(sizes?|shapes?|num_classes|out of (bounds|range))\b")


class Hooks:
    """The hooks of one algorithm or selection rule; ``shapes`` are those of the sizes that can be declared."""

    def __init__(self, algorithm: Any, name: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.algorithm, self.name, self.shapes = algorithm, name, shapes

    def call(self, hook: str, function: Callable[[], Any], mapped: Callable[[], Any] | None = None) -> Any:
        """What the hook returns, if it neither fails nor draws from the generator that everybody shares.

        Where it fails, ``mapped`` over clients it may tell a better reason: x[mask] then has a size that fits nothing.
        """
        before = torch.get_rng_state()
        try:
            found = function()
        except FedGAError:
            raise
        except Exception as error:
            reason = (mapped and self._why_not_mapped(mapped)) or self._why_it_failed(hook, error)
            raise self.wrong(f"{hook} {reason}") from error
        if not torch.equal(before, torch.get_rng_state()):
            place = self._first_change(function, lambda: torch.get_rng_state().tolist())
            torch.set_rng_state(before)
            raise self.wrong(f"{hook} {DRAWS}{place}")
        return found

    def _first_change(self, function: Callable[[], Any], look: Callable[[], Any]) -> str:
        """The line at which a function first changes what is looked at, in brackets."""
        with FirstChange(look, self._home) as watch:
            function()
        return in_brackets(watch.line)

    def _why_it_failed(self, hook: str, error: Exception) -> str:
        """A failure for want of something that was not asked for is told as that."""
        if isinstance(error, KeyError) and error.args and hook in _COMES_FROM:
            return f"reads {error.args[0]!r}, which it is not given: {_COMES_FROM[hook]}"
        if "NoneType" in str(error) and (missing := self._not_asked_for(error)):
            return missing
        if isinstance(error, FrozenInstanceError):
            own = "client_state or server_state" if isinstance(self.algorithm, Algorithm) else "state"
            kept = f"what is kept between rounds goes into {own}"
            return f"assigns to self, which never changes: {kept}{self.place(error)}"
        called_wrongly = isinstance(error, TypeError) and "argument" in str(error) and not line_of(error, self._home)
        if called_wrongly and hook in HOOKS:
            wanted = ", ".join(inspect.signature(getattr(Algorithm, hook)).parameters)
            return f"is called with other arguments than it takes: write def {hook}({wanted})"
        about_sizes = hook in _CLASSES and _ABOUT_SIZES.search(str(error))
        remedy = self._classes_here(hook) if about_sizes else "correct it"
        return f"failed, {format_error(error, self._home)}: {remedy}"

    def _not_asked_for(self, error: Exception | None = None) -> str:
        """What the user's code mentions that it is given only where the class asks for it; empty for nothing."""
        frames = [frame.f_code for frame, _ in walk_tb(error.__traceback__ if error else None)]
        used = names_used(type(self.algorithm), *(code for code in frames if code.co_filename == str(self._home)))
        asks_earlier = getattr(type(self.algorithm), "earlier", None) is not Algorithm.earlier
        if not asks_earlier and (of_earlier := sorted({"earlier_logits", "earlier_features"} & used)):
            return f"reads batch.{of_earlier[0]}, which it is not given: name that model with the hook earlier"
        for value in (value for value in _ASKED_FOR if value.rpartition(".")[2] in used):
            if missing := [name for name in _ASKED_FOR[value] if not getattr(self.algorithm, name, True)]:
                kind = "[int] = 8" if missing == ["auxiliary_samples"] else "[bool] = True"
                declarations = " and ".join(f"{name}: ClassVar{kind}" for name in missing)
                return f"reads {value}, which it is not given: declare {declarations}"
        return ""

    def _classes_here(self, hook: str) -> str:
        return f"the check has {self.shapes['classes'][0]} classes, take their number from {_CLASSES[hook]}"

    def mapped(self, hook: str, function: Callable[..., Any], *given: Any) -> Any:
        """What a hook gives for one client or server, after it gave the same when mapped over two of them."""
        copies = _each(lambda value: value.clone(), given)
        two = _each(lambda value: torch.stack([value, value.flip(0) if value.dim() else value]), given)
        alone = self.call(hook, lambda: function(*given), lambda: vmap(function)(*two))
        pairs = zip(_leaves(given), _leaves(copies), strict=True)
        if not all(((value == copy) | copy.isnan()).all() for value, copy in pairs):
            place = self._first_change(lambda: function(*copies), lambda: [copy._version for copy in _leaves(copies)])
            raise self.wrong(f"{hook} writes into what it was given: make a new tensor, as in x = x + y{place}")
        if strange := [value for value in _leaves(alone) if not isinstance(value, Tensor)]:
            if strange[0] is None and (missing := self._not_asked_for()):
                raise self.wrong(f"{hook} {missing}")
            raise self.wrong(f"{hook} gave {shown(strange[0])} where a tensor belongs: return tensors")
        try:
            both = vmap(function)(*two)
        except FedGAError:
            raise
        except Exception as error:
            told_by_torch = f"cannot be mapped over clients by torch.func.vmap ({format_error(error, self._home)})"
            reason = why_not_mapped(error, [self._home]) or f"{told_by_torch}: write it with torch alone"
            raise self.wrong(f"{hook} {reason}") from error
        again = self.call(hook, lambda: function(*given))
        for first, of_two, second in zip(_leaves(alone), _leaves(both), _leaves(again), strict=True):
            if not torch.allclose(first, second, rtol=0, atol=0, equal_nan=True):
                raise self.wrong(f"{hook} gives something else every time: make it depend on its arguments alone")
            if not close(first, of_two[0]):
                raise self.wrong(f"{hook} gives other numbers when it is mapped over clients: keep nothing outside it")
        return alone

    def _why_not_mapped(self, mapped: Callable[[], Any]) -> str:
        try:
            mapped()
        except Exception as error:
            return why_not_mapped(error, [self._home])
        return ""

    def place(self, error: Exception) -> str:
        return in_brackets(line_of(error, self._home))

    def tensors(self, hook: str, found: Any) -> Tensors:
        """What a hook returned, once it is a dictionary of tensors."""
        are_tensors = isinstance(found, Mapping) and all(isinstance(value, Tensor) for value in found.values())
        self.require(are_tensors, f"{hook} must return a dictionary of tensors, not {shown(found)}")
        return found

    def as_declared(self, hook: str, what: str, found: Any, *, does: str = "return") -> None:
        """Names and sizes, so that the costs that are printed are those that are paid."""
        declared = {sent.name: sent for sent in getattr(self.algorithm, what)}
        if what == "uploads":
            declared.pop("survey", None)  # which is not part of a report
        lengths = {size: shape[0] for size, shape in self.shapes.items() if len(shape) == 1}
        for name, value in self.tensors(hook, found).items():
            size = next((size for size, shape in self.shapes.items() if shape == tuple(value.shape)), None)
            fits = name in declared and declared[name].shape(lengths) == tuple(value.shape)
            if not (fits or size) or not value.is_floating_point():
                here = f" ({self._classes_here(hook)})" if hook in _CLASSES else ""
                raise self.wrong(
                    f"{hook} {does}s {name!r} of shape {list(value.shape)} and type {value.dtype}: make it a float "
                    f"tensor of a shape that {what} can declare, such as [], [classes] or [parameters]{here}"
                )
            if name not in declared:
                tells = "" if what == "client_state_spec" else ', "what it reveals about a client"'
                raise self.wrong(
                    f'{hook} {does}s {name!r}, which {what} does not declare: add Sent("{name}", "{size}"{tells})'
                )
            other = f'{hook} {does}s {name!r} of size "{size}", which {what} declares as "{declared[name].size}"'
            self.require(fits, f"{other}: correct one of them")
        for name in declared.keys() - found.keys():
            raise self.wrong(f"{what} declares {name!r}, which {hook} does not {does}: {does} it, or declare less")

    def wrong(self, sentence: str) -> FedGAError:
        return FedGAError(f"{self.name}: {sentence}")

    def require(self, is_right: Any, sentence: str) -> None:
        if not is_right:
            raise self.wrong(sentence)

    @property
    def _home(self) -> Path:
        return Path(getattr(sys.modules.get(type(self.algorithm).__module__), "__file__", None) or "")


def _each(function: Callable[[Any], Any], given: Any) -> Any:
    """The function of everything in tuples and dictionaries."""
    if isinstance(given, Mapping):
        return {key: _each(function, value) for key, value in given.items()}
    return tuple(_each(function, value) for value in given) if isinstance(given, tuple) else function(given)


def _leaves(given: Any) -> list[Any]:
    if isinstance(given, Mapping):
        given = tuple(given.values())
    return [leaf for value in given for leaf in _leaves(value)] if isinstance(given, tuple) else [given]


def check_state(state: Tensors, after: Tensors, hook: str, first: str) -> str:
    """What is wrong with the state after a round: names, shapes and kinds stay; empty where nothing is."""
    for key in {**state, **after}:
        if key not in after or key not in state:
            verb = "drops" if key not in after else "adds"
            return f"{hook} {verb} {key!r}: return all that {first} has, and nothing else"
        now, was = list(after[key].shape), list(state[key].shape)
        if now != was:
            return f"{hook} makes {key!r} of shape {now} where {first} has {was}: keep the shape"
        if after[key].is_floating_point() != state[key].is_floating_point():
            return f"{hook} makes {key!r} {after[key].dtype} and {first} {state[key].dtype}: begin with the former"
    return ""


def close(one: Tensor, other: Tensor) -> bool:
    """Whether two ways to compute the same in float64 gave the same."""
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-12, atol=1e-12, equal_nan=True)


def shown(found: Any) -> str:
    if found is None:
        return "None (is a return missing?)"
    return f"shape {list(found.shape)}" if isinstance(found, Tensor) else a_or_an(found)
