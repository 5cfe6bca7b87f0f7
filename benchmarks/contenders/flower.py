"""Flower's simulation engine: one Ray actor per core, FedAvg of its Message API; the strategy waits between rounds."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import cache

import networks
import torch
import torch.nn.functional as F
import work
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor, nn
from turns import Stop, Turns

NEVER = 10**6
ONE_CORE = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}


@cache
def actor_data(model: str) -> work.Data:
    """Read once in every actor, not once for every client."""
    torch.set_num_threads(1)
    return work.load_data(model)


def train(network: nn.Module, inputs: Tensor, targets: Tensor, rate: float) -> None:
    optimizer = torch.optim.SGD(network.parameters(), rate, work.MOMENTUM)
    for _ in range(work.EPOCHS):
        for part in torch.randperm(len(targets)).split(work.BATCH):
            optimizer.zero_grad()
            F.cross_entropy(network(inputs[part]), targets[part]).backward()
            optimizer.step()


def make_client_app(model: str) -> ClientApp:
    app = ClientApp()

    @app.train()
    def fit(message: Message, context: Context) -> Message:
        data, network = actor_data(model), networks.NETWORKS[model]()
        network.load_state_dict(message.content["arrays"].to_torch_state_dict())
        inputs, targets = networks.client_tensors(data, int(context.node_config["partition-id"]))
        train(network, inputs, targets, work.RATES[model])
        content = {
            "arrays": ArrayRecord(network.state_dict()),
            "metrics": MetricRecord({"num-examples": len(targets)}),
        }
        return Message(content=RecordDict(content), reply_to=message)

    return app


class HeldFedAvg(FedAvg):
    def __init__(self, model: str, turns: Turns) -> None:
        share = work.ACTIVE / work.CLIENTS
        super().__init__(fraction_train=share, fraction_evaluate=0.0, min_available_nodes=work.CLIENTS)
        self.data, self.network, self.turns = work.load_data(model), networks.build(model), turns

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        def accuracy() -> float:
            self.network.load_state_dict(arrays.to_torch_state_dict())
            return networks.accuracy(self.data, self.network)

        self.turns.wait(accuracy)
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Flower goes on with the clients that answered; a round with fewer would be less work."""
        replies = list(replies)
        failures = [str(reply.error.reason) for reply in replies if reply.has_error()]
        if failures or len(replies) < work.ACTIVE:
            raise RuntimeError(f"{len(replies)} clients answered, of which {len(failures)} failed: {failures[:1]}")
        return super().aggregate_train(server_round, replies)


def make_server_app(model: str, turns: Turns) -> ServerApp:
    app = ServerApp()

    @app.main()
    def run(grid: Grid, context: Context) -> None:
        strategy = HeldFedAvg(model, turns)
        try:
            strategy.start(grid, ArrayRecord(networks.build(model).state_dict()), num_rounds=NEVER)
        except Stop:
            return

    return app


def main(model: str) -> None:
    os.environ |= {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    turns = Turns("flwr", "ray", "torch")
    run_simulation(make_server_app(model, turns), make_client_app(model), work.CLIENTS, backend_config=ONE_CORE)


if __name__ == "__main__":
    from contenders import flower  # under a name by which Ray's actors can import it

    flower.main(sys.argv[1])
