"""GALoss and the metrics in a Lightning module: what local training does to the classes a client lacks.

The client receives a model that knows all ten digits and trains it for five epochs on its own, mostly 0 to 2, a few 3
to 5, no 6 to 9; once with cross-entropy, once with GALoss.
"""

import copy
import logging
import warnings

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fedga import ClassForgetting, EARatio, GALoss

warnings.filterwarnings("ignore", module="lightning")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.set_num_threads(1)
lightning.seed_everything(0, verbose=False)


class Net(lightning.LightningModule):
    def __init__(self, criterion):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        self.criterion = criterion  # GALoss keeps the counts, which move with the module
        self.ea_ratio = EARatio(10, from_logits=True)

    def training_step(self, batch, _):
        inputs, targets = batch
        return self.criterion(self.layers(inputs), targets)

    def validation_step(self, batch, _):
        inputs, targets = batch
        self.ea_ratio(self.layers(inputs), targets)
        self.log("EA ratio", self.ea_ratio)  # computed over all batches and processes, and reset

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(net, places, epochs):
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(net, DataLoader(TensorDataset(inputs[places], targets[places]), batch_size=16, shuffle=True), test)
    return trainer.callback_metrics["EA ratio"].item()


digits = load_digits()
inputs, targets = torch.from_numpy(digits.data).float() / 16, torch.from_numpy(digits.target).long()
everyone, own, held_out = torch.arange(len(targets)).split([700, 500, len(targets) - 1200])
own = torch.cat([own[targets[own] < 3], own[(targets[own] >= 3) & (targets[own] < 6)][:15]])
class_counts = torch.bincount(targets[own], minlength=10)
test = DataLoader(TensorDataset(inputs[held_out], targets[held_out]), batch_size=128)

received = Net(nn.CrossEntropyLoss())
fit(received, everyone, epochs=20)
print("samples of each digit at the client:", *class_counts.tolist())
for criterion in (nn.CrossEntropyLoss(), GALoss(class_counts)):
    net = copy.deepcopy(received)
    net.criterion = criterion
    ratio = fit(net, own, epochs=5)
    forgotten = ClassForgetting(class_counts)
    for batch, labels in test:
        with torch.no_grad():
            forgotten.update(before=received.layers(batch), after=net.layers(batch), target=labels)
    lost = forgotten.compute()
    print(
        f"{type(criterion).__name__:17} EA ratio {ratio:8.1f}   points of accuracy lost: "
        + ", ".join(f"{kind} classes {100 * lost[kind]:.1f}" for kind in ("frequent", "rare", "missing"))
    )
