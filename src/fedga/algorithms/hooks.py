"""Calling the hooks of an algorithm as the engine does, and saying in one sentence what is wrong with them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from fedga.algorithms.base import Algorithm, Sent, Tensors
from fedga.errors import FedGAError
from fedga.own import line_of, told

_DRAWS = (
    "draws at random, so that no run could be repeated: leave the draw out, or keep a key in the state and draw with "
    "fedga.streams"
)

# Where what a hook reads by name comes from.
_COMES_FROM = {
    "local_loss": "return it from broadcast, and declare it in downloads",
    "correct": "return it from client_state, declared in keeps, or from broadcast, declared in downloads",
    "report": "return it from client_state, declared in keeps, or from broadcast, declared in downloads",
    "update_server": "return it from report, declared in uploads, or from server_state",
    "broadcast": "return it from server_state",
    "weights": "return it from server_state",
    "select": "return it from server_state",
}
# What a hook is given where the class asks for it.
_ASKED_FOR = {
    "local_loss": ("batch.global_logits", "needs_global_logits: ClassVar[bool] = True"),
    "broadcast": ("server.auxiliary", "auxiliary_samples: ClassVar[int] = 8"),
    "update_server": ("survey", "surveys: ClassVar[bool] = True"),
}

# What PyTorch says when it cannot map a hook over clients, and what to do about it.
_CANNOT_MAP = {
    "calling .item()": "takes a number out of a tensor (.item(), int(), float()): compute with the tensor itself",
    "control flow": "branches on the value of a tensor (if, while, assert, and, or): use torch.where instead",
    "boolean mask": "indexes with a mask (x[mask]), whose size is unknown: multiply by the mask, or use torch.where",
    "dynamic shape": "makes a tensor whose size depends on values (nonzero, unique): use torch.where on whole tensors",
    "random operation": _DRAWS,
    "doesn't match the broadcast shape": "writes into a tensor it made itself: write x = x + y instead of x += y",
    "is not possible because there exists": "writes into a tensor it made itself: use torch.where or F.one_hot instead",
    "data pointer": "turns a tensor into numbers of Python or NumPy (.tolist(), .numpy()): compute with torch alone",
    "one_hot": "calls one_hot without the number of classes: write F.one_hot(targets, logits.shape[-1])",
    "does not require grad": "calls torch.autograd itself: use torch.func.grad",
}


class Hooks:
    """The hooks of one algorithm; ``shapes`` are those of the sizes that can be declared."""

    def __init__(self, algorithm: Algorithm, name: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.algorithm, self.name, self.shapes = algorithm, name, shapes

    def call(self, hook: str, function: Callable[[], Any]) -> Any:
        """What the hook returns, if it neither fails nor draws from the generator that everybody shares."""
        before = torch.get_rng_state()
        try:
            found = function()
        except FedGAError:
            raise
        except Exception as error:
            raise self.wrong(f"{hook} {self._why_it_failed(hook, error)}") from error
        if not torch.equal(before, torch.get_rng_state()):
            torch.set_rng_state(before)
            raise self.wrong(f"{hook} {_DRAWS}")
        return found

    def _why_it_failed(self, hook: str, error: Exception) -> str:
        """A failure for want of something that was not asked for is told as that."""
        if isinstance(error, KeyError) and error.args and hook in _COMES_FROM:
            return f"reads {error.args[0]!r}, which it is not given: {_COMES_FROM[hook]}"
        argument, declaration = _ASKED_FOR.get(hook, ("", ""))
        if "NoneType" in str(error) and declaration and not getattr(self.algorithm, declaration.partition(":")[0]):
            return f"reads {argument}, which it is not given: declare {declaration}"
        return f"failed, {told(error, self._home)}: correct it"

    def mapped(self, hook: str, function: Callable[..., Any], *given: Any) -> Any:
        """What a hook gives for one client or server, after it gave the same when mapped over two of them."""
        copies = _each(lambda value: value.clone(), given)
        alone = self.call(hook, lambda: function(*given))
        if not all(torch.equal(value, copy) for value, copy in zip(_leaves(given), _leaves(copies), strict=True)):
            raise self.wrong(f"{hook} writes into what it was given: make a new tensor, as in x = x + y")
        if strange := [value for value in _leaves(alone) if not isinstance(value, Tensor)]:
            raise self.wrong(f"{hook} gave {shown(strange[0])} where a tensor belongs: return tensors")
        two = _each(lambda value: torch.stack([value, value.flip(0) if value.dim() else value]), given)
        try:
            both = vmap(function)(*two)
        except FedGAError:
            raise
        except Exception as error:
            raise self.wrong(f"{hook} {self._why_not_mapped(error)}") from error
        again = self.call(hook, lambda: function(*given))
        for first, of_two, second in zip(_leaves(alone), _leaves(both), _leaves(again), strict=True):
            if not torch.allclose(first, second, rtol=0, atol=0, equal_nan=True):
                raise self.wrong(f"{hook} gives something else every time: make it depend on its arguments alone")
            if not close(first, of_two[0]):
                raise self.wrong(f"{hook} gives other numbers when it is mapped over clients: keep nothing outside it")
        return alone

    def _why_not_mapped(self, error: Exception) -> str:
        for sign, remedy in _CANNOT_MAP.items():
            if sign in str(error):
                return remedy + self.place(error)
        return (
            f"cannot be mapped over clients by torch.func.vmap ({told(error, self._home)}): write it with torch alone"
        )

    def place(self, error: Exception) -> str:
        line = line_of(error, self._home)
        return f" ({line})" if line else ""

    def tensors(self, hook: str, found: Any) -> Tensors:
        """What a hook returned, once it is a dictionary of tensors."""
        if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
            raise self.wrong(f"{hook} must return a dictionary of tensors, not {shown(found)}")
        return found

    def as_declared(self, hook: str, what: str, declared: tuple[Sent, ...], found: Any) -> None:
        """Names and sizes, so that the costs that are printed are those that are paid."""
        sizes = {sent.name: sent.size for sent in declared}
        for name, value in self.tensors(hook, found).items():
            size = next((size for size, shape in self.shapes.items() if shape == tuple(value.shape)), None)
            if size is None or not value.is_floating_point():
                raise self.wrong(
                    f"{hook} returns {name!r} of shape {list(value.shape)} and type {value.dtype}: make it a float "
                    f"tensor of shape [], [classes] or [parameters], as {what} can declare"
                )
            if name not in sizes:
                tells = "" if what == "keeps" else ', "what it tells about a client"'
                raise self.wrong(
                    f'{hook} returns {name!r}, which {what} does not declare: add Sent("{name}", "{size}"{tells})'
                )
            if sizes[name] != size:
                raise self.wrong(
                    f'{hook} returns {name!r} of size "{size}", which {what} declares as "{sizes[name]}": '
                    "correct one of them"
                )
        for name in sizes.keys() - found.keys():
            raise self.wrong(f"{what} declares {name!r}, which {hook} does not return: return it, or declare less")

    def wrong(self, sentence: str) -> FedGAError:
        return FedGAError(f"{self.name}: {sentence}")

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


def close(one: Tensor, other: Tensor) -> bool:
    """Whether two ways to compute the same in float64 gave the same."""
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-9, atol=1e-9, equal_nan=True)


def shown(found: Any) -> str:
    return f"shape {list(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
