"""Networks by name, and the way in for networks of the user's own."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fedga import plugins
from fedga.common import streams
from fedga.errors import FedGAError, a_or_an
from fedga.models.lenet import LeNet
from fedga.models.mlp import MLP
from fedga.models.resnet import ResNet20
from fedga.models.standardized import standardize_weights

__all__ = ["MLP", "MODELS", "LeNet", "ResNet20", "build_model", "known_models"]

ModelBuilder = Callable[..., nn.Module]
MODELS: dict[str, ModelBuilder] = {"mlp": MLP, "lenet": LeNet, "resnet20": ResNet20}


def own_models(*, installed: bool = True) -> dict[str, plugins.Plugin]:
    """The user's own networks by name, of her project file and of installed packages; their code is not run."""
    return plugins.parts("models", MODELS, installed=installed)


def known_models() -> dict[str, ModelBuilder]:
    """Our networks, and the user's own."""
    return MODELS | {name: _builder(part.load(), str(part)) for name, part in own_models().items()}


def own_model(name: str) -> plugins.Plugin | None:
    """A network of the user's own, by name or as ``package.module:Class``; None for one of ours or an unknown one."""
    # Looking through all installed packages takes 10 ms, and a sweep asks hundreds of times for one of ours.
    mine = own_models(installed=name not in MODELS)
    if name in MODELS or name in mine or ":" not in name:
        return mine.get(name)
    return plugins.Plugin("models", name, name)


def _find(name: str) -> ModelBuilder:
    if part := own_model(name):
        return _builder(part.load(), str(part))
    if name not in MODELS:
        raise plugins.unknown("models", name, [*MODELS, *own_models(), "package.module:Class"])
    return MODELS[name]


def _builder(found: Any, name: str) -> ModelBuilder:
    if not callable(found):
        raise FedGAError(f"{name} is {a_or_an(found)}: name a class or function that makes a model")
    return found


def build_model(
    name: str | ModelBuilder, input_shape: tuple[int, ...], num_classes: int, *, norm: str = "batch", seed: int = 0
) -> nn.Module:
    """A freshly initialised network whose weights depend on nothing but the seed.

    ``name`` is one of ours, one of the user's own (``fedga.plugins``), ``package.module:Class``, or a callable; it is
    called with ``(input_shape, num_classes)``, and with ``norm=`` only where that differs from ``"batch"``. With
    ``norm="weight"`` the network's weights are standardised beside the normalisation layers that it has, if any; with
    ``norm="group+weight"`` those are group normalisation.

    >>> sum(p.numel() for p in build_model("mlp", (1, 28, 28), 10).parameters())
    101770
    """
    builder = _find(name) if isinstance(name, str) else name
    layers = norm.removesuffix("weight").removesuffix("+") or "batch"
    options: dict[str, Any] = {} if layers == "batch" else {"norm": layers}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(streams.key(seed, "weights"))
        try:
            model = builder(input_shape, num_classes, **options)
        except TypeError as error:
            if options and "norm" in str(error):
                remedy = "leave --norm out" if norm == layers else "give --norm weight"
                raise FedGAError(f"model {name} has no normalisation layers: {remedy}") from error
            raise
    if not isinstance(model, nn.Module):
        raise FedGAError(f"model {name} gave {a_or_an(model)}, not a torch.nn.Module")
    if norm != layers and not standardize_weights(model):
        raise FedGAError(f"model {name} has no layer before its head whose weights --norm weight could standardise")
    return model
