"""Pieces of work on several threads: results in order, and the same bits on any number of them."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Barrier

import pytest
import torch
from torch import nn

from fedga.engine.device_data import DeviceData
from fedga.engine.engine import Engine
from fedga.engine.stack.budget import MemoryBudget
from fedga.engine.stack.stacked import StackedModel
from fedga.engine.stack.workers import Workers
from tests.engine.runs import TELLING, TOGETHER, assert_same_state, make_lane

CPU = torch.device("cpu")


@pytest.fixture
def threads() -> Iterator[int]:
    """More than one worker, whatever the machine."""
    torch.set_num_threads(3)
    yield 3
    torch.set_num_threads(1)


def run(data: DeviceData, model: object) -> Engine:
    lanes = [
        make_lane(data.dataset, model=model, algorithm=TELLING[name], seed=seed, server_average=0.2, diagnose_every=1)
        for seed, name in enumerate(TOGETHER)
    ]
    engine = Engine(lanes, data, budget=MemoryBudget(slots=2, models=2, samples=16))
    for _ in range(2):
        engine.run_round()
    return engine


class Mixing(nn.Sequential):
    """Layers that keep the mask and the dropout key of the batch at hand: a copy for each thread."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        norm = nn.BatchNorm1d(16)
        super().__init__(nn.Flatten(), nn.Linear(64, 16), norm, nn.Dropout(0.3), nn.Linear(16, num_classes))


@pytest.mark.parametrize("model", ["mlp", Mixing], ids=["mlp", "own"])
def test_threads_change_no_bit(model: object, pictures_data: DeviceData, request: pytest.FixtureRequest) -> None:
    alone = run(pictures_data, model)
    count = request.getfixturevalue("threads")
    together = run(pictures_data, model)
    assert (alone.workers.count, together.workers.count) == (1, count)
    for actual, expected in zip(together.stack.states(), alone.stack.states(), strict=True):
        assert_same_state(actual, expected, rtol=0.0, atol=0.0)
    assert repr(together.run_round()) == repr(alone.run_round())


def test_results_come_in_order_from_copies_that_nobody_else_uses(threads: int) -> None:
    workers = Workers(StackedModel(nn.Linear(2, 2)), CPU)
    barrier = Barrier(threads, timeout=60)

    def work(model: StackedModel, item: int) -> tuple[int, int, bool, int]:
        if item < threads:
            barrier.wait()  # so many pieces are under way at once
        return item, id(model), torch.is_grad_enabled(), torch.get_num_threads()

    found = list(workers.map(work, range(20)))
    assert [item for item, *_ in found] == list(range(20))
    assert len({model for _, model, *_ in found[:threads]}) == threads
    assert not any(grad for _, _, grad, _ in found)
    assert {count for *_, count in found} == {1}


def test_an_error_in_a_worker_reaches_the_caller(threads: int) -> None:
    workers = Workers(StackedModel(nn.Linear(2, 2)), CPU)

    def work(model: StackedModel, item: int) -> int:
        if item == 4:
            raise ValueError("the fifth")
        return item

    with pytest.raises(ValueError, match="the fifth"):
        list(workers.map(work, range(10)))
    assert list(workers.map(work, range(3))) == [0, 1, 2]


def test_a_caller_that_stops_early_leaves_no_work_behind(threads: int) -> None:
    workers = Workers(StackedModel(nn.Linear(2, 2)), CPU)
    begun = []
    results = workers.map(lambda model, item: begun.append(item), range(1000))
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert len(begun) <= 2 * threads + 1


def test_the_caller_keeps_to_one_thread_while_it_has_workers(threads: int) -> None:
    workers, seen = Workers(StackedModel(nn.Linear(2, 2)), CPU), []

    def fail() -> None:
        with workers.alone():
            seen.append(torch.get_num_threads())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [*seen, torch.get_num_threads()] == [1, threads]
