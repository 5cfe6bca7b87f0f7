"""GALoss in place of cross-entropy, and what it does to the error asymmetry of four unequal classes.

Needs nothing but fedga. The data are made up: four overlapping clouds of 600, 200, 60 and 20 points.
"""

import torch
from torch import nn

import fedga

torch.manual_seed(0)
torch.set_num_threads(1)  # small tensors: more threads only cost
counts = torch.tensor([600, 200, 60, 20])
centres = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])


def clouds(samples):
    targets = torch.repeat_interleave(torch.arange(4), samples)
    return centres[targets] + 0.8 * torch.randn(len(targets), 2), targets


inputs, targets = clouds(counts)
test_inputs, test_targets = clouds(torch.tensor([500, 500, 500, 500]))

for criterion in (
    nn.CrossEntropyLoss(),  # before
    fedga.GALoss(counts),  # after: how many samples of each class there are
):
    model = nn.Linear(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(500):
        optimizer.zero_grad()
        criterion(model(inputs), targets).backward()
        optimizer.step()

    with torch.no_grad():
        probs = model(test_inputs).softmax(-1)
    print(type(criterion).__name__)
    print("  class                  0      1      2      3")
    print("  error asymmetry   ", *(f"{value:6.2f}" for value in fedga.error_asymmetry(probs, test_targets)))
    print(
        "  accuracy          ", *(f"{value:6.2f}" for value in fedga.class_accuracy(probs.argmax(-1), test_targets, 4))
    )
    print(f"  largest over smallest asymmetry: {fedga.ea_ratio(probs, test_targets):.1f}")
