"""A federated loop in plain PyTorch, with cross-entropy and with GALoss: one line differs.

Twenty clients hold skewed classes of scikit-learn's digits (Dirichlet, alpha = 0.1): most lack several classes.
"""

import copy

import torch
from torch import nn

from fedga import GALoss, class_accuracy, forgetting
from fedga.data import load_dataset, make_federation

CLIENTS, ACTIVE, ROUNDS, EPOCHS, BATCH, RATE = 20, 5, 60, 2, 16, 0.2

torch.set_num_threads(1)  # the network is small
digits = load_dataset("digits")
federation = make_federation(digits, clients=CLIENTS, seed=0, alpha=0.1)
inputs = torch.from_numpy(digits.train_inputs).float().flatten(1) / digits.input_scale
targets = torch.from_numpy(digits.train_targets).long()
test_inputs = torch.from_numpy(digits.test_inputs).float().flatten(1) / digits.input_scale
test_targets = torch.from_numpy(digits.test_targets).long()


def recalls(model):
    with torch.no_grad():
        return class_accuracy(model(test_inputs).argmax(-1), test_targets, 10)


def train_locally(model, places, criterion):
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for _ in range(EPOCHS):
        for batch in places[torch.randperm(len(places))].split(BATCH):
            optimizer.zero_grad()
            loss = criterion(model(inputs[batch]), targets[batch])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()


def train(aligned):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    after_rounds, lost_on_missing = [], []
    before = recalls(model)
    for _ in range(ROUNDS):
        states, sizes = [], []
        for client in torch.randperm(CLIENTS)[:ACTIVE].tolist():
            places = torch.from_numpy(federation.client(client))
            class_counts = torch.from_numpy(federation.class_counts[client])
            criterion = GALoss(class_counts) if aligned else nn.CrossEntropyLoss()  # the line that differs
            local = copy.deepcopy(model)
            train_locally(local, places, criterion)
            lost_on_missing.append(forgetting(before, recalls(local), class_counts).missing)
            states.append(local.state_dict())
            sizes.append(len(places))
        shares = torch.tensor(sizes) / sum(sizes)
        model.load_state_dict(
            {name: sum(w * state[name] for w, state in zip(shares, states, strict=True)) for name in states[0]}
        )
        before = recalls(model)
        after_rounds.append(before)
    return torch.stack(after_rounds), torch.stack(lost_on_missing).nanmean()


print(f"{'recall over the classes':28}{'all rounds':>12}{'last round':>12}{'worst class':>13}   a client's round takes")
for name, aligned in (("FedAvg, cross-entropy", False), ("FedGA, GALoss(class_counts)", True)):
    recall, lost = train(aligned)
    print(
        f"{name:28}{recall.mean():12.3f}{recall[-1].mean():12.3f}{recall[-1].min():13.3f}"
        f"   {100 * lost:.0f} points from the classes it lacks"
    )
