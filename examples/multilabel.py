"""Several labels per sample: MultilabelGALoss in place of BCEWithLogitsLoss, in a federation of four sites.

A sample is four of scikit-learn's digits side by side, its labels the digits that occur. Every site's pages favour
some digits and lack others, and one in ten labels was never entered (-1).
"""

import copy

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from fedga import MultilabelGALoss, multilabel_class_counts, multilabel_error_asymmetry

SITES, ROUNDS, STEPS = 4, 20, 20

torch.set_num_threads(1)
random = np.random.default_rng(0)
digits = load_digits()
images = torch.from_numpy(digits.data).float() / 16
for_sites = np.arange(len(images)) < 1200  # the rest is for testing


def pages(number, shares, source, unknown=0.0):
    """Inputs [number, 4 x 64] and targets [number, 10] of 0, 1 and -1."""
    weights = shares[digits.target] * source
    chosen = torch.from_numpy(random.choice(len(images), (number, 4), p=weights / weights.sum()))
    targets = torch.zeros(number, 10).scatter_(1, torch.from_numpy(digits.target)[chosen].long(), 1.0)
    targets[torch.from_numpy(random.random((number, 10)) < unknown)] = -1
    return images[chosen].flatten(1), targets


sites = [pages(400, random.dirichlet(np.full(10, 0.3)), for_sites, unknown=0.1) for _ in range(SITES)]
test_inputs, test_targets = pages(1000, np.ones(10), ~for_sites)


def cross_entropy_where_known(logits, targets):
    known = targets >= 0
    return nn.functional.binary_cross_entropy_with_logits(logits[known], targets[known])


def train(aligned):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
    for _ in range(ROUNDS):
        states = []
        for inputs, targets in sites:
            criterion = MultilabelGALoss(multilabel_class_counts(targets)) if aligned else cross_entropy_where_known
            local = copy.deepcopy(model)
            optimizer = torch.optim.Adam(local.parameters(), lr=1e-3)
            for _ in range(STEPS):
                batch = torch.randint(len(inputs), (64,))
                optimizer.zero_grad()
                criterion(local(inputs[batch]), targets[batch]).backward()
                optimizer.step()
            states.append(local.state_dict())
        model.load_state_dict({name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]})
    with torch.no_grad():
        return model(test_inputs).sigmoid()


print("digit                                  ", *(f"{digit:6}" for digit in range(10)))
few = torch.stack([(targets > 0).float().mean(0) < 0.05 for _, targets in sites]).sum(0)
print("sites with it on under 5 % of the pages", *(f"{count:6}" for count in few.tolist()))
for name, aligned in (("BCEWithLogitsLoss", False), ("MultilabelGALoss", True)):
    probs = train(aligned)
    found = (((probs > 0.5) & (test_targets > 0)).sum(0) / (test_targets > 0).sum(0)).tolist()
    alarms = (((probs > 0.5) & (test_targets == 0)).sum(0) / (test_targets == 0).sum(0)).tolist()
    print(name)
    asymmetry = multilabel_error_asymmetry(probs, test_targets).tolist()
    print("  error asymmetry, 1 is fair           ", *(f"{x:6.1f}" for x in asymmetry))
    print("  found where it is                    ", *(f"{x:6.2f}" for x in found))
    print("  found where it is not                ", *(f"{x:6.2f}" for x in alarms))
