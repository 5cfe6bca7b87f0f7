"""The same spec and seed give the same run through messages as on the built-in engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedga.algorithms import ALGORITHMS
from fedga.experiments.spec import SERVERS
from tests.flower.runs import assert_equal_results, by_messages, make_spec, on_engine
from tests.simulation.runs import TELLING


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm(algorithm: str, tmp_path: Path) -> None:
    specs = [make_spec(algorithm=TELLING[algorithm], rounds=3)]
    by_messages(specs, tmp_path / "messages")
    assert_equal_results(on_engine(specs, tmp_path / "engine"), tmp_path / "messages", specs)


@pytest.mark.parametrize("server", SERVERS)
def test_every_server_optimiser(server: str, tmp_path: Path) -> None:
    specs = [make_spec(algorithm="fedga", server=server, rounds=3, server_average=0.4)]
    by_messages(specs, tmp_path / "messages")
    assert_equal_results(on_engine(specs, tmp_path / "engine"), tmp_path / "messages", specs)


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "adam", "lr": 0.01},
        {"momentum": 0.9, "weight_decay": 1e-3, "clip": None, "lr_schedule": "cosine"},
        {"aggregation": "uniform", "standardize": True},
        {"model": "tests.simulation.runs:Mixing", "active": 8},
        {"partition": "iid", "alpha": None, "local_epochs": 1},
    ],
    ids=lambda settings: ",".join(settings),
)
def test_every_kind_of_setting(settings: dict[str, object], tmp_path: Path) -> None:
    specs = [make_spec(algorithm="fedga", **settings)]
    by_messages(specs, tmp_path / "messages")
    assert_equal_results(on_engine(specs, tmp_path / "engine"), tmp_path / "messages", specs)


def test_a_grid_of_runs_with_different_numbers_of_clients(tmp_path: Path) -> None:
    specs = [make_spec(clients=clients, seed=seed) for clients in (4, 8) for seed in (0, 1)]
    by_messages(specs, tmp_path / "messages")
    assert_equal_results(on_engine(specs, tmp_path / "engine"), tmp_path / "messages", specs)
