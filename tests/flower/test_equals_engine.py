"""The same spec and seed give the same run through messages as on the built-in engine."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor

from fedga.algorithms import ALGORITHMS, Algorithm, RoundResult, Sent, Server, Setup
from fedga.algorithms.base import Tensors
from fedga.algorithms.fednh import FedNH
from fedga.algorithms.parameters import Parameters
from fedga.algorithms.scaffold import SCAFFOLD
from fedga.data.federation import Dataset
from fedga.data.validation import hold_out
from fedga.engine.device_data import DeviceData
from fedga.errors import FedGAError
from fedga.flower import client_app, wire
from fedga.flower.in_process import _Clients
from fedga.flower.server.app import Settings, _federate
from fedga.flower.server.remote import RemoteEngine
from fedga.flower.server.roster import Roster
from fedga.measures.columns import OF_CLIENTS
from fedga.spec.settings import SERVERS
from tests.engine.runs import EXACT, TELLING, Mixing, make_lane, make_uneven_federation, train
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
        {"validate": 0.2, "server_average": 0.4},
        {"model": "tests.engine.runs:Mixing", "active": 8},
        {"model": "tests.engine.test_engine_equals_reference:Constants"},
        {"partition": "iid", "alpha": None, "local_epochs": 1},
        {"select": "power-of-choice", "active": 2, "rounds": 3},
        {"select": "swap-balanced", "rounds": 5},
        {"select": "bandit:estimate=auxiliary:compose=greedy", "active": 4, "rounds": 4},
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


# --- algorithms of the user's own ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SurveyedHead(FedNH):
    """Weights by what every client says of the model, which has a head that the server sends."""

    evaluates_all_clients: ClassVar[bool] = True
    uploads: ClassVar[tuple[Sent, ...]] = (*FedNH.uploads, Sent("survey", "1"))

    def server_state(self, setup: Setup) -> dict[str, Tensor]:
        return {**super().server_state(setup), "losses": torch.ones(setup.num_clients)}

    def weights(self, state: Tensors, clients: Tensor, shares: Tensor) -> Tensor:
        return shares * state["losses"][clients] / state["losses"].mean()

    def update_server(self, state: Tensors, result: RoundResult) -> dict[str, Tensor]:
        assert result.survey is not None
        return {**super().update_server(state, result), "losses": result.survey}


@dataclass(frozen=True)
class OwnPart(Algorithm):
    """Every client keeps its head, or its normalisation layers."""

    part: str = "head"

    def travels(self, parameters: Parameters) -> Collection[str]:
        return [name for name in parameters.shapes if name not in getattr(parameters, self.part)]


@dataclass(frozen=True)
class Looking(OwnPart):
    """The server notes how large the models that it sees are."""

    def server_state(self, setup: Setup) -> dict[str, Tensor]:
        return {"seen": torch.zeros(setup.num_clients, setup.parameters.total)}

    def inspect(self, server: Server, client_params: Tensor) -> dict[str, Tensor]:
        return {"models": client_params}

    def update_server(self, state: Tensors, result: RoundResult) -> dict[str, Tensor]:
        return {"seen": state["seen"].index_copy(0, result.clients, result.reports["models"])}


def both(
    pictures: Dataset, algorithm: Algorithm, folder: Path, federation: Any = None, **settings: Any
) -> tuple[Any, RemoteEngine]:
    """After two rounds on the engine and, through messages, on Flower; the third is left to the test."""
    lane = replace(make_lane(pictures, federation, rounds=3, **settings), algorithm=algorithm)
    data = DeviceData(pictures, torch.device("cpu"), torch.get_default_dtype())
    counts = torch.from_numpy(lane.federation.class_counts).float()
    roster, clients = Roster(len(counts)), _Clients(lane, data, folder)
    roster.nodes, roster.began = {client: client for client in clients.get_node_ids()}, True
    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
    grid: Any = clients
    remote = RemoteEngine(lane, data, roster, grid, class_counts=lambda which: counts[list(which)])
    for _ in range(2):
        remote.run_round()
    return train([lane], data, 2), remote


@pytest.mark.usefixtures("float64")
def test_a_survey_is_sent_what_the_head_needs(pictures: Dataset, tmp_path: Path) -> None:
    engine, remote = both(pictures, SurveyedHead(), tmp_path)
    torch.testing.assert_close(remote.stack.params, engine.stack.params, **EXACT)


@pytest.mark.usefixtures("float64")
def test_clients_with_heads_of_their_own_are_scored_on_what_all_of_them_hold_out(
    pictures: Dataset, tmp_path: Path
) -> None:
    federation = hold_out(make_uneven_federation(pictures), 0.3, seed=0)
    engine, remote = both(pictures, OwnPart(), tmp_path, federation, evaluate_every=1, validate=0.3)
    [here], [there] = engine.run_round(), remote.run_round()
    assert here.metrics.keys() == there.metrics.keys() == {"client_accuracy"}
    assert there.metrics["client_accuracy"] == pytest.approx(here.metrics["client_accuracy"], abs=1e-12)


def test_sites_hold_samples_out_by_themselves() -> None:
    with pytest.raises(FedGAError, match="sites keep theirs: leave validate out"):
        _federate(Loopback(client_app, []), Settings(sites="a, b", classes="0, 1"), {"validate": [0.1]})


@dataclass(frozen=True)
class InPairs(SCAFFOLD):
    """The second of two clients begins where the first one ended."""

    def groups(self, server: Server, clients: Tensor, class_counts: Tensor) -> Tensor:
        return torch.arange(len(clients)) // 2


@pytest.mark.usefixtures("float64", "no_waiting")
def test_a_round_of_turns_that_is_tried_again_forgets_its_first_try(pictures: Dataset, tmp_path: Path) -> None:
    _, remote = both(pictures, InPairs(), tmp_path, active=4, evaluate_every=9, diagnose_every=0)
    remote.timeouts, remote.audience.strict = replace(remote.timeouts, strict=False), False
    grid: Any = remote.grid
    asked, send = [], grid.send_and_receive

    def lose_one_of_the_second_turn(messages: Iterable[Message], **more: Any) -> list[Message]:
        configs = [wire.config_of(message) for message in messages]
        asked.append({config["client"]: config["counted"] for config in configs})
        return send(messages, **more)[: 1 if len(asked) == 2 else None]

    grid.send_and_receive = lose_one_of_the_second_turn
    remote.run_round()
    again = {**asked[2], **asked[3]}
    assert len(asked) == 4
    assert again.keys() & asked[0].keys()
    assert max(again.values()) < 3
    assert remote.stack.counted[list(again)].tolist() == [3] * 4


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("part", ["head", "normalization"])
def test_clients_with_their_own_part_are_scored_with_it_and_not_with_the_servers(
    part: str, pictures: Dataset, tmp_path: Path
) -> None:
    settings = {"model": Mixing, "evaluate_every": 1, "diagnose_every": 1, "server_average": 0.5}
    engine, remote = both(pictures, OwnPart(part=part), tmp_path, **settings)
    [[expected], [found]] = engine.run_round(), remote.run_round()
    assert found.metrics == pytest.approx({k: v for k, v in expected.metrics.items() if k not in OF_CLIENTS}, abs=1e-9)
    assert ("accuracy" in found.metrics) == (part != "head")
    assert found.clients == []


@pytest.mark.usefixtures("float64")
def test_an_inspection_sees_the_servers_values_of_what_stays_at_clients(pictures: Dataset, tmp_path: Path) -> None:
    _, remote = both(pictures, Looking(), tmp_path, active=6)
    [segment] = remote.stack.segments
    assert segment.own is not None
    own = segment.own.params
    [seen] = segment.state["seen"]
    assert torch.equal(seen[:, own], remote.stack.params[:, own].expand(6, -1))
    assert seen.unique(dim=0).shape == seen.shape
