"""Weights of classes, focal loss and balanced softmax against their formulas, and where others' versions fail."""

from __future__ import annotations

from math import log
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedga import balanced_softmax_loss, class_weights, focal_loss
from fedga.errors import FedGAError

EXACT = {"rtol": 1e-12, "atol": 1e-12}
COUNTS = torch.tensor([31.0, 0.0, 4.0, 1.0, 0.0, 500.0], dtype=torch.float64)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- weights ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [{}, {"power": 0.5}, {"power": 0.0}, {"beta": 0.99}, {"beta": 0.9999}, {"beta": 0.0}])
def test_the_mean_weight_of_the_samples_is_1_whatever_is_missing(kind: dict[str, float]) -> None:
    """Scaled over all classes, as elsewhere, it would be the share of classes that are there: another learning rate."""
    weights = class_weights(COUNTS, **kind)
    assert (weights * COUNTS).sum() / COUNTS.sum() == pytest.approx(1, abs=1e-12)
    assert ((weights > 0) == (COUNTS > 0)).all()
    alone = class_weights(COUNTS[COUNTS > 0], **kind)
    torch.testing.assert_close(weights[COUNTS > 0], alone, **EXACT)
    stacked = class_weights(torch.stack([COUNTS, COUNTS.flip(0)])[:, None], **kind)
    torch.testing.assert_close(stacked, torch.stack([weights, weights.flip(0)])[:, None], **EXACT)


def test_weights_are_inverse_frequencies_or_inverse_effective_numbers() -> None:
    present = COUNTS[COUNTS > 0].tolist()
    for kind, of in (
        ({}, lambda n: 1 / n),
        ({"power": 0.5}, lambda n: n**-0.5),
        ({"beta": 0.9}, lambda n: (1 - 0.9) / (1 - 0.9**n)),
    ):
        found = class_weights(COUNTS, **kind)[COUNTS > 0]
        wanted = torch.tensor([of(n) for n in present], dtype=torch.float64)
        torch.testing.assert_close(found / found[0], wanted / wanted[0], **EXACT)


def test_effective_numbers_lie_between_no_weights_and_inverse_frequency() -> None:
    assert class_weights(COUNTS, beta=0.0)[COUNTS > 0].tolist() == [1, 1, 1, 1]
    torch.testing.assert_close(class_weights(COUNTS, beta=1 - 1e-12), class_weights(COUNTS), rtol=1e-6, atol=0)
    single = class_weights(COUNTS.float(), beta=1 - 1e-7)  # 1 - β^n is below the resolution of float32
    torch.testing.assert_close(single, class_weights(COUNTS).float(), rtol=1e-4, atol=0)


def test_equal_counts_weigh_exactly_1() -> None:
    for n in (1, 3, 6, 7, 49):
        assert class_weights([n, 0, n, n]).tolist() == [1, 0, 1, 1]


@pytest.mark.parametrize(
    ("counts", "kind", "words"),
    [
        ([0, 0], {}, "class_counts are all 0"),
        ([1, -1], {}, "class_counts must be finite and not negative"),
        ([1, 2], {"beta": 1.0}, "beta must be from 0 up to and below 1, but is 1.0"),
        ([1, 2], {"power": -1.0}, "power must be a number from 0 up, but is -1.0"),
    ],
)
def test_bad_weights(counts: Any, kind: dict[str, float], words: str) -> None:
    with pytest.raises(FedGAError, match=words):
        class_weights(counts, **kind)


# --- focal loss ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0, 5.0])
def test_focal_gradient(gamma: float) -> None:
    """``(p_k - 1{k = y}) w_y [ (1 - p)^γ - γ p (1 - p)^(γ - 1) log p ]``, p that of the true class."""
    logits, targets, weight = (3 * random(40, 5)).requires_grad_(), torch.arange(40) % 5, torch.arange(1.0, 6.0)
    loss = focal_loss(logits, targets, gamma=gamma, weight=weight, reduction="none")
    (found,) = torch.autograd.grad(loss.sum(), logits)
    p = logits.detach().softmax(-1)
    p_y = p.gather(-1, targets[:, None])
    factor = (1 - p_y) ** gamma - gamma * p_y * (1 - p_y) ** (gamma - 1) * p_y.log()
    expected = weight[targets, None] * factor * (p - F.one_hot(targets, 5))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(loss, -weight[targets] * ((1 - p_y) ** gamma * p_y.log())[:, 0], **EXACT)


def test_focal_loss_learns_faster_than_cross_entropy_where_it_is_wrong() -> None:
    logits = torch.tensor([[log(0.1), log(0.9)]], dtype=torch.float64, requires_grad=True)
    target = torch.tensor([0])
    slope, plain = (
        torch.autograd.grad(loss, logits)[0][0, 0]
        for loss in (focal_loss(logits, target), F.cross_entropy(logits, target))
    )
    assert slope / plain == pytest.approx(0.9**2 - 2 * 0.1 * 0.9 * log(0.1))
    assert slope / plain > 1.2


@pytest.mark.parametrize("gamma", [0.0, 0.3, 0.5, 1.0, 2.0])
def test_focal_loss_of_a_certain_sample_is_finite_and_has_its_digits(gamma: float) -> None:
    """A power below 1 has an infinite slope at 0, and 1 - p by subtraction has no digits left in float32."""
    logits = torch.tensor([[200.0, 0.0], [60.0, 0.0], [12.0, 0.0], [-200.0, 0.0]], requires_grad=True)
    targets = torch.zeros(4, dtype=torch.long)
    loss = focal_loss(logits, targets, gamma=gamma, reduction="none")
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert gradient.isfinite().all()
    assert gradient[:2].abs().max() < 1e-9
    plain = F.cross_entropy(logits.detach(), targets, reduction="none").double()
    torch.testing.assert_close(loss[2:].double(), ((-torch.expm1(-plain)) ** gamma * plain)[2:], rtol=1e-5, atol=0)


# --- balanced softmax ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [0.0, 0.5, 1.0])
def test_balanced_softmax_is_cross_entropy_of_logits_with_the_log_of_the_shares(tau: float) -> None:
    logits, targets = random(12, 6), torch.arange(12) % 6
    shares = (COUNTS + 1) / (COUNTS + 1).sum()
    expected = F.cross_entropy(logits + tau * shares.log(), targets)
    torch.testing.assert_close(balanced_softmax_loss(logits, targets, COUNTS, tau=tau), expected, **EXACT)


def test_balanced_softmax_leaves_the_prior_to_the_counts() -> None:
    """Where the logits say nothing its model of the labels is the shares: fitting them takes no logit."""
    logits = torch.zeros(536, 6, dtype=torch.float64, requires_grad=True)
    targets = torch.repeat_interleave(torch.arange(6), COUNTS.long())
    (gradient,) = torch.autograd.grad(balanced_softmax_loss(logits, targets, COUNTS), logits)
    (plain,) = torch.autograd.grad(F.cross_entropy(logits, targets), logits)
    assert gradient.sum(0).abs().max() < 0.02
    assert plain.sum(0).abs().max() > 0.5


def test_classes_and_counts_must_agree() -> None:
    with pytest.raises(FedGAError, match="class_counts must have one entry per class"):
        balanced_softmax_loss(torch.zeros(2, 3), torch.zeros(2).long(), [1, 2])
    with pytest.raises(FedGAError, match="targets must be class indices"):
        focal_loss(torch.zeros(2, 3), torch.zeros(2))
    with pytest.raises(FedGAError, match="unknown reduction 'meen': did you mean 'mean'"):
        focal_loss(torch.zeros(2, 3), torch.zeros(2).long(), reduction="meen")  # type: ignore[arg-type]
