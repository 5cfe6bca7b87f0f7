"""GALoss in a Flower client: a whole Flower app in one file, FedAvg strategy and all, in which one line differs.

Five clients hold skewed classes of scikit-learn's digits. Class counts never leave a client: what is sent is the model,
as before. Flower's simulation takes some seconds to start. For an app of several files, with fedga's own strategies,
see flower-quickstart.
"""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

from fedga import GALoss
from fedga.data import load_dataset, make_federation

CLIENTS, ROUNDS = 5, 4
client_app, server_app = ClientApp(), ServerApp()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


@client_app.train()
def train(message: Message, context: Context) -> Message:
    digits = load_dataset("digits")
    client = context.node_config["partition-id"]
    federation = make_federation(digits, clients=CLIENTS, seed=0, alpha=0.1)
    places = torch.from_numpy(federation.client(client))
    inputs = torch.from_numpy(digits.train_inputs).float() / digits.input_scale
    targets = torch.from_numpy(digits.train_targets).long()

    criterion = GALoss(federation.class_counts[client])  # was: nn.CrossEntropyLoss()

    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for _ in range(2):
        for batch in places[torch.randperm(len(places))].split(16):
            optimizer.zero_grad()
            loss = criterion(model(inputs[batch]), targets[batch])
            loss.backward()
            optimizer.step()
    metrics = MetricRecord({"loss": loss.item(), "num-examples": len(places)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    strategy = FedAvg(fraction_evaluate=0.0)
    strategy.start(grid, ArrayRecord(network().state_dict()), num_rounds=ROUNDS, evaluate_fn=evaluate)


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    digits = load_dataset("digits")
    model = network()
    model.load_state_dict(arrays.to_torch_state_dict())
    with torch.no_grad():
        predicted = model(torch.from_numpy(digits.test_inputs).float() / digits.input_scale).argmax(-1)
    accuracy = (predicted == torch.from_numpy(digits.test_targets)).float().mean().item()
    print(f"round {server_round}: accuracy {accuracy:.3f}", flush=True)
    return MetricRecord({"accuracy": accuracy})


if __name__ == "__main__":
    one_at_a_time = {"client_resources": {"num_cpus": 2}, "init_args": {"num_cpus": 2, "include_dashboard": False}}
    run_simulation(server_app, client_app, num_supernodes=CLIENTS, backend_config=one_at_a_time)
