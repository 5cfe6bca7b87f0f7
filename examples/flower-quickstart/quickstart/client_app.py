"""The ClientApp, as in Flower's quick start for PyTorch; what fedga changes is marked."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedga import GALoss
from fedga.flower import introduce
from quickstart.task import Net, load_client, train

app = ClientApp()
app.query("introduce")(introduce)  # optional: the same seed then draws the same clients


@app.train()
def fit(message: Message, context: Context) -> Message:
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    batches, class_counts = load_client(context.node_config["partition-id"], context.run_config["clients"])
    criterion = GALoss(class_counts)  # was: torch.nn.CrossEntropyLoss()
    loss = train(net, batches, criterion, context.run_config["local-epochs"], message.content["config"]["lr"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(batches.dataset)})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)
