"""The engine against the plain loop: every algorithm, every network, every axis of a run, clients of unequal size.

Both compute in float64, so that a difference is an error and not rounding: after three rounds everything a run carries
on (parameters, buffers, averaged model, the server's and the clients' state) agrees to 1e-10, absolutely.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedga.algorithms import ALGORITHMS, make_algorithm
from fedga.data.federation import Dataset
from fedga.engine.reference import Reference
from fedga.engine.stack.lanes import Lane
from fedga.models import MODELS
from tests.engine.runs import (
    FORMULAS,
    TELLING,
    assert_same_state,
    distance,
    make_data,
    make_dataset,
    make_engine,
    make_federation,
    make_lane,
    make_uneven_federation,
    reference_state,
)

pytestmark = pytest.mark.usefixtures("float64")

# The smallest pictures each network takes; a network that is registered later gets LeNet's. With one channel there is
# no other layout of memory, so ResNet-20 has three.
SHAPES = {"mlp": (1, 8, 8), "resnet20": (3, 8, 8)}
SIZES = (21, 13, 4, 9)  # with batches of 8: three, two, one and two steps, the last ones of 5, 5, 4 and 1 samples


@cache
def samples(shape: tuple[int, ...]) -> Dataset:
    return make_dataset(shape, samples=80)


def assert_engine_equals_reference(lane: Lane, rounds: int = 3) -> None:
    data = make_data(lane.federation.dataset)
    engine, reference = make_engine([lane], data), Reference(lane, data)
    (start,) = engine.stack.states()
    for _ in range(rounds):
        engine.run_round()
        reference.run_round()
    (state,) = engine.stack.states()
    assert distance(state, start) > 1e-3
    # A head from an inverted covariance has weights in the thousands: their rounding is relative to that.
    refitted = {"rtol": 1e-12, "atol": 1e-10} if lane.algorithm.finishes else {}
    assert_same_state(state, reference_state(reference, engine), **refitted)


EVERYWHERE = [
    pytest.param(model, name, marks=pytest.mark.long if model == "resnet20" and name in FORMULAS else ())
    for model in MODELS
    for name in ALGORITHMS
]


@pytest.mark.parametrize(("model", "algorithm"), EVERYWHERE)
def test_every_algorithm_on_every_network(algorithm: str, model: str) -> None:
    dataset = samples(SHAPES.get(model, (1, 16, 16)))
    federation = make_federation(dataset, SIZES)
    assert_engine_equals_reference(
        make_lane(
            dataset,
            federation,
            model,
            TELLING[algorithm],
            lr=0.25 if model == "lenet" else 0.05,
            rounds=3,
            local_epochs=1,
            server="momentum",
            server_average=0.3,
            diagnose_every=100,
            evaluate_every=100,
        )
    )


@pytest.mark.parametrize("algorithm", ["fedntd", "scaffold"])
def test_group_norm(algorithm: str) -> None:
    dataset = samples(SHAPES["resnet20"])
    federation = make_federation(dataset, SIZES)
    lane = make_lane(dataset, federation, "resnet20", algorithm, norm="group", local_epochs=1, evaluate_every=100)
    assert_engine_equals_reference(lane)


@pytest.mark.parametrize("algorithm", sorted(set(ALGORITHMS) - {"fedavg"}))
def test_every_algorithm_differs_from_fedavg(algorithm: str, pictures: Dataset) -> None:
    """So that agreement on it says something about the hooks it overrides."""
    federation, data = make_uneven_federation(pictures), make_data(pictures)
    ends = []
    for name in ("fedavg", TELLING[algorithm]):
        engine = make_engine([make_lane(pictures, federation, algorithm=name, rounds=3)], data)
        for _ in range(3):
            engine.run_round()
        ends += engine.stack.states()
    trains_others = ends[0]["params"].shape != ends[1]["params"].shape
    assert trains_others or distance(*ends) > 1e-3


# Every axis that combines with an algorithm. Each must also change the run: `test_axis` asks for both.
AXES: dict[str, dict[str, Any]] = {
    "momentum": {"momentum": 0.9},
    "momentum, no clip": {"momentum": 0.9, "clip": None},
    "momentum, no clip, weight decay": {"momentum": 0.9, "clip": None, "weight_decay": 0.01},
    "adam": {"optimizer": "adam", "lr": 0.01},
    "weight decay": {"weight_decay": 0.1},
    "adam and weight decay": {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.1},
    "cosine rate": {"lr_schedule": "cosine"},
    "exponential rate": {"lr_schedule": "exponential"},
    "server rate": {"server_rate": 0.5},
    "server momentum": {"server": "momentum"},
    "server momentum, rate": {"server": "momentum", "server_rate": 0.25},
    "server adam": {"server": "adam"},
    "server adam, rate": {"server": "adam", "server_rate": 0.1},
    "server yogi": {"server": "yogi"},
    "server yogi, rate": {"server": "yogi", "server_rate": 0.1},
    "server adagrad": {"server": "adagrad"},
    "standardised pixels": {"standardize": True},
    "uniform aggregation": {"aggregation": "uniform"},
    "no clip": {"clip": None, "lr": 1.0},
    "a clip that bites": {"clip": 0.05},
    "one batch per epoch": {"batch_size": 64},
    "batches larger than some clients": {"batch_size": 14},
    "one sample per batch": {"batch_size": 1, "local_epochs": 1},
    "three epochs": {"local_epochs": 3},
    "all clients active": {"active": 6},
    "one client active": {"active": 1},
    "seed": {"seed": 7},
}


# SCAFFOLD is refused what is not plain SGD.
ON_AXES = [
    (axis, name)
    for axis, settings in AXES.items()
    for name in ("fedga", "scaffold")
    if name == "fedga" or {"optimizer", "momentum"}.isdisjoint(settings)
]


@pytest.mark.parametrize(("axis", "algorithm"), ON_AXES)
def test_axis(axis: str, algorithm: str, pictures: Dataset) -> None:
    federation, data = make_uneven_federation(pictures), make_data(pictures)
    plain = make_lane(pictures, federation, algorithm=algorithm)
    lane = make_lane(pictures, federation, algorithm=algorithm, **AXES[axis])
    assert_engine_equals_reference(lane)
    ends = [make_engine([each], data) for each in (plain, lane)]
    for engine in ends:
        for _ in range(2):
            engine.run_round()
    assert distance(*(engine.stack.states()[0] for engine in ends)) > 1e-4


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_all_axes_together(algorithm: str, pictures: Dataset) -> None:
    together = {
        "rounds": 3,
        "momentum": 0.0 if make_algorithm(algorithm).plain_sgd_only else 0.5,
        "weight_decay": 0.01,
        "lr_schedule": "cosine",
        "server": "yogi",
        "server_rate": 0.05,
        "server_average": 0.05,
        "standardize": True,
        "aggregation": "uniform",
        "clip": 1.0,
        "seed": 3,
    }
    assert_engine_equals_reference(make_lane(pictures, algorithm=TELLING[algorithm], **together))


def test_rows_of_a_table() -> None:
    pictures = make_dataset((6,), samples=120)
    table = Dataset(
        "made",
        pictures.train_inputs.astype("float32") / 100,
        pictures.train_targets,
        pictures.test_inputs.astype("float32") / 100,
        pictures.test_targets,
        pictures.class_names,
    )
    assert_engine_equals_reference(make_lane(table, make_uneven_federation(table), standardize=True))


# --- networks of the user's own --------------------------------------------------------------------------------------


class Own(nn.Module):
    """Everything that looks across rows or draws at random."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(input_shape[0], 4, 3)
        self.channel_dropout = nn.Dropout2d(0.25)
        self.picture_norm = nn.BatchNorm2d(4, affine=False)
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(4 * 36, 16), nn.BatchNorm1d(16, momentum=0.3), nn.ReLU())
        self.dropout = nn.Dropout(0.5)
        self.output = nn.Linear(16, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        features = self.picture_norm(self.channel_dropout(self.convolution(inputs)))
        return self.output(self.dropout(self.layers(features)))


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(64, 64), nn.Linear(64, 64)
        self.two.weight = self.one.weight
        self.output = nn.Linear(64, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.output(self.two(self.one(inputs.flatten(1)).relu()).relu())


class Temperature(nn.Module):
    """Scalars: a parameter and a buffer without dimensions, beside a layer whose statistics move."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Linear(16, num_classes))
        self.gain = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("temperature", torch.tensor(2.0))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs) * self.gain / self.temperature


class Constants(nn.Module):
    """A float buffer that is not saved with the model, as positions and normalisation constants often are."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.register_buffer("centre", torch.full((1,), 0.3), persistent=False)
        self.output = nn.Linear(64, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.output(inputs.flatten(1) - self.centre)


class Unused(nn.Module):
    """A layer that no sample reaches: it has no gradient, but it has weight decay."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.idle, self.output = nn.Linear(3, 3), nn.Linear(64, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.output(inputs.flatten(1))


class OneDropoutTwice(nn.Module):
    """The same dropout layer at two places of one container."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        dropout = nn.Dropout(0.5)
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 16), dropout, nn.Linear(16, 16), dropout, nn.Linear(16, num_classes)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)


class NothingGetsThrough(nn.Module):
    """Dropout of everything: only the last bias learns."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(1.0), nn.Linear(16, num_classes))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_own_network_with_dropout_and_batch_norm(algorithm: str, pictures: Dataset) -> None:
    lane = make_lane(pictures, model=Own, algorithm=TELLING[algorithm], server_average=0.3, rounds=3)
    assert_engine_equals_reference(lane)


@pytest.mark.parametrize("network", [Tied, Temperature, Constants, Unused, OneDropoutTwice, NothingGetsThrough])
def test_unusual_network(network: type[nn.Module], pictures: Dataset) -> None:
    assert_engine_equals_reference(make_lane(pictures, model=network, server_average=0.3, weight_decay=0.01, lr=0.25))


class Viewing(nn.Module):
    """Convolutions that are run channels-last, but for a ``view`` that such a layout refuses."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.convolution, self.output = nn.Conv2d(3, 8, 3), nn.Linear(8 * 36, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.output(self.convolution(inputs).relu().view(len(inputs), -1))


def test_network_that_takes_one_layout_of_memory() -> None:
    dataset = samples((3, 8, 8))
    assert_engine_equals_reference(make_lane(dataset, make_federation(dataset, SIZES), model=Viewing, lr=0.25))


class Frozen(nn.Module):
    """A first layer that is not to be trained."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.features, self.output = nn.Linear(64, 16).requires_grad_(False), nn.Linear(16, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.output(self.features(inputs.flatten(1)).relu())


@pytest.mark.parametrize("settings", [{}, {"optimizer": "adam", "lr": 0.01}, {"server": "momentum"}], ids=str)
def test_frozen_parameters_stay(settings: dict[str, Any], pictures: Dataset) -> None:
    """Weight decay included."""
    lane = make_lane(pictures, model=Frozen, weight_decay=0.1, **settings)
    engine = make_engine([lane], make_data(pictures))
    for _ in range(2):
        engine.run_round()
    found = engine.model.params.views(engine.stack.params[0]) | engine.model.buffers.views(engine.stack.buffers[0])
    for name, parameter in lane.model.named_parameters():
        assert torch.equal(found[name], parameter.detach()) == (not parameter.requires_grad), name
    assert_engine_equals_reference(lane)
