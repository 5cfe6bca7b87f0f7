"""Layers of the user's own that keep values: moved in training as in plain PyTorch, averaged by the server."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from fedga.algorithms import make_algorithm
from fedga.data.federation import Dataset
from fedga.engine.reference import Reference
from fedga.engine.stack.lanes import Lane
from fedga.engine.stack.stacked import StackedModel
from fedga.engine.stack.trial import check
from fedga.errors import FedGAError
from fedga.testing import check_model
from tests.engine.runs import (
    assert_same_state,
    distance,
    make_data,
    make_dataset,
    make_engine,
    make_federation,
    make_lane,
    reference_state,
    sum_of_logits,
    train,
)

SIZES = (21, 13, 4, 10, 7)  # with batches of 8 the last ones have 5, 5, 4, 2 and 7 samples: most of them padded


class Base(nn.Module):
    """Centres its features by a running mean, which only real samples may move."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.features, self.output = nn.Linear(64, 8), nn.Linear(8, num_classes)
        self.register_buffer("running", torch.full((8,), 0.1))
        self.register_buffer("table", torch.linspace(0.5, 1.5, 8))
        self.register_buffer("order", torch.arange(8).flip(0))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.features(inputs.flatten(1)) * self.table
        if self.training:
            self.move(hidden.detach())
        return self.output((hidden - self.running).tanh()[:, self.order])

    def move(self, hidden: Tensor) -> None:
        """How the running mean moves; here it stands still."""


class InPlace(Base):
    def move(self, hidden: Tensor) -> None:
        self.running.mul_(0.9).add_(0.1 * hidden.mean(0))


class Assigned(Base):
    def move(self, hidden: Tensor) -> None:
        self.running = 0.9 * self.running + 0.1 * hidden.mean(0)


class Copied(Base):
    """Branches on a value, and counts: neither could be mapped over clients."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(input_shape, num_classes)
        self.register_buffer("seen", torch.zeros(()))

    def move(self, hidden: Tensor) -> None:
        if self.seen == 0:
            self.running.copy_(hidden.mean(0))
        self.seen += len(hidden)
        self.running.lerp_(hidden.mean(0), float(len(hidden) / self.seen))


class BesideOurs(Base):
    """With batch statistics and dropout, which the engine replaces."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(input_shape, num_classes)
        self.features = nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Dropout(0.3))

    def move(self, hidden: Tensor) -> None:
        self.running.mul_(0.9).add_(0.1 * hidden.mean(0))


class AlsoInEvaluation(Base):
    """Who only evaluates it must not change it."""

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.features(inputs.flatten(1))
        self.running.mul_(0.9).add_(0.1 * hidden.detach().mean(0))
        return self.output(hidden.tanh())


class Codebook(Base):
    """A parameter that is not trained, written to through its data."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(input_shape, num_classes)
        self.book = nn.Parameter(torch.linspace(-1, 1, 8), requires_grad=False)

    def move(self, hidden: Tensor) -> None:
        self.book.data.mul_(0.5).add_(hidden.mean(0))

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) * self.book.mean()


def of_torch(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """PyTorch's own layers that keep values."""
    norm = nn.InstanceNorm1d(4, track_running_stats=True)
    return nn.Sequential(
        nn.Flatten(), nn.Unflatten(1, (4, 16)), norm, nn.Flatten(), spectral_norm(nn.Linear(64, num_classes))
    )


MOVING = [InPlace, Assigned, Copied, BesideOurs, Codebook, of_torch]


@pytest.fixture
def pictures() -> Dataset:
    return make_dataset(samples=80)


def lane_of(pictures: Dataset, model: Any, **settings: Any) -> Lane:
    return make_lane(pictures, make_federation(pictures, SIZES), model, diagnose_every=100, **settings)


def moved(engine: Any, lane: Lane) -> list[str]:
    """The buffers that are not what they were at the start."""
    before, after = (
        engine.model.buffers.views(state) for state in (engine.model.flatten(lane.model)[1], engine.stack.buffers[0])
    )
    return [name for name in before if not torch.equal(before[name], after[name])]


@pytest.mark.one_in(3)
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("slots", [1000, 1])
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "fedntd", "climb"])
@pytest.mark.parametrize("model", MOVING)
def test_engine_equals_the_plain_loop(model: Any, algorithm: str, slots: int, pictures: Dataset) -> None:
    momentum = 0.0 if make_algorithm(algorithm).plain_sgd_only else 0.5
    lane = lane_of(pictures, model, algorithm=algorithm, server_average=0.3, lr=0.2, momentum=momentum)
    data = make_data(pictures)
    engine, reference = make_engine([lane], data, slots), Reference(lane, data)
    (start,) = engine.stack.states()
    for _ in range(3):
        engine.run_round()
        reference.run_round()
    (state,) = engine.stack.states()
    assert distance(state, start, "buffers") > 1e-3
    assert_same_state(state, reference_state(reference, engine))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("model", MOVING)
def test_beside_other_runs_and_resumed(model: Any, pictures: Dataset) -> None:
    data = make_data(pictures)
    lanes = [lane_of(pictures, model, seed=seed, lr=lr) for seed, lr in ((0, 0.1), (1, 0.3))]
    together = train(lanes, data, 3).stack.states()
    for lane, state in zip(lanes, together, strict=True):
        assert_same_state(train([lane], data, 3).stack.states()[0], state)
    half = train(lanes, data, 1).stack.states()
    resumed = train(lanes, data, 2, round_number=1, states=half).stack.states()
    for one, other in zip(resumed, together, strict=True):
        assert_same_state(one, other)


def test_only_what_moves_is_named_and_only_it_moves(pictures: Dataset) -> None:
    lane = lane_of(pictures, InPlace)
    engine = train([lane], make_data(pictures), 1)
    assert engine.model.moving_buffers == ("running",)
    assert moved(engine, lane) == ["running"]
    assert [notice for notice in engine.budget.notices if "running" in notice] == [
        "layers of the model keep values of their own (running): clients train one by one, without padding, which is "
        "slower"
    ]


@pytest.mark.parametrize("model", MOVING)
def test_the_network_that_came_in_is_not_touched(model: Any, pictures: Dataset) -> None:
    lane = lane_of(pictures, model)
    before = {name: value.clone() for name, value in lane.model.state_dict().items()}
    train([lane], make_data(pictures), 1)
    for name, value in lane.model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_evaluation_moves_nothing(pictures: Dataset) -> None:
    lane = lane_of(pictures, AlsoInEvaluation)
    engine = make_engine([lane], make_data(pictures))
    before = engine.stack.buffers.clone()
    first = engine.server.evaluate(1)
    assert torch.equal(engine.stack.buffers, before)
    assert torch.equal(engine.server.evaluate(1).loss, first.loss)


def test_a_model_without_moving_buffers_is_stacked(pictures: Dataset) -> None:
    class Still(Base):
        def move(self, hidden: Tensor) -> None:
            pass

    engine = make_engine([lane_of(pictures, Still)], make_data(pictures))
    assert engine.model.moving_buffers == ()
    assert engine.budget.notices == []


@pytest.mark.parametrize("model", [InPlace, Assigned, of_torch])
def test_it_is_found_without_a_check_too(model: Any) -> None:
    """As Flower's participants train."""
    module = model((1, 8, 8), 4)
    stacked = StackedModel(module)
    params, buffers = stacked.flatten(module)
    inputs = torch.rand(1, 6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    mask, key = torch.ones(1, 6), torch.zeros(1, dtype=torch.int64)
    kept = buffers.clone()
    _, after = stacked.gradient(
        params[None], buffers[None], inputs, mask, key, sum_of_logits, torch.zeros_like(params[None])
    )
    module.train()(inputs[0])
    torch.testing.assert_close(after[0], stacked.flatten(module)[1])
    assert torch.equal(buffers, kept)
    assert not torch.equal(after[0], kept)


class LookedUp(nn.Module):
    """Reads its inputs as places in a table, as it may where they are whole numbers from 0 up."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors, self.output = nn.Embedding(2, 3), nn.Linear(12, 4)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.output(self.vectors(inputs.long()).flatten(1)) * self.scale


def test_a_table_and_a_constant_pass_the_check() -> None:
    model = StackedModel(LookedUp())
    check(model, (4,))
    assert model.moving_buffers == ()


class Counting(Base):
    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(input_shape, num_classes)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def move(self, hidden: Tensor) -> None:
        self.steps += 1


class Growing(Base):
    def move(self, hidden: Tensor) -> None:
        self.running = torch.cat([self.running, hidden.mean(0)])

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.features(inputs.flatten(1))
        self.move(hidden.detach())
        return self.output(hidden)


class Late(Base):
    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(input_shape, num_classes)
        self.register_buffer("first", None)

    def move(self, hidden: Tensor) -> None:
        self.first = hidden.mean(0)


class Random(Base):
    def move(self, hidden: Tensor) -> None:
        self.running.add_(torch.randn_like(self.running))


class Overwriting(Base):
    def forward(self, inputs: Tensor) -> Tensor:
        hidden = (self.features(inputs.flatten(1)) * self.running).tanh()
        self.running.mul_(0.9)
        return self.output(hidden)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Counting, "buffer steps changes in training and is torch.int64, which the server cannot average over clients"),
        (Growing, r"buffer running changes its shape in training, from \[8\] to \[16\]"),
        (Late, "makes its buffer first while it trains, so that clients would share it"),
        (Random, "draws random numbers outside torch.nn.Dropout layers"),
        (Overwriting, "the model fails in a training step, .*modified by an inplace operation"),
    ],
)
def test_what_cannot_be_averaged_or_repeated_is_refused(model: Any, said: str) -> None:
    with pytest.raises(FedGAError, match=said):
        check(StackedModel(model((1, 8, 8), 4)), (1, 8, 8))


def test_every_way_to_train_agrees() -> None:
    """Flower's messages included, where that is installed."""
    assert len(check_model(InPlace)) == 4
