"""Runs that validate: scored on samples held out of training, which nothing trains on, and not on the test split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils import parameters_to_vector

from fedga.algorithms.base import Algorithm
from fedga.data.federation import Dataset
from fedga.data.validation import hold_out
from fedga.engine.engine import Engine
from fedga.engine.reference import Reference
from fedga.engine.stack.lanes import Lane, stacking_key
from tests.engine.runs import (
    TELLING,
    assert_same_state,
    make_data,
    make_dataset,
    make_engine,
    make_lane,
    make_uneven_federation,
)

ROUNDS = 3


class Auxiliary(Algorithm):
    """Its server looks at samples of its own, which must not be those that are held out."""

    auxiliary_samples = 4

    def broadcast(self, server: Any) -> dict[str, Any]:
        assert server.auxiliary is not None
        return {"mean": server.auxiliary.mean()}

    def correct(self, gradient: Any, client: Any) -> Any:
        return gradient * client.received["mean"]


def validating(dataset: Dataset, algorithm: str = "fedavg", seed: int = 0, **settings: Any) -> Lane:
    federation = hold_out(make_uneven_federation(dataset, seed=seed), 0.3, seed)
    return make_lane(dataset, federation, algorithm=algorithm, seed=seed, validate=0.3, rounds=ROUNDS, **settings)


def records(engine: Engine) -> list[list[Any]]:
    """What every lane records in every round."""
    found = [engine.run_round() for _ in range(ROUNDS)]
    return [[(result.metrics, result.clients) for result in of_lane] for of_lane in zip(*found, strict=True)]


def spoiled(dataset: Dataset, places: Sequence[int] | np.ndarray | None) -> Dataset:
    """The training samples at these places, or the test split, replaced by garbage."""
    inputs, targets = (
        (dataset.test_inputs, dataset.test_targets) if places is None else (dataset.train_inputs, dataset.train_targets)
    )
    inputs, targets, which = inputs.copy(), targets.copy(), slice(None) if places is None else places
    inputs[which] = 255 - inputs[which]
    targets[which] = (targets[which] + 1) % dataset.num_classes
    split = "test" if places is None else "train"
    return replace(dataset, **{f"{split}_inputs": inputs, f"{split}_targets": targets})


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("algorithm", ["fedavg", TELLING["climb"], "scaffold", "auxiliary"])
def test_nothing_trains_on_held_out_samples_and_nothing_reads_the_test_split(algorithm: str) -> None:
    dataset = make_dataset()
    lane = validating(dataset, "fedavg" if algorithm == "auxiliary" else algorithm, server_average=0.5)
    if algorithm == "auxiliary":
        lane = replace(lane, algorithm=Auxiliary())
    assert lane.federation.held_out is not None
    outcomes = []
    for other in (dataset, spoiled(dataset, None), spoiled(dataset, lane.federation.held_out)):
        federation = replace(lane.federation, dataset=other)
        # Counts of the test split and of held-out labels would differ, were they counted anywhere.
        engine = make_engine([replace(lane, federation=federation)], make_data(other))
        outcomes.append((records(engine), engine.stack.states()[0]))
    (seen, state), (without_test, same), (without_held_out, also) = outcomes
    assert repr(seen) == repr(without_test)
    assert_same_state(same, state, rtol=0, atol=0)
    assert_same_state(also, state, rtol=0, atol=0)
    assert repr(seen) != repr(without_held_out)


@pytest.mark.usefixtures("float64")
def test_lanes_with_held_out_samples_of_their_own_stack_and_score_as_the_plain_loop_does() -> None:
    dataset = make_dataset()
    data = make_data(dataset)
    lanes = [validating(dataset, seed=seed, standardize=seed == 2) for seed in range(3)]
    lanes.append(make_lane(dataset, make_uneven_federation(dataset), rounds=ROUNDS))  # one on the test split
    assert len(set(map(stacking_key, lanes))) == 1
    engine = make_engine(lanes, data)
    together = records(engine)
    for lane, found, state in zip(lanes, together, engine.stack.states(), strict=True):
        reference = Reference(lane, data)
        for _ in range(ROUNDS):
            reference.run_round()
        assert_same_state({"params": state["params"]}, {"params": parameters_to_vector(reference.model.parameters())})
        held = lane.federation.held_out
        inputs, targets = (
            (dataset.test_inputs, dataset.test_targets)
            if held is None
            else (dataset.train_inputs[held], dataset.train_targets[held])
        )
        with torch.no_grad():
            logits = reference.model.eval()(data.pixels(lane.spec.standardize).apply(torch.from_numpy(inputs)))
        accuracy = (logits.argmax(-1) == torch.from_numpy(targets)).double().mean().item()
        assert found[-1][0]["accuracy"] == pytest.approx(accuracy, abs=1e-12)
        [alone] = records(make_engine([lane], data))
        assert repr(alone) == repr(found)


@pytest.mark.usefixtures("float64")
def test_clients_are_looked_at_on_held_out_samples() -> None:
    dataset = make_dataset()
    lane = validating(dataset, diagnose_every=1)
    held = lane.federation.held_out
    assert held is not None
    there = np.bincount(dataset.train_targets[held], minlength=dataset.num_classes)
    alone = replace(lane.federation, held_out=held[dataset.train_targets[held] != 0])
    [(_, clients)] = [
        found[-1] for found in records(make_engine([replace(lane, federation=alone)], make_data(dataset)))
    ]
    assert there[0] > 0
    assert all(np.isnan(client.accuracy_after[0]) and not np.isnan(client.accuracy_after[1]) for client in clients)
