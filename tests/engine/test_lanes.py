"""Runs that share an engine, in chunks of any size, do not notice each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedga.data.federation import Dataset
from fedga.engine.device_data import DeviceData
from fedga.engine.engine import Engine
from fedga.engine.server import LaneRound
from fedga.engine.stack.budget import MemoryBudget
from fedga.engine.stack.lanes import Lane, LaneState, in_engine_order, stacking_key
from tests.engine.runs import (
    EXACT,
    ON_FEATURES,
    TELLING,
    TOGETHER,
    Mixing,
    assert_same_metrics,
    assert_same_state,
    distance,
    make_data,
    make_engine,
    make_federation,
    make_lane,
    make_uneven_federation,
    train,
)

Ended = tuple[LaneState, list[LaneRound]]


def run_to_the_end(lanes: Sequence[Lane], data: DeviceData) -> list[Ended]:
    """Every lane for as many rounds as its spec says, in one engine; ended lanes leave it."""
    engine: Engine | None = make_engine(lanes, data)
    history: list[list[LaneRound]] = [[] for _ in lanes]
    ends: list[LaneState] = [{} for _ in lanes]
    places = list(range(len(lanes)))  # of the engine's lanes among all
    while engine is not None:
        for place, result in zip(places, engine.run_round(), strict=True):
            history[place].append(result)
        ended = {row for row, lane in enumerate(engine.lanes) if lane.spec.rounds == engine.round}
        states = engine.stack.states()
        for row in ended:
            ends[places[row]] = states[row]
        places = [place for row, place in enumerate(places) if row not in ended]
        if ended:
            engine = engine.without(ended)
    return list(zip(ends, history, strict=True))


def assert_same_run(actual: Ended, expected: Ended, **tolerance: float) -> None:
    assert_same_state(actual[0], expected[0], **tolerance)
    for one, other in zip(actual[1], expected[1], strict=True):
        assert (one.round, one.diverged) == (other.round, other.diverged)
        assert one.metrics is not None
        assert other.metrics is not None
        assert_same_metrics(one.metrics, other.metrics)
        assert [(record.client, record.class_counts) for record in one.clients] == [
            (record.client, record.class_counts) for record in other.clients
        ]
        for name in ("accuracy_before", "accuracy_after", "ea_before", "ea_after"):
            np.testing.assert_allclose(
                [getattr(record, name) for record in one.clients],
                [getattr(record, name) for record in other.clients],
                rtol=1e-6,
            )


TWELVE: list[dict[str, Any]] = [
    {"algorithm": "fedavg"},
    {"algorithm": "fedavg", "seed": 1, "rounds": 2},
    {"algorithm": "fedga", "lr": 0.5, "server": "momentum", "server_average": 0.3},
    {"algorithm": "fedga", "standardize": True, "rounds": 3, "server_average": 0.05},
    {"algorithm": "fedga:strength=0.5", "clip": 0.1},
    {"algorithm": "scaffold", "seed": 2, "aggregation": "uniform"},
    {"algorithm": "scaffold", "seed": 3, "server": "adam", "rounds": 2},
    {"algorithm": "climb:dual_rate=4:epsilon=0.01", "weight_decay": 0.1, "lr_schedule": "cosine"},
    {"algorithm": "fedrl", "standardize": True, "server": "yogi", "server_rate": 0.1},
    {"algorithm": "fedntd:tau=2", "clip": None, "lr_schedule": "exponential", "rounds": 3},
    {"algorithm": "fedga-batch", "seed": 4, "weight_decay": 0.01},
    {"algorithm": "fedprox:mu=0.5", "standardize": True, "server_rate": 0.5},
]


def twelve_lanes(dataset: Dataset, **settings: Any) -> list[Lane]:
    """Mixed in everything that lanes may differ in, partition included."""
    uneven = make_uneven_federation(dataset)
    federations = [uneven, make_federation(dataset, [31, 9, 5, 17, 12, 22], seed=1)]
    return [
        make_lane(dataset, federations[row % 2], **{"rounds": 4} | settings | own) for row, own in enumerate(TWELVE)
    ]


def test_a_run_alone_equals_the_same_run_among_twelve(exact_data: DeviceData) -> None:
    lanes = twelve_lanes(exact_data.dataset)
    together = run_to_the_end(lanes, exact_data)
    for lane, among in zip(lanes, together, strict=True):
        (alone,) = run_to_the_end([lane], exact_data)
        assert_same_run(among, alone, **EXACT)


def test_a_run_alone_equals_the_same_run_among_twelve_in_float32(pictures_data: DeviceData) -> None:
    """As users run it: what is left between the two is float32 rounding, 1e-7 of a parameter of size 1 per step."""
    lanes = twelve_lanes(pictures_data.dataset, rounds=2)
    together = run_to_the_end(lanes, pictures_data)
    for lane, (among, _) in zip(lanes, together, strict=True):
        ((alone, _),) = run_to_the_end([lane], pictures_data)
        torch.testing.assert_close(among["params"], alone["params"], rtol=0, atol=2e-6)


def test_engine_order_puts_equal_algorithms_side_by_side(pictures: Dataset) -> None:
    names = ["fedga", "fedavg", "fedga:strength=0.5", "fedga", "fedavg", "fedga:strength=1"]
    lanes = [make_lane(pictures, algorithm=name, seed=seed) for seed, name in enumerate(names)]
    ordered = in_engine_order(lanes)
    assert [lane.spec.seed for lane in ordered] == [0, 3, 5, 1, 4, 2]


def test_engine_order_changes_nothing_and_saves_segments(exact_data: DeviceData) -> None:
    names = ["scaffold", "fedga", "scaffold", "climb", "fedga", "climb"]
    lanes = [
        make_lane(exact_data.dataset, algorithm=TELLING[name], seed=seed, server_average=0.1 * (seed % 2))
        for seed, name in enumerate(names)
    ]
    mixed, ordered = train(lanes, exact_data, 2), train(in_engine_order(lanes), exact_data, 2)
    assert (len(mixed.segments), len(ordered.segments)) == (6, 3)
    by_seed = dict(zip((lane.spec.seed for lane in ordered.lanes), ordered.stack.states(), strict=True))
    for lane, state in zip(lanes, mixed.stack.states(), strict=True):
        assert_same_state(state, by_seed[lane.spec.seed])


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("model", "names"),
    [("mlp", TOGETHER), (Mixing, TOGETHER), ("mlp", ON_FEATURES)],
    ids=["mlp", "own", "mlp, on features"],
)
@pytest.mark.parametrize("slots", [1, 2, 3, 5, 9])
def test_chunks_of_any_size_give_the_same_numbers(
    slots: int, model: Any, names: Sequence[str], exact_data: DeviceData
) -> None:
    """One slot, parts of a lane, one lane, two lanes at a time: each pads and stacks differently."""
    settings = {"model": model, "active": 4, "server_average": 0.2, "rounds": 3}
    lanes = [
        make_lane(exact_data.dataset, algorithm=TELLING[name], seed=seed, **settings) for seed, name in enumerate(names)
    ]
    whole, parts = make_engine(lanes, exact_data), make_engine(lanes, exact_data, slots)
    for _ in range(3):
        expected, actual = whole.run_round(), parts.run_round()
        for one, other in zip(actual, expected, strict=True):
            assert one.metrics is not None
            assert other.metrics is not None
            assert_same_metrics(one.metrics, other.metrics)
            assert [record.client for record in one.clients] == [record.client for record in other.clients]
    for one, other in zip(parts.stack.states(), whole.stack.states(), strict=True):
        assert_same_state(one, other)


@pytest.mark.parametrize(("models", "samples"), [(1000, 1000), (2, 13), (1, 1)])
def test_surveys_of_lanes_whose_partitions_differ_in_size(models: int, samples: int, exact_data: DeviceData) -> None:
    """Every client is asked about its own samples, however many the other lanes' clients hold."""
    dataset = exact_data.dataset
    sizes = ([31, 9, 5, 17, 12, 22], [3, 4, 5, 6, 7, 8], [20] * 6)
    lanes = [
        make_lane(
            dataset, make_federation(dataset, each, seed), algorithm=TELLING["climb"], seed=seed, standardize=seed == 1
        )
        for seed, each in enumerate(sizes)
    ]
    engine = Engine(lanes, exact_data, budget=MemoryBudget(slots=1000, models=models, samples=samples))
    for _ in range(2):
        engine.run_round()
    for lane, state in zip(lanes, engine.stack.states(), strict=True):
        alone = train([lane], exact_data, 2)
        assert (state["server.dual"] > 0).any()
        assert_same_state(state, alone.stack.states()[0])


# --- buffers of a lane's own -----------------------------------------------------------------------------------------


class RandomFeatures(nn.Module):
    """A constant that differs between seeds: a fixed random projection."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.register_buffer("projection", torch.randn(64, 32) / 8)
        self.output = nn.Linear(32, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.output(torch.tanh(inputs.flatten(1) @ self.projection))


class RandomOrder(nn.Module):
    """The same, of integers: pixels in a fixed random order."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.register_buffer("order", torch.randperm(64))
        self.output = nn.Linear(32, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.output(inputs.flatten(1)[:, self.order[:32]])


@pytest.mark.parametrize("model", [RandomFeatures, RandomOrder])
def test_every_lane_has_its_own_constants(model: type[nn.Module], exact_data: DeviceData) -> None:
    """Whether they are stacked, or their key says that they cannot be."""
    alike: dict[object, list[Lane]] = {}
    for seed in range(3):
        lane = make_lane(exact_data.dataset, model=model, seed=seed, rounds=2)
        alike.setdefault(stacking_key(lane), []).append(lane)
    for lanes in alike.values():
        for lane, among in zip(lanes, run_to_the_end(lanes, exact_data), strict=True):
            (alone,) = run_to_the_end([lane], exact_data)
            assert_same_run(among, alone)


class Centred(nn.Module):
    """A constant beside statistics that move, in one vector of buffers."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.register_buffer("centre", torch.rand(64))
        self.norm, self.output = nn.BatchNorm1d(64), nn.Linear(64, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.output(self.norm(inputs.flatten(1) - self.centre))


def test_constants_keep_every_bit_over_many_rounds(pictures_data: DeviceData) -> None:
    """Shares add up to 1 only nearly, in float32: a constant must not be averaged away."""
    lane = make_lane(pictures_data.dataset, model=Centred, evaluate_every=100, diagnose_every=100, server_average=0.1)
    engine = train([lane], pictures_data, 12)
    for vector in (engine.stack.buffers[0], engine.stack.averaged_buffers[0]):
        found = engine.model.buffers.views(vector)
        assert torch.equal(found["centre"], lane.model.centre)  # type: ignore[arg-type]
        assert (found["norm.running_mean"] != 0).all()


# --- lanes that diverge ----------------------------------------------------------------------------------------------


def test_a_lane_that_diverges_is_reported_and_leaves_the_others_alone(pictures_data: DeviceData) -> None:
    """Every algorithm with a neighbour of the same algorithm, once tame and once wild: the others agree to the bit.

    The clients of seed 2 hold several classes: on one alone, a loss over the classes that are there is 0.
    """

    def lanes(lr: float, clip: float | None) -> list[Lane]:
        found = []
        for name in TOGETHER:
            settings = {"algorithm": TELLING[name], "server": "momentum", "server_average": 0.2}
            found.append(make_lane(pictures_data.dataset, **settings))
            found.append(make_lane(pictures_data.dataset, seed=2, lr=lr, clip=clip, **settings))
        return found

    tame, wild = make_engine(lanes(0.1, 5.0), pictures_data), make_engine(lanes(1e30, None), pictures_data)
    for _ in range(3):
        tame_results, wild_results = tame.run_round(), wild.run_round()
        for row, (expected, actual) in enumerate(zip(tame_results, wild_results, strict=True)):
            if row % 2:
                assert actual.diverged
                assert actual.metrics is None
            else:
                assert not actual.diverged
                assert actual.metrics == expected.metrics
    for row, (expected, actual) in enumerate(zip(tame.stack.states(), wild.stack.states(), strict=True)):
        if row % 2 == 0:
            assert_same_state(actual, expected, rtol=0.0, atol=0.0)


def test_a_rate_of_a_million_diverges(pictures_data: DeviceData) -> None:
    lane = make_lane(pictures_data.dataset, lr=1e6, clip=None, model=Cubic)
    engine = make_engine([lane], pictures_data)
    results = [engine.run_round()[0] for _ in range(3)]
    assert results[-1].diverged


class Cubic(nn.Module):
    """Grows without bound once its weights do."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.output = nn.Linear(64, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.output(inputs.flatten(1)) ** 3


def test_divergence_is_found_in_a_round_that_is_not_evaluated(pictures_data: DeviceData) -> None:
    lane = make_lane(pictures_data.dataset, lr=1e30, clip=None, evaluate_every=5)
    (result,) = make_engine([lane], pictures_data).run_round()
    assert result.diverged
    assert result.metrics is None


def test_a_loss_that_is_not_finite_is_divergence_too(pictures_data: DeviceData) -> None:
    """Finite weights whose predictions on the test split are not."""
    engine = make_engine([make_lane(pictures_data.dataset, model=Overflow)], pictures_data)
    (result,) = engine.run_round()
    assert engine.stack.params.isfinite().all()
    assert result.diverged
    assert result.metrics is None


class Overflow(nn.Module):
    """Behaves while it is trained."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.output = nn.Linear(64, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        logits = self.output(inputs.flatten(1))
        return logits if self.training else logits * 1e30 * 1e30


def test_a_diverged_lane_is_left_behind(pictures_data: DeviceData) -> None:
    tame = make_lane(pictures_data.dataset, algorithm="scaffold")
    wild = make_lane(pictures_data.dataset, algorithm="scaffold", lr=1e30, clip=None)
    engine = make_engine([wild, tame], pictures_data)
    engine.run_round()
    left = engine.without({0})
    assert left is not None
    left.run_round()
    assert left.lanes == [tame]
    alone = train([tame], pictures_data, 2)
    torch.testing.assert_close(left.stack.params, alone.stack.params, rtol=0, atol=1e-6)


# --- bookkeeping -----------------------------------------------------------------------------------------------------


def test_without_everyone_there_is_no_engine(pictures_data: DeviceData) -> None:
    engine = make_engine([make_lane(pictures_data.dataset, seed=seed) for seed in range(2)], pictures_data)
    assert engine.without({0, 1}) is None


def test_without_keeps_round_and_memory(pictures_data: DeviceData) -> None:
    engine = train([make_lane(pictures_data.dataset, seed=seed) for seed in range(3)], pictures_data, 2)
    left = engine.without({1})
    assert left is not None
    assert (left.round, left.server.seeds) == (2, [0, 2])
    assert left.budget is engine.budget


def test_stacking_key_tells_runs_that_cannot_share_an_engine(pictures: Dataset) -> None:
    lane = make_lane(pictures)

    def key(**settings: Any) -> tuple[Any, ...]:
        return stacking_key(replace(lane, spec=replace(lane.spec, **settings)))

    alike = {"seed": 1, "lr": 0.5, "algorithm": "scaffold", "rounds": 9, "standardize": True, "weight_decay": 0.1}
    servers = {"server": "adam", "server_rate": 0.1, "server_average": 0.1, "aggregation": "uniform"}
    assert key(**alike, **servers, lr_schedule="cosine", clip=None) == key()
    for name, value in {
        "model": "lenet",
        "norm": "group",
        "active": 2,
        "batch_size": 9,
        "local_epochs": 1,
        "optimizer": "adam",
        "momentum": 0.5,
        "evaluate_every": 2,
        "diagnose_every": 3,
    }.items():
        assert key(**{name: value}) != key(), name
    assert stacking_key(make_lane(pictures, make_uneven_federation(pictures, clients=5))) != key()
    assert stacking_key(make_lane(replace(pictures, name="other"))) != key()
    assert stacking_key(make_lane(pictures, algorithm="fednh")) != key()  # whose head stands still


def test_states_are_copies(pictures_data: DeviceData) -> None:
    engine = make_engine([make_lane(pictures_data.dataset, algorithm="scaffold")], pictures_data)
    (before,) = engine.stack.states()
    kept = {name: value.clone() for name, value in before.items()}
    engine.run_round()
    assert_same_state(before, kept, rtol=0.0, atol=0.0)
    assert distance(engine.stack.states()[0], before) > 0


def test_lanes_may_come_from_different_partitions(exact_data: DeviceData) -> None:
    """Same seed, other clients: the engine looks each lane's samples up in its own partition."""
    dataset = exact_data.dataset
    one, two = make_uneven_federation(dataset), make_federation(dataset, [10, 20, 30, 5, 25, 30], seed=5)
    engine = train([make_lane(dataset, one), make_lane(dataset, two)], exact_data, 1)
    assert distance(*engine.stack.states()) > 1e-3
    for row, federation in enumerate((one, two)):
        alone = train([make_lane(dataset, federation)], make_data(dataset), 1)
        assert_same_state(engine.stack.states()[row], alone.stack.states()[0])
