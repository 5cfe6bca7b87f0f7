"""Networks by name, and the way in for networks of the user's own."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

import torch
from torch import nn

from fedga import streams
from fedga.errors import FedGAError, unknown_name
from fedga.models.lenet import LeNet
from fedga.models.mlp import MLP
from fedga.models.resnet import ResNet20

__all__ = ["MLP", "MODELS", "LeNet", "ResNet20", "build_model", "known_models"]

ModelBuilder = Callable[..., nn.Module]
MODELS: dict[str, ModelBuilder] = {"mlp": MLP, "lenet": LeNet, "resnet20": ResNet20}


def known_models() -> dict[str, ModelBuilder]:
    """Our networks and those that installed packages offer under the entry-point group ``fedga.models``."""
    return {entry.name: entry.load() for entry in entry_points(group="fedga.models")} | MODELS


def _find(name: str) -> ModelBuilder:
    # Looking through all installed packages takes 10 ms, and a sweep asks hundreds of times for one of ours.
    known = MODELS if name in MODELS else known_models()
    if name in known:
        return known[name]
    module_name, separator, attribute = name.partition(":")
    if not separator:
        raise unknown_name("model", name, [*known, "package.module:Class"])
    try:
        builder = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise FedGAError(f"model {name!r} cannot be imported ({error}): check the name and PYTHONPATH") from error
    if not callable(builder):
        raise FedGAError(f"model {name!r} is a {type(builder).__name__}: name a class or function that makes a model")
    return builder


def build_model(
    name: str | ModelBuilder, input_shape: tuple[int, ...], num_classes: int, *, norm: str = "batch", seed: int = 0
) -> nn.Module:
    """A freshly initialised network whose weights depend on nothing but the seed.

    ``name`` is one of ours, an entry point of the group ``fedga.models``, ``package.module:Class``, or a callable; it
    is called with ``(input_shape, num_classes)``, and with ``norm=`` only where that differs from ``"batch"``.

    >>> sum(p.numel() for p in build_model("mlp", (1, 28, 28), 10).parameters())
    101770
    """
    builder = _find(name) if isinstance(name, str) else name
    options: dict[str, Any] = {} if norm == "batch" else {"norm": norm}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(streams.key(seed, "weights"))
        try:
            model = builder(input_shape, num_classes, **options)
        except TypeError as error:
            if options and "norm" in str(error):
                raise FedGAError(f"model {name} has no normalisation layers: leave --norm out") from error
            raise
    if not isinstance(model, nn.Module):
        raise FedGAError(f"model {name} gave a {type(model).__name__}, not a torch.nn.Module")
    return model
