"""Error asymmetry and forgetting against their definitions, written as loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedga.errors import FedGAError
from fedga.measures.asymmetry import (
    asymmetry_from_means,
    binary_error_asymmetry,
    class_accuracy,
    ea_ratio,
    error_asymmetry,
    errors_from_means,
    forgetting,
    mean_predictions,
    ratio_of,
)

NAN, INF = math.nan, math.inf


def draw(seed: int, samples: int, classes: int) -> tuple[Tensor, Tensor]:
    """Probabilities [samples, classes] in float64 and targets [samples], often without some of the classes."""
    g = torch.Generator().manual_seed(seed)
    probs = (3 * torch.randn(samples, classes, generator=g, dtype=torch.float64)).softmax(-1)
    held = torch.randint(0, classes, (classes,), generator=g)
    return probs, held[torch.randint(0, classes, (samples,), generator=g)]


problems = st.builds(draw, st.integers(0, 2**31), st.integers(1, 30), st.integers(1, 6))


def by_definition(probs: Tensor, targets: Tensor) -> list[float]:
    """EA(i) = (1 - P[i, i]) / sum_{j != i} P[j, i], class by class."""
    present = sorted(set(targets.tolist()))

    def mean(i: int, j: int) -> float:
        return probs[targets == j, i].mean().item()

    def one(i: int) -> float:
        others = [mean(i, j) for j in present if j != i]
        return (1 - mean(i, i)) / sum(others) if i in present and others else NAN

    return [one(i) for i in range(probs.shape[1])]


@given(problems)
@settings(max_examples=100, deadline=None)
def test_error_asymmetry_is_its_definition(problem):
    probs, targets = problem
    expected = torch.tensor(by_definition(probs, targets), dtype=torch.float64)
    ea = error_asymmetry(probs, targets)
    torch.testing.assert_close(ea, expected, equal_nan=True)
    defined = expected[~expected.isnan()]
    ratio = ea_ratio(probs, targets, probs.shape[1])
    if len(defined):
        torch.testing.assert_close(ratio, defined.max() / defined.min())
        assert ratio >= 1
    else:
        assert ratio.isnan()
    torch.testing.assert_close(
        error_asymmetry(probs.float(), targets), expected.float(), equal_nan=True, rtol=1e-3, atol=1e-4
    )


def test_probabilities_a_little_above_one_miss_nothing():
    """As rounded ones are, which are accepted: their error asymmetry is 0, not below."""
    probs, targets = torch.tensor([[1.005, 0.0], [0.5, 0.5]]), torch.tensor([0, 1])
    assert error_asymmetry(probs, targets).tolist() == [0, INF]
    assert ea_ratio(probs, targets) == INF


@given(problems, st.randoms())
@settings(max_examples=30, deadline=None)
def test_order_and_repetition_of_samples_do_not_matter(problem, random):
    probs, targets = problem
    order = list(range(len(targets))) * 2
    random.shuffle(order)
    torch.testing.assert_close(
        error_asymmetry(probs[order], targets[order]), error_asymmetry(probs, targets), equal_nan=True
    )


def test_mean_predictions_and_stacks_of_them():
    drawn = [draw(seed, 12, 4) for seed in range(5)]
    stacked = mean_predictions(torch.stack([p for p, _ in drawn]), torch.stack([y for _, y in drawn]))
    for means, (probs, targets) in zip(stacked, drawn, strict=True):
        torch.testing.assert_close(means, mean_predictions(probs, targets), equal_nan=True)
        for j in range(4):
            expected = probs[targets == j].mean(0)
            torch.testing.assert_close(means[j], expected, equal_nan=True)
    each = torch.stack([error_asymmetry(p, y) for p, y in drawn])
    assert each.isnan().any()
    torch.testing.assert_close(asymmetry_from_means(stacked), each, equal_nan=True)
    torch.testing.assert_close(ratio_of(each), torch.stack([ea_ratio(p, y) for p, y in drawn]), equal_nan=True)
    torch.testing.assert_close(asymmetry_from_means(stacked.reshape(5, 1, 4, 4)), each.reshape(5, 1, 4), equal_nan=True)


def test_one_set_of_targets_serves_many_models():
    probs = torch.stack([draw(seed, 12, 4)[0] for seed in range(3)])
    targets = draw(0, 12, 4)[1]
    torch.testing.assert_close(
        mean_predictions(probs, targets), torch.stack([mean_predictions(p, targets) for p in probs]), equal_nan=True
    )


def test_half_precision_is_averaged_in_float32():
    probs = torch.full((5000, 2), 0.5, dtype=torch.float16)
    means = mean_predictions(probs, torch.arange(5000) % 2)
    assert means.dtype == torch.float32
    torch.testing.assert_close(means, torch.full((2, 2), 0.5))


def test_an_unbiased_model_has_asymmetry_one():
    """A symmetric P with rows that sum to 1: what is missed of a class is what others are taken for it."""
    means = torch.tensor([[0.7, 0.2, 0.1], [0.2, 0.5, 0.3], [0.1, 0.3, 0.6]])
    torch.testing.assert_close(asymmetry_from_means(means), torch.ones(3))
    torch.testing.assert_close(ratio_of(asymmetry_from_means(means)), torch.tensor(1.0))


def test_undefined_and_infinite():
    # Perfect on every class: 0 / 0.
    assert asymmetry_from_means(torch.eye(3)).isnan().all()
    # Only one class has samples: there is nothing to raise a false alarm.
    missed, false_alarm = errors_from_means(torch.tensor([[0.75, 0.25], [NAN, NAN]]))
    torch.testing.assert_close(missed, torch.tensor([0.25, NAN]), equal_nan=True)
    torch.testing.assert_close(false_alarm, torch.tensor([NAN, 0.25]), equal_nan=True)
    assert ea_ratio(torch.tensor([[0.75, 0.25]]), torch.tensor([0])).isnan()
    # Everything is predicted as class 0: never missed, so EA 0; class 1 is never a false alarm, so EA infinity.
    torch.testing.assert_close(asymmetry_from_means(torch.tensor([[1.0, 0.0], [1.0, 0.0]])), torch.tensor([0.0, INF]))


@pytest.mark.parametrize(
    ("ea", "expected"),
    [
        ([2.0, 0.5, NAN], 4.0),
        ([3.0, NAN, NAN], 1.0),
        ([NAN, NAN], NAN),
        ([0.0, 1.0], INF),
        ([1.0, INF], INF),
        ([0.0, INF], INF),
        ([0.0, 0.0], NAN),
        ([INF, INF], NAN),
    ],
)
def test_ratio(ea, expected):
    torch.testing.assert_close(ratio_of(torch.tensor(ea)), torch.tensor(expected), equal_nan=True)


@given(st.integers(0, 2**31), st.integers(2, 40))
@settings(max_examples=50, deadline=None)
def test_binary_is_class_one_of_two(seed, samples):
    probs, targets = draw(seed, samples, 2)
    ea = binary_error_asymmetry(probs[:, 1], targets)
    torch.testing.assert_close(ea, error_asymmetry(probs, targets)[1], equal_nan=True)
    torch.testing.assert_close(binary_error_asymmetry(probs[:, 1], targets.double()), ea, equal_nan=True)


def test_millions_of_samples():
    """In float32 a sum stops growing at 2^24, and a million samples are wrong by percents."""
    rare = torch.zeros(20_000_000, dtype=torch.int8)
    rare[::1000] = 1
    probs = torch.tensor([[0.9, 0.1]])
    means = mean_predictions(probs.expand(len(rare), 2), rare)
    torch.testing.assert_close(means, probs.expand(2, 2), rtol=1e-6, atol=0)
    some = slice(2_000_000)
    ea = error_asymmetry(probs.expand(len(rare), 2)[some], rare[some])
    torch.testing.assert_close(ea, torch.tensor([1 / 9, 9.0]), rtol=2e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_sums_in_parts_are_those_at_once(dtype, monkeypatch):
    probs, targets = draw(1, 50, 4)
    probs, targets = probs.view(5, 10, 4).to(dtype), targets.view(5, 10)
    at_once = mean_predictions(probs, targets)
    monkeypatch.setattr("fedga.measures.asymmetry.AT_ONCE", 3)
    torch.testing.assert_close(mean_predictions(probs, targets), at_once, equal_nan=True)
    assert at_once.dtype == torch.promote_types(dtype, torch.float32)


def test_class_accuracy():
    predictions = torch.tensor([[0, 1, 1, 3], [0, 0, 0, 0]])
    targets = torch.tensor([0, 0, 1, 3])
    expected = torch.tensor([[0.5, 1.0, NAN, 1.0], [1.0, 0.0, NAN, 0.0]])
    torch.testing.assert_close(class_accuracy(predictions, targets, 4), expected, equal_nan=True)
    torch.testing.assert_close(class_accuracy(predictions[1], targets, 4), expected[1], equal_nan=True)


@given(st.integers(0, 2**31), st.integers(1, 5), st.integers(1, 8))
@settings(max_examples=50, deadline=None)
def test_forgetting_is_its_definition(seed, clients, classes):
    g = torch.Generator().manual_seed(seed)
    before, after = torch.rand(2, clients, classes, generator=g, dtype=torch.float64)
    after[torch.rand(clients, classes, generator=g) < 0.1] = NAN
    counts = torch.randint(-3, 9, (clients, classes), generator=g).clamp(min=0)
    lost = forgetting(before, after, counts)
    for k in range(clients):
        mean = sum(counts[k].tolist()) / classes
        groups: dict[str, list[float]] = {"frequent": [], "rare": [], "missing": []}
        for b, a, n in zip(before[k].tolist(), after[k].tolist(), counts[k].tolist(), strict=True):
            if not math.isnan(a):
                groups["missing" if n == 0 else "frequent" if n >= mean else "rare"].append(b - a)
        for name, drops in groups.items():
            expected = sum(drops) / len(drops) if drops else NAN
            assert getattr(lost, name)[k].item() == pytest.approx(expected, nan_ok=True)
    torch.testing.assert_close(lost.per_class, before - after, equal_nan=True)
    alone = forgetting(before[0], after[0], counts[0])
    torch.testing.assert_close(alone.missing, lost.missing[0], equal_nan=True)


def test_forgetting_broadcasts_the_global_model():
    before, after = torch.rand(4), torch.rand(3, 4)
    counts = torch.tensor([[5, 5, 5, 5], [9, 1, 0, 0], [0, 0, 0, 0]])
    lost = forgetting(before, after, counts)
    torch.testing.assert_close(lost.per_class, before - after)
    torch.testing.assert_close(lost.frequent[0], (before - after[0]).mean())
    assert lost.rare[0].isnan()
    assert lost.frequent[2].isnan()
    torch.testing.assert_close(forgetting(before, after, counts.float()).missing, lost.missing, equal_nan=True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: error_asymmetry(torch.rand(4, 3), torch.zeros(4).long(), 5), "has 3 classes, but num_classes is 5"),
        (lambda: error_asymmetry(torch.rand(4, 3), torch.zeros(5).long()), r"must be 4 class indices.*\[5\]"),
        (lambda: error_asymmetry(torch.rand(4, 3), torch.zeros(4)), "integers"),
        (lambda: error_asymmetry(torch.rand(4), torch.zeros(4).long()), r"\[samples, classes\]"),
        (lambda: error_asymmetry(torch.ones(4, 3).long(), torch.zeros(4).long()), "floating point"),
        (lambda: binary_error_asymmetry(torch.rand(4, 1), torch.zeros(4)), r"probs is torch.float32 \[4, 1\]"),
        (lambda: binary_error_asymmetry(torch.tensor([-1.0, 2.0]), torch.tensor([0, 1])), "apply sigmoid to logits"),
        (lambda: class_accuracy(torch.rand(4), torch.zeros(4).long(), 2), "argmax"),
        (lambda: forgetting(torch.rand(3), torch.rand(3), torch.ones(4)), "same number of classes"),
    ],
)
def test_errors(call, message):
    with pytest.raises(FedGAError, match=message):
        call()


def test_arrays_and_lists_are_taken_and_logits_refused() -> None:
    probs, targets = [[1.0, 0.0], [0.5, 0.5], [0.5, 0.5]], [0, 0, 1]
    expected = error_asymmetry(torch.tensor(probs), torch.tensor(targets))
    torch.testing.assert_close(error_asymmetry(probs, targets), expected)  # type: ignore[arg-type]
    torch.testing.assert_close(ea_ratio(np.array(probs), np.array(targets)).float(), expected.max() / expected.min())
    for wrong, words in (([[2.0, -1.0]], "apply softmax"), ([[0.5, 0.6]], "sum to 1"), ([[np.nan, 1.0]], "NaN")):
        with pytest.raises(FedGAError, match=words):
            ea_ratio(np.array(wrong), np.array([0]))
