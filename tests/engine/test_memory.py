"""When memory runs out, less is done at once, and nothing else changes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedga.engine import engine as engine_module
from fedga.engine.device_data import DeviceData
from fedga.engine.stack.budget import MemoryBudget, is_out_of_memory
from fedga.engine.stack.lanes import Lane
from fedga.engine.stack.stacked import StackedModel
from tests.engine.runs import TELLING, TOGETHER, assert_same_state, make_engine, make_lane, train


def failing(function: Callable[..., Any], error: Exception, when: Callable[[int], bool]) -> Callable[..., Any]:
    """``function``, except that its n-th call raises where ``when(n)``; after the work, as the worst case."""
    calls = 0

    def wrapped(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        result = function(*given)
        if when(calls):
            raise error
        return result

    return wrapped


ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"),
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
]


def all_lanes(data: DeviceData) -> list[Lane]:
    return [
        make_lane(data.dataset, algorithm=TELLING[name], seed=seed, active=4, server_average=0.2)
        for seed, name in enumerate(TOGETHER)
    ]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("failure", [1, 2, 5])
def test_training_goes_on_with_half_the_clients(
    error: Exception, failure: int, exact_data: DeviceData, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes = all_lanes(exact_data)
    expected = train(lanes, exact_data, 2)
    wrapped = failing(engine_module.train_locally, error, lambda call: call == failure)
    monkeypatch.setattr(engine_module, "train_locally", wrapped)
    engine = train(lanes, exact_data, 2, slots=8)
    assert engine.budget.slots == 4
    assert engine.budget.models == 4
    assert engine.budget.notices == ["out of memory: going on with 4 clients at a time"]
    for actual, state in zip(engine.stack.states(), expected.stack.states(), strict=True):
        assert_same_state(actual, state)


def test_training_goes_on_until_it_fits(exact_data: DeviceData, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for three clients, of which four are active: stacks of 8, then 4, then 2, within lanes."""
    lanes = all_lanes(exact_data)
    expected = train(lanes, exact_data, 2)
    train_locally = engine_module.train_locally

    def little_memory(model: Any, data: Any, slots: Any, *more: Any) -> Any:
        if len(slots.params) > 3:
            raise torch.OutOfMemoryError
        return train_locally(model, data, slots, *more)

    monkeypatch.setattr(engine_module, "train_locally", little_memory)
    engine = train(lanes, exact_data, 2, slots=8)
    assert engine.budget.slots == 2
    assert [notice.split("with ")[1] for notice in engine.budget.notices] == [
        "4 clients at a time",
        "2 clients at a time",
    ]
    for actual, state in zip(engine.stack.states(), expected.stack.states(), strict=True):
        assert_same_state(actual, state)


@pytest.mark.parametrize("error", ERRORS[:2], ids=lambda error: type(error).__name__)
def test_with_nothing_left_to_halve_it_is_raised(
    error: Exception, pictures_data: DeviceData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "train_locally", failing(engine_module.train_locally, error, lambda call: True))
    engine = make_engine([make_lane(pictures_data.dataset)], pictures_data, slots=4)
    with pytest.raises(type(error)):
        engine.run_round()
    assert (engine.budget.slots, engine.budget.models) == (1, 1)


def test_other_errors_are_not_taken_for_it(pictures_data: DeviceData, monkeypatch: pytest.MonkeyPatch) -> None:
    error = RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    monkeypatch.setattr(engine_module, "train_locally", failing(engine_module.train_locally, error, lambda call: True))
    engine = make_engine([make_lane(pictures_data.dataset)], pictures_data, slots=4)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        engine.run_round()
    assert (engine.budget.slots, engine.budget.notices) == (4, [])


def test_evaluation_goes_on_with_half_the_models(pictures_data: DeviceData, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = [make_lane(pictures_data.dataset, seed=seed) for seed in range(6)]
    expected = make_engine(lanes, pictures_data).run_round()
    evaluate = StackedModel.evaluate

    def little_memory(self: StackedModel, params: Any, *more: Any) -> Any:
        if len(params) > 3:
            raise torch.OutOfMemoryError
        return evaluate(self, params, *more)

    monkeypatch.setattr(StackedModel, "evaluate", little_memory)
    engine = make_engine(lanes, pictures_data, slots=32)
    actual = engine.run_round()
    assert engine.budget.models <= 3
    assert engine.budget.notices
    for one, other in zip(actual, expected, strict=True):
        assert one.metrics == pytest.approx(other.metrics)


def test_halving_ends_at_one() -> None:
    budget = MemoryBudget(slots=5, models=2, samples=10)
    assert [(budget.halve(), budget.slots, budget.models) for _ in range(3)] == [
        (True, 2, 1),
        (True, 1, 1),
        (False, 1, 1),
    ]
    assert len(budget.notices) == 2


def test_what_is_out_of_memory() -> None:
    assert all(is_out_of_memory(error) for error in ERRORS)
    assert not is_out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert not is_out_of_memory(ValueError("can't allocate memory"))


def test_appetite_on_a_cpu() -> None:
    """Stacked matrix products pay, stacked convolutions do not; the stack shrinks as the network grows."""
    small, large = (StackedModel(torch.nn.Linear(size, size)) for size in (10, 1000))
    convolution = StackedModel(torch.nn.Conv2d(1, 1, 3))

    def suited(model: StackedModel) -> int:
        return MemoryBudget.for_model(model, torch.device("cpu"), (1, 8, 8), 16).slots

    assert suited(small) > suited(large) >= 1
    assert suited(convolution) == 1


def test_appetite_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the size of its memory, what one client's training needs, and never less than one."""
    model = StackedModel(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.Linear(16, 4)))

    def slots(memory: int, batch_size: int = 16) -> int:
        properties = SimpleNamespace(total_memory=memory)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        return MemoryBudget.for_model(model, torch.device("cuda"), (1, 8, 8), batch_size).slots

    small, large = slots(2**24), slots(2**25)
    assert 1 < small < large
    assert abs(large - 2 * small) <= 1
    assert slots(2**24, batch_size=256) < small
    assert slots(2**10) == 1
    assert slots(2**45) == slots(2**50)  # a GPU is busy long before
    needed = small * (
        4 * 4 * model.params.total + 16 * 4 * 64
    )  # parameters, gradient, momentum; the samples themselves
    assert needed < 2**24


def test_saved_bytes_are_those_of_one_more_sample() -> None:
    """The inputs of both layers and what the activation keeps, each once or twice."""
    network = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.Sigmoid(), torch.nn.Linear(16, 4)
    )
    single = StackedModel(network).saved_bytes((1, 8, 8))
    assert (64 + 16) * 4 <= single <= 2 * (64 + 16 + 16 + 4) * 4
    assert StackedModel(network.double()).saved_bytes((1, 8, 8)) == 2 * single


def test_an_engine_is_freed_when_it_is_let_go(pictures_data: DeviceData) -> None:
    """By reference counts alone: a collector that frees memory of a GPU ends the recording of a graph."""
    gc.collect()
    gc.disable()
    try:
        engine = make_engine([make_lane(pictures_data.dataset, algorithm="fednh")], pictures_data)
        engine.run_round()
        seen = weakref.ref(engine.stack)
        del engine
        assert seen() is None
    finally:
        gc.enable()
