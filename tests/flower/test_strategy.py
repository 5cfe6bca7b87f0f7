"""The strategy in other people's apps: the example of the quick start, checkpoints, what clients must send."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from fedga.algorithms import Algorithm, make_algorithm
from fedga.algorithms.parameters import Parameters
from fedga.errors import FedGAError
from fedga.flower import AlgorithmStrategy, introduce, wire
from fedga.flower.server import roster as rosters
from fedga.study.states import read_states, write_states
from tests.flower.loopback import Loopback
from tests.flower.runs import partitions

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-quickstart"
CLIENTS = 6


def make_app(*, introduces: bool = True) -> ClientApp:
    """Clients of somebody else's: each adds its number to every weight, and says how much that was."""
    app = ClientApp()
    if introduces:
        app.query("introduce")(introduce)

    @app.train()
    def fit(message: Message, context: Context) -> Message:
        step = message.content["config"]["step"] * (1 + context.node_config["partition-id"])
        arrays = {
            name: tensor + step
            for name, tensor in message.content.array_records["arrays"].to_torch_state_dict().items()
        }
        metrics = MetricRecord({"num-examples": 1 + context.node_config["partition-id"], "step": float(step)})
        return Message(RecordDict({"arrays": wire.to_record(arrays), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def look(message: Message, context: Context) -> Message:
        mean = torch.cat(
            [each.flatten() for each in message.content.array_records["arrays"].to_torch_state_dict().values()]
        ).mean()
        metrics = MetricRecord({"num-examples": 1, "mean": mean.item()})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def start(strategy: AlgorithmStrategy, grid: Loopback, rounds: int = 3, **more: Any) -> Any:
    return strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord({"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}),
        train_config=ConfigRecord({"step": 1}),
        num_rounds=rounds,
        **more,
    )


def model() -> nn.Module:
    return nn.Linear(3, 2)


def test_all_clients_in_plain_averaging_give_flowers_own_weighted_mean() -> None:
    grid = Loopback(make_app(), partitions(CLIENTS))
    result = start(AlgorithmStrategy(model(), "fedavg", clients=CLIENTS), grid, rounds=1)
    weights = range(1, CLIENTS + 1)
    mean = sum(weight * weight for weight in weights) / sum(weights)
    for tensor in result.arrays.to_torch_state_dict().values():
        torch.testing.assert_close(tensor, torch.full_like(tensor, mean))
    assert result.train_metrics_clientapp[1]["step"] == pytest.approx(mean)
    assert result.evaluate_metrics_clientapp[1]["mean"] == pytest.approx(mean, rel=1e-5)


def drawn(grid: Loopback) -> list[int]:
    kinds = [(asked.metadata.message_type, asked.metadata.dst_node_id) for asked, _ in grid.seen]
    return [list(grid.contexts).index(node) for kind, node in kinds if kind == wire.TRAIN]


def test_the_same_seed_draws_the_same_clients_whatever_their_ids() -> None:
    chosen = []
    for nodes in (partitions(CLIENTS), partitions(CLIENTS)[::-1]):
        grid = Loopback(make_app(), nodes)
        start(AlgorithmStrategy(model(), clients=CLIENTS, active=2, seed=4), grid)
        chosen.append([nodes[place]["partition-id"] for place in drawn(grid)])
    assert chosen[0] == chosen[1]
    assert len(chosen[0]) == 6


def test_clients_that_do_not_introduce_themselves_work_and_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    grid = Loopback(make_app(introduces=False), partitions(CLIENTS))
    logger = "flwr"
    with caplog.at_level("INFO", logger):
        import logging

        logging.getLogger(logger).propagate = True
        try:
            result = start(AlgorithmStrategy(model(), clients=CLIENTS, active=2), grid)
        finally:
            logging.getLogger(logger).propagate = False
    assert len(drawn(grid)) == 6
    assert result.arrays
    assert 'app.query("introduce")(fedga.flower.introduce)' in caplog.text


@pytest.mark.parametrize("server", ["sgd", "momentum", "adam", "yogi", "adagrad"])
def test_a_checkpoint_continues_as_if_nothing_had_happened(server: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"clients": CLIENTS, "active": 2, "server": server, "server_average": 0.3}
    whole = AlgorithmStrategy(model(), "fedga", **settings)
    expected = start(whole, Loopback(make_app(), partitions(CLIENTS)), rounds=4)
    path = tmp_path / "run.safetensors"
    start(
        AlgorithmStrategy(model(), "fedga", checkpoint=path, **settings),
        Loopback(make_app(), partitions(CLIENTS)),
        rounds=2,
    )
    again = AlgorithmStrategy(model(), "fedga", checkpoint=path, **settings)
    seen: list[int] = []

    def evaluate(number: int, arrays: ArrayRecord) -> None:
        seen.append(number)

    result = start(again, Loopback(make_app(), partitions(CLIENTS)), rounds=4, evaluate_fn=evaluate)
    assert seen == [2, 3, 4]
    assert list(result.train_metrics_clientapp) == [3, 4]
    for name, tensor in expected.arrays.to_torch_state_dict().items():
        torch.testing.assert_close(result.arrays.to_torch_state_dict()[name], tensor)
    first, second = whole.averaged_arrays, again.averaged_arrays
    assert first is not None
    assert second is not None
    for name, tensor in first.to_torch_state_dict().items():
        torch.testing.assert_close(second.to_torch_state_dict()[name], tensor)


def test_counters_of_batch_norm_travel_for_clients_that_load_strictly() -> None:
    network = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    strategy = AlgorithmStrategy(network, clients=CLIENTS)
    record = strategy.engine.arrays
    network.load_state_dict(record.to_torch_state_dict())
    assert list(record) == list(network.state_dict())


class _HeadAlone(Algorithm):
    def moves(self, parameters: Parameters) -> Collection[str]:
        return parameters.head


def test_first_arrays_that_nobody_is_sent_must_be_those_of_the_model() -> None:
    """A backbone that is given to the server alone never reaches the clients."""
    network, other = (nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)) for _ in range(2))
    strategy = AlgorithmStrategy(network, _HeadAlone(), clients=CLIENTS)
    strategy.engine.arrays = ArrayRecord(network.state_dict())
    with pytest.raises(FedGAError, match=r"another 0\.(weight|bias) than the strategy's model, .* never sent"):
        strategy.engine.arrays = ArrayRecord(other.state_dict())


def test_buffers_that_are_in_no_state_dict_stay_where_they_are() -> None:
    network = nn.Sequential(nn.Linear(3, 2))
    network.register_buffer("centre", torch.ones(1), persistent=False)
    strategy = AlgorithmStrategy(network, clients=CLIENTS)
    strategy.engine.arrays = ArrayRecord(network.state_dict())
    assert list(strategy.engine.arrays) == ["0.weight", "0.bias"]


def test_clients_may_send_counters_back() -> None:
    """As those do that send their whole `state_dict`, as Flower's examples have it."""
    network = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    strategy = AlgorithmStrategy(network, "fedavg", clients=CLIENTS, evaluate_clients=False)
    result = strategy.start(
        grid=Loopback(make_app(), partitions(CLIENTS)),
        initial_arrays=ArrayRecord(network.state_dict()),
        train_config=ConfigRecord({"step": 1}),
        num_rounds=1,
    )
    assert strategy.engine.round == 1
    assert list(result.arrays) == list(network.state_dict())


def test_missing_clients_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rosters, "LOOK_EVERY_S", 0.01)
    strategy = AlgorithmStrategy(model(), clients=CLIENTS + 1, wait_for_clients=0.1)
    with pytest.raises(FedGAError, match=r"6 of 7 clients came within 0\.1 seconds"):
        start(strategy, Loopback(make_app(), partitions(CLIENTS)))


def test_an_algorithm_with_samples_on_the_server_is_refused() -> None:
    with pytest.raises(FedGAError, match="fedrl needs samples on the server"):
        AlgorithmStrategy(model(), "fedrl", clients=CLIENTS)


def test_a_client_that_reports_less_than_declared_is_left_out() -> None:
    strategy = AlgorithmStrategy(model(), "scaffold", clients=CLIENTS)
    result = start(strategy, Loopback(make_app(), partitions(CLIENTS)), rounds=1)
    assert strategy.engine.round == 0
    assert not result.train_metrics_clientapp


def test_the_quick_start_example_learns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    for name in [name for name in sys.modules if name.partition(".")[0] == "quickstart"]:
        monkeypatch.delitem(sys.modules, name)
    import tomllib

    from quickstart import client_app, server_app  # type: ignore[import-not-found]

    config = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    grid = Loopback(client_app.app, partitions(config["clients"]))
    for context in grid.contexts.values():
        context.run_config = config
    torch.manual_seed(0)
    server_app.app(grid, Context(1, 1, {}, RecordDict(), config))
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("round")]
    accuracies = [float(line.rpartition(" ")[2]) for line in said]
    assert len(accuracies) == config["num-server-rounds"] + 1
    assert accuracies[-1] > accuracies[0] + 0.2


@pytest.mark.parametrize(
    ("settings", "network"),
    [({"server": "momentum"}, model()), ({"algorithm": "fedprox"}, model()), ({}, nn.Linear(2, 3))],
    ids=["server", "algorithm", "model"],
)
def test_a_checkpoint_of_something_else_is_refused(
    settings: dict[str, Any], network: nn.Module, tmp_path: Path
) -> None:
    path = tmp_path / "run.safetensors"
    grid = Loopback(make_app(), partitions(CLIENTS))
    start(AlgorithmStrategy(model(), "fedga", clients=CLIENTS, checkpoint=path), grid, rounds=1)
    with pytest.raises(FedGAError, match="is the checkpoint of another model or of other settings"):
        AlgorithmStrategy(network, **{"algorithm": "fedga", "clients": CLIENTS, "checkpoint": path, **settings})


def test_a_checkpoint_of_version_0_1_continues_where_the_algorithm_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    settings: dict[str, Any] = {"active": 3, "server": "momentum", "server_average": 0.3}
    strategy = AlgorithmStrategy(model(), "fedga", clients=CLIENTS, checkpoint=path, **settings)
    start(strategy, Loopback(make_app(), partitions(CLIENTS)), rounds=2)
    [state] = read_states(path).values()
    write_states(path, {"fd26c1a3a7518e01-90cee013ef965d02": state})  # as 0.1 named this model and these settings
    again = AlgorithmStrategy(model(), "fedga", clients=CLIENTS, checkpoint=path, **settings)
    assert again.engine.round == 2
    assert torch.equal(again.engine.stack.params, strategy.engine.stack.params)
    for algorithm in (make_algorithm("fedga"), "fedprox"):
        with pytest.raises(FedGAError, match="is the checkpoint of another model"):
            AlgorithmStrategy(model(), algorithm, clients=CLIENTS, checkpoint=path, **settings)


def test_more_nodes_than_clients_are_left_out() -> None:
    grid = Loopback(make_app(introduces=False), partitions(CLIENTS))
    start(AlgorithmStrategy(model(), clients=4), grid, rounds=2)
    assert len(set(drawn(grid))) == 4


def test_a_round_needs_no_more_replies_than_clients_are_asked() -> None:
    strategy = AlgorithmStrategy(model(), "fedavg", clients=CLIENTS, active=4, availability="0.2")
    grid = Loopback(make_app(), partitions(CLIENTS))
    result = start(strategy, grid)
    assert strategy.engine.round == 3
    assert len(drawn(grid)) < 2 * 3  # half of the active ones, in every round
    assert result.arrays.to_torch_state_dict()["bias"].min() > 0


def test_scaffold_is_refused_adam() -> None:
    with pytest.raises(FedGAError, match="optimizer adam does not go with SCAFFOLD"):
        AlgorithmStrategy(model(), "scaffold", clients=CLIENTS, optimizer="adam")
