"""Small data sets and runs that many tests share, and what it means that two runs are equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedga.algorithms import ALGORITHMS, make_algorithm
from fedga.algorithms.base import overrides, uses_features
from fedga.algorithms.checking.declared import HOOKS
from fedga.data.federation import Dataset, Federation
from fedga.engine.device_data import DeviceData
from fedga.engine.engine import Engine
from fedga.engine.stack.budget import MemoryBudget
from fedga.engine.stack.lanes import Lane, LaneState
from fedga.engine.stack.stacked import Outputs
from fedga.models import build_model
from fedga.spec.settings import RunSpec
from fedga.testing import make_dataset, make_federation, reference_state

__all__ = ["make_dataset", "make_federation", "reference_state"]  # shared with the checks that users run

# In float64 two ways to compute one number differ by some 1e-16. Training multiplies that, Adam most of all: it divides
# by the size of the gradient plus 1e-8.
EXACT = {"rtol": 0.0, "atol": 1e-10}

# Options that make an algorithm differ clearly from FedAvg within three rounds of a small run; others have none.
_TELLING = {
    **{"fedprox": "fedprox:mu=0.5", "climb": "climb:dual_rate=4:epsilon=0.01"},
    **{"lda-head": "lda-head:shrinkage=1", "ccvr": "ccvr:samples=30"},  # whose weights stay small, and whose cost
}
TELLING = {name: _TELLING.get(name, name) for name in ALGORITHMS}


def _is_a_formula(name: str) -> bool:
    """Whether an algorithm is a loss of logits, targets and counts, and nothing else."""
    algorithm = make_algorithm(name)
    needs = algorithm.needs_global_logits or algorithm.needs_features
    return not needs and [hook for hook in HOOKS if overrides(algorithm, hook)] == ["local_loss"]


# Beside FedGA, nothing but their own formula tells these apart: networks and lanes are proved with the others.
FORMULAS = [name for name in ALGORITHMS if _is_a_formula(name) and not name.startswith("fedga")]
# Those that train all parameters of a network, and all clients at once, and so may share an engine; those that look at
# features have their own.
_OF_ALL = [
    name
    for name in ALGORITHMS
    if name not in FORMULAS and not any(overrides(make_algorithm(name), hook) for hook in ("moves", "groups"))
]
ON_FEATURES = [name for name in _OF_ALL if uses_features(make_algorithm(name))]
TOGETHER = [name for name in _OF_ALL if name not in ON_FEATURES]


class Mixing(nn.Module):
    """Dropout, and batch statistics with buffers that move: what padding and resuming would disturb."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, num_classes)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)


def make_uneven_federation(dataset: Dataset, clients: int = 6, seed: int = 0) -> Federation:
    """Clients of clearly unequal size, most of them without some class."""
    sizes = np.random.default_rng(seed).integers(3, 2 * len(dataset.train_targets) // clients - 3, clients)
    return make_federation(dataset, (sizes * len(dataset.train_targets) / sizes.sum()).astype(int).clip(min=2))


def make_even_federation(dataset: Dataset, clients: int = 4, per_class: int = 6) -> Federation:
    """Every client holds the same number of samples of every class."""
    by_class = [np.flatnonzero(dataset.train_targets == label) for label in range(dataset.num_classes)]
    held = [[places[k * per_class : (k + 1) * per_class] for places in by_class] for k in range(clients)]
    size = per_class * dataset.num_classes
    return Federation(dataset, np.concatenate([np.concatenate(parts) for parts in held]), np.arange(clients + 1) * size)


def sum_of_logits(outputs: Outputs) -> Tensor:
    """The simplest loss there is."""
    return outputs.logits.sum()


def make_lane(
    dataset: Dataset,
    federation: Federation | None = None,
    model: Any = "mlp",
    algorithm: str = "fedavg",
    **settings: Any,
) -> Lane:
    federation = federation or make_uneven_federation(dataset)
    name = model if isinstance(model, str) else "own"
    spec = RunSpec(
        **{
            "dataset": "made",
            "partition": "iid",
            "clients": federation.num_clients,
            "active": 3,
            "rounds": 5,
            "batch_size": 8,
            "algorithm": algorithm,
            "model": name,
            "diagnose_every": 2,
        }
        | settings
    )
    made = make_algorithm(spec.algorithm_name, **dict(spec.algorithm_options))
    network = build_model(model, dataset.input_shape, dataset.num_classes, norm=spec.norm, seed=spec.seed)
    return Lane(spec, federation, made, network)


def make_data(dataset: Dataset) -> DeviceData:
    """The data set on the CPU, its pixels in torch's default dtype: float64 under the fixture of that name."""
    return DeviceData(dataset, torch.device("cpu"), torch.get_default_dtype())


def make_engine(lanes: Sequence[Lane], data: DeviceData, slots: int = 1000, **more: Any) -> Engine:
    """An engine that trains ``slots`` clients at a time: all of them, unless told otherwise."""
    return Engine(lanes, data, budget=MemoryBudget(slots=slots, models=slots, samples=1000), **more)


def train(lanes: Sequence[Lane], data: DeviceData, rounds: int, **more: Any) -> Engine:
    engine = make_engine(lanes, data, **more)
    for _ in range(rounds):
        engine.run_round()
    return engine


def with_algorithm(lane: Lane, algorithm: str) -> Lane:
    """The same run with another algorithm."""
    spec = replace(lane.spec, algorithm=algorithm, algorithm_options=())
    return replace(lane, spec=spec, algorithm=make_algorithm(spec.algorithm_name, **dict(spec.algorithm_options)))


def assert_same_state(actual: LaneState, expected: LaneState, **tolerance: float) -> None:
    """Every tensor that two runs carry from round to round, by name."""
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            actual[name], value, **(tolerance or EXACT), msg=lambda text, name=name: f"{name}: {text}"
        )


def distance(one: LaneState, other: LaneState, name: str = "params") -> float:
    """How far two runs, or a run and its start, are apart."""
    return (one[name] - other[name]).abs().max().item()


def assert_same_metrics(actual: Mapping[str, float], expected: Mapping[str, float]) -> None:
    assert actual.keys() == expected.keys()
    # Losses and ratios are recorded in float32.
    np.testing.assert_allclose(list(actual.values()), list(expected.values()), rtol=1e-6, atol=0)
