"""A class for every pixel: DenseGALoss in place of CrossEntropyLoss(ignore_index=255), in a federation of four sites.

A picture is a scene of two of scikit-learn's digits. A pixel's class is the digit whose ink it is, 10 for paper; the
rim of every stroke is marked 255, as annotators do where they are not sure. Every site lacks several digits.
"""

import copy

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from fedga import DenseGALoss, ErrorAsymmetry

SITES, ROUNDS, STEPS, PAPER, UNSURE = 4, 15, 10, 10, 255

torch.set_num_threads(1)
random = np.random.default_rng(0)
digits = load_digits()
for_sites = np.arange(len(digits.target)) < 1200  # the rest is for testing


def scenes(number, shares, source):
    """Pictures [number, 1, 8, 16] and masks [number, 8, 16]."""
    weights = shares[digits.target] * source
    chosen = random.choice(len(digits.target), (number, 2), p=weights / weights.sum())
    ink = digits.images[chosen]  # [number, 2, 8, 8], from 0 to 16
    masks = np.where(ink >= 8, digits.target[chosen][:, :, None, None], np.where(ink >= 3, UNSURE, PAPER))

    ink, masks = (torch.from_numpy(np.concatenate([x[:, 0], x[:, 1]], axis=2)) for x in (ink, masks))
    return ink.float().unsqueeze(1) / 16, masks.long()


sites = [scenes(200, random.dirichlet(np.full(10, 0.3)), for_sites) for _ in range(SITES)]
test_pictures, test_masks = scenes(300, np.ones(10), ~for_sites)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 64, 9, padding=4), nn.ReLU(), nn.Conv2d(64, 11, 1))


def train(aligned):
    model = network()
    for _ in range(ROUNDS):
        states = []
        for pictures, masks in sites:
            pixels = torch.bincount(masks[masks != UNSURE], minlength=11)
            criterion = (
                DenseGALoss(pixels, ignore_index=UNSURE) if aligned else nn.CrossEntropyLoss(ignore_index=UNSURE)
            )
            local = copy.deepcopy(model)
            optimizer = torch.optim.Adam(local.parameters(), lr=5e-3)
            for _ in range(STEPS):
                batch = torch.randint(len(pictures), (16,))
                optimizer.zero_grad()
                criterion(local(pictures[batch]), masks[batch]).backward()
                optimizer.step()
            states.append(local.state_dict())
        model.load_state_dict({name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]})
    with torch.no_grad():
        return model(test_pictures)


print("class                  ", *(f"{name!s:>6}" for name in (*range(10), "paper")))
for name, aligned in (("CrossEntropyLoss", False), ("DenseGALoss", True)):
    logits = train(aligned)
    asymmetry = ErrorAsymmetry(11, ignore_index=UNSURE, from_logits=True)(logits, test_masks)
    right = logits.argmax(1) == test_masks
    recall = [right[test_masks == label].float().mean().item() for label in range(11)]
    print(name)
    print("  pixels found         ", *(f"{x:6.2f}" for x in recall))
    print("  error asymmetry      ", *(f"{x:6.2f}" for x in asymmetry.tolist()))
