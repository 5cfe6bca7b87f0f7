"""What must equal FedAvg over a whole training run: every regulariser at zero, every use of counts on equal ones."""

from __future__ import annotations

from typing import Any

import pytest

from fedga.data.federation import Federation
from fedga.engine.device_data import DeviceData
from tests.engine.runs import (
    EXACT,
    assert_same_metrics,
    assert_same_state,
    distance,
    make_engine,
    make_even_federation,
    make_lane,
    make_uneven_federation,
)

ROUNDS = 6

# Both presets' kind of run: plain, and with everything the server and the local optimiser can add.
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "strong": {
        "standardize": True,
        "lr_schedule": "cosine",
        "weight_decay": 0.001,
        "server": "momentum",
        "server_average": 0.05,
    },
}


def assert_runs(one: str, other: str, federation: Federation, data: DeviceData, equal: bool, **settings: Any) -> None:
    """Two algorithms, from start to end of a run, are equal in every round; or clearly are not."""
    lanes = [
        make_lane(federation.dataset, federation, algorithm=algorithm, rounds=ROUNDS, **settings)
        for algorithm in (one, other)
    ]
    engines = [make_engine([lane], data) for lane in lanes]
    for _ in range(ROUNDS):
        results = [engine.run_round()[0].metrics for engine in engines]
        if equal:
            assert results[0] is not None
            assert results[1] is not None
            assert_same_metrics(*results)
    states = [engine.stack.states()[0] for engine in engines]
    if not equal:
        assert distance(*states) > 1e-3
        return
    common = states[0].keys() & states[1].keys()
    assert {"params", "buffers"} <= common
    assert_same_state({name: states[0][name] for name in common}, {name: states[1][name] for name in common}, **EXACT)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize(
    "algorithm",
    [
        "fedprox:mu=0",
        "fedntd:beta=0",
        "feddecorr:beta=0",
        "moon:mu=0",
        "climb:dual_rate=0:epsilon=0",
        "fedrl:beta=0",
        "fedga:strength=0",
        "fedga-batch:strength=0",
        "fedga:power=0",
        "reweight:power=0",
        "reweight-global:power=0",
        "focal:gamma=0",
        "class-balanced:beta=0",
        "fed-focal:gamma=0:kappa=0",
        "balanced-softmax:tau=0",
        "fedlc:tau=0:missing=kept",
        "fedrs:alpha=1",
        "fedlmd:beta=0",
        "fedrs:alpha=1:form=soft",
        "balancefl:power=1:entropy=0:present=all",
    ],
)
def test_without_its_own_term(algorithm: str, settings: dict[str, Any], exact_data: DeviceData) -> None:
    assert_runs(algorithm, "fedavg", make_uneven_federation(exact_data.dataset), exact_data, True, **settings)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize(
    "algorithm",
    [
        "fedga",
        "reweight",
        "reweight-global",
        "focal:gamma=0:weighting=inverse",
        "focal:gamma=0:weighting=effective",
        "class-balanced",
        "balanced-softmax",
        "fedlc",
        "fedrs",
        "fedrs:form=soft",
        "fedvls:suppress=0",
        "balancefl:power=1:entropy=0",
    ],
)
def test_on_equal_counts(algorithm: str, settings: dict[str, Any], exact_data: DeviceData) -> None:
    federation = make_even_federation(exact_data.dataset)
    assert (federation.class_counts == 6).all()
    assert_runs(algorithm, "fedavg", federation, exact_data, True, **settings)


def test_fedlmd_on_equal_counts_is_fedntd(exact_data: DeviceData) -> None:
    assert_runs("fedlmd", "fedntd", make_even_federation(exact_data.dataset), exact_data, True)
    assert_runs("fedlmd", "fedntd", make_uneven_federation(exact_data.dataset), exact_data, False)


def test_fedga_on_unequal_counts_does_not(exact_data: DeviceData) -> None:
    assert_runs("fedga", "fedavg", make_uneven_federation(exact_data.dataset), exact_data, False)


def test_batch_counts_of_whole_clients_are_client_counts(exact_data: DeviceData) -> None:
    federation = make_uneven_federation(exact_data.dataset)
    assert_runs("fedga-batch", "fedga", federation, exact_data, True, batch_size=64)
    assert_runs("fedga-batch", "fedga", federation, exact_data, False, batch_size=8)


def test_fedga_batch_on_equal_counts_differs_by_its_batches(exact_data: DeviceData) -> None:
    federation = make_even_federation(exact_data.dataset)
    assert_runs("fedga-batch", "fedavg", federation, exact_data, True, batch_size=24)
    assert_runs("fedga-batch", "fedavg", federation, exact_data, False, batch_size=8)
