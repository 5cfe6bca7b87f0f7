"""The tabular study: its balanced weights, its sites and its differences, without the table itself."""

from __future__ import annotations

import numpy as np
import pytest
import tabular
import torch
import torch.nn.functional as F
from scipy import stats
from sklearn.utils.class_weight import compute_class_weight

from fedga.algorithms.base import Batch


def test_balanced_weights_are_scikit_learns() -> None:
    torch.manual_seed(0)
    targets = torch.tensor([0, 0, 0, 0, 1, 1, 3])  # of class 2 the site has nothing
    logits = torch.randn(7, 4)
    batch = Batch(logits, targets, torch.ones(7), torch.bincount(targets, minlength=4).float())
    weights = compute_class_weight("balanced", classes=np.array([0, 1, 3]), y=targets.numpy())
    losses = tabular.BalancedFedAvg().local_loss(batch)
    plain = F.cross_entropy(logits, targets, reduction="none")
    by_class = dict(zip((0, 1, 3), weights.tolist(), strict=True))
    torch.testing.assert_close(losses / plain, torch.tensor([by_class[label] for label in targets.tolist()]))
    assert by_class[0] < 1 < by_class[3]


def test_every_row_has_one_site() -> None:
    targets = np.random.default_rng(0).permutation(np.repeat(np.arange(5), [400, 60, 20, 30, 40]))
    sites, federation = tabular.deal(targets, alpha=0.5, seed=3)
    for site in range(tabular.SITES):
        assert sorted(np.flatnonzero(sites == site)) == sorted(federation.client(site))
        assert np.bincount(targets[sites == site], minlength=5).tolist() == federation.class_counts[site].tolist()


def test_scores_of_known_answers() -> None:
    scores = tabular.scores_of(np.array([0, 0, 0, 0, 1, 1]), np.array([0, 0, 0, 1, 0, 1]))
    assert scores["recalls"] == [0.75, 0.5]
    assert (scores["balanced"], scores["worst"]) == (0.625, 0.5)
    assert scores["accuracy"] == pytest.approx(4 / 6)


def test_the_interval_is_that_of_a_paired_t_test() -> None:
    ours, others = [0.7, 0.8, 0.75, 0.9, 0.6], [0.6, 0.75, 0.7, 0.7, 0.65]
    low, high = stats.ttest_rel(ours, others).confidence_interval(0.95)
    assert tabular.difference(ours, others) == f"+0.070 [{low:+.3f}, {high:+.3f}]"
