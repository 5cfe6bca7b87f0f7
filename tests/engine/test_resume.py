"""A run that is stopped, saved and started again ends with the same bits as one that was not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from fedga.algorithms import ALGORITHMS
from fedga.engine.device_data import DeviceData
from fedga.engine.stack.lanes import Lane, LaneState
from tests.engine.runs import (
    TELLING,
    TOGETHER,
    Mixing,
    assert_same_state,
    distance,
    make_engine,
    make_federation,
    make_lane,
    make_uneven_federation,
    train,
)


def through_files(states: Sequence[LaneState], folder: Path) -> list[LaneState]:
    for lane, state in enumerate(states):
        save_file(dict(state), folder / f"{lane}.safetensors")
    return [load_file(folder / f"{lane}.safetensors") for lane in range(len(states))]


def assert_resumes(lanes: Sequence[Lane], data: DeviceData, folder: Path) -> None:
    whole = make_engine(lanes, data)
    results = [whole.run_round() for _ in range(4)]
    first = train(lanes, data, 2)
    for states in (first.stack.states(), through_files(first.stack.states(), folder)):
        second = make_engine(lanes, data, states=states, round_number=2)
        # By what they print: every digit of every number, and NaN is NaN.
        assert repr([second.run_round() for _ in range(2)]) == repr(results[2:])
        for actual, expected, middle in zip(second.stack.states(), whole.stack.states(), states, strict=True):
            assert_same_state(actual, expected, rtol=0.0, atol=0.0)
            assert distance(expected, middle) > 1e-3


@pytest.mark.parametrize("model", ["mlp", Mixing], ids=["mlp", "own"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_resumed_equals_uninterrupted(algorithm: str, model: Any, pictures_data: DeviceData, tmp_path: Path) -> None:
    lane = make_lane(
        pictures_data.dataset,
        model=model,
        algorithm=TELLING[algorithm],
        server="momentum",
        server_average=0.2,
        lr_schedule="cosine",
    )
    assert_resumes([lane], pictures_data, tmp_path)


def test_mixed_lanes_resume(pictures_data: DeviceData, tmp_path: Path) -> None:
    """Servers that keep nothing, one and two moments, with and without an averaged model, of two partitions."""
    dataset = pictures_data.dataset
    uneven, other = make_uneven_federation(dataset), make_federation(dataset, [31, 9, 5, 17, 12, 22], seed=1)
    lanes = [
        make_lane(dataset, uneven, algorithm="scaffold", server="adam"),
        make_lane(dataset, other, algorithm="scaffold", server="yogi", server_average=0.3, seed=1),
        make_lane(dataset, other, algorithm="climb:dual_rate=4:epsilon=0.01", server="momentum", standardize=True),
        make_lane(dataset, uneven, algorithm="fedrl", server_average=0.05, seed=2),
        make_lane(dataset, uneven, algorithm="fedga", weight_decay=0.1, lr_schedule="exponential"),
    ]
    assert_resumes(lanes, pictures_data, tmp_path)


def test_a_lane_resumes_alone_and_among_others(exact_data: DeviceData) -> None:
    """The checkpoint of one engine serves another in which the lane has other neighbours."""
    dataset = exact_data.dataset
    lanes = [
        make_lane(dataset, algorithm=TELLING[name], seed=seed, server_average=0.2) for seed, name in enumerate(TOGETHER)
    ]
    middle = train(lanes, exact_data, 2).stack.states()
    ends = train(lanes, exact_data, 4).stack.states()
    for lane, state, end in zip(lanes, middle, ends, strict=True):
        alone = train([lane], exact_data, 2, states=[state], round_number=2)
        assert_same_state(alone.stack.states()[0], end)
