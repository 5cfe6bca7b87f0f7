"""The ServerApp, as in Flower's quick start for PyTorch; what fedga changes is marked."""

from __future__ import annotations

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fedga.flower import AlgorithmStrategy
from quickstart.task import Net, load_test, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    net = Net()
    # was: strategy = FedAvg(fraction_train=0.5, fraction_evaluate=0.0)
    strategy = AlgorithmStrategy(
        net, "fedga", clients=config["clients"], active=config["active"], server="momentum", evaluate_clients=False
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(net.state_dict()),
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=config["num-server-rounds"],
        evaluate_fn=evaluate,
    )


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = test(net, load_test())
    print(f"round {server_round}: accuracy {accuracy:.3f}", flush=True)
    return MetricRecord({"loss": loss, "accuracy": accuracy})
