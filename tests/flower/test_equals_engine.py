"""The same spec and seed give the same run through messages as on the built-in engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from flwr.app import Message

from fedga.algorithms import ALGORITHMS
from fedga.errors import FedGAError
from fedga.flower import client_app, wire
from fedga.spec.settings import SERVERS
from tests.engine.runs import TELLING
from tests.flower.loopback import Loopback
from tests.flower.runs import assert_equal_results, by_messages, make_spec, on_engine, partitions


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
        {"model": "tests.engine.runs:Mixing", "active": 8},
        {"partition": "iid", "alpha": None, "local_epochs": 1},
    ],
    ids=lambda settings: ",".join(settings),
)
def test_every_kind_of_setting(settings: dict[str, object], tmp_path: Path) -> None:
    specs = [make_spec(algorithm="fedga", **settings)]
    by_messages(specs, tmp_path / "messages")
    assert_equal_results(on_engine(specs, tmp_path / "engine"), tmp_path / "messages", specs)


@pytest.mark.parametrize(
    ("algorithm", "kind", "lost", "count"),
    [
        ("scaffold", wire.TRAIN, 1, "2 of 3"),
        ("scaffold", wire.TRAIN, 3, "0 of 3"),
        (TELLING["climb"], wire.SURVEY, 1, "7 of 8"),
    ],
)
def test_a_reply_that_is_missing_ends_the_run_and_the_same_command_goes_on(
    algorithm: str, kind: str, lost: int, count: str, tmp_path: Path
) -> None:
    specs, grid = [make_spec(algorithm=algorithm, rounds=3)], Loopback(client_app, partitions())
    losses = iter(range(lost))

    def late_in_round_two(message: Message) -> bool:
        number = message.content.config_records[wire.CONFIG].get("server-round")
        return message.metadata.message_type == kind and number == 2 and next(losses, None) is not None

    grid.late = late_in_round_two
    with pytest.raises(FedGAError, match=f"round 2 has {count} replies, and none of client .*: give the same command"):
        by_messages(specs, tmp_path / "messages", grid)
    by_messages(specs, tmp_path / "messages", grid)
    assert_equal_results(on_engine(specs, tmp_path / "engine"), tmp_path / "messages", specs)


def test_a_grid_of_runs_with_different_numbers_of_clients(tmp_path: Path) -> None:
    specs = [make_spec(clients=clients, seed=seed) for clients in (4, 8) for seed in (0, 1)]
    by_messages(specs, tmp_path / "messages")
    assert_equal_results(on_engine(specs, tmp_path / "engine"), tmp_path / "messages", specs)
