"""Error asymmetry over batches, as torchmetrics, and its picture.

A network learns from 563 digits, of which five classes are rare. The metrics add up over the batches of the test data,
beside torchmetrics' own, and one line draws error_asymmetry.png.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from fedga import EARatio, ErrorAsymmetry

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
inputs = torch.from_numpy(digits.data).float() / 16
targets = torch.from_numpy(digits.target).long()
train, test = torch.arange(len(targets)).split([1000, len(targets) - 1000])
common = targets[train] < 5
train = torch.cat([train[common], train[~common][:60]])  # of the digits 5 to 9 a dozen each

model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for _ in range(30):
    for batch in train[torch.randperm(len(train))].split(32):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[batch]), targets[batch]).backward()
        optimizer.step()

metrics = MetricCollection(
    {
        "accuracy": MulticlassAccuracy(10, average="micro"),
        "error asymmetry": ErrorAsymmetry(10, class_names=[str(name) for name in digits.target_names]),
        "EA ratio": EARatio(10),
    }
)
for batch_inputs, batch_targets in DataLoader(TensorDataset(inputs[test], targets[test]), batch_size=64):
    with torch.no_grad():
        metrics.update(model(batch_inputs).softmax(-1), batch_targets)

values = metrics.compute()
print(f"accuracy {values['accuracy']:.3f}, EA ratio {values['EA ratio']:.1f}; 1 is fair, above 1 a class is missed:")
for digit, asymmetry in enumerate(values["error asymmetry"].tolist()):
    count = int((targets[train] == digit).sum())
    print(f"  digit {digit}, {count:3} samples to learn from: {asymmetry:5.2f} {'#' * round(10 * asymmetry)}")

figure, _ = metrics["error asymmetry"].plot()
figure.savefig("error_asymmetry.png")
print("the picture is error_asymmetry.png")
