"""The numbers are those of fedga.measures.asymmetry, whatever the site; intervals and bounds hold what they promise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedga import calibrated_labels, class_accuracy, ea_ratio, error_asymmetry
from fedga.diagnosis import Diagnosis, diagnose
from fedga.diagnosis.measure import ratio_limits, stationary_bounds
from tests.diagnosis.made_up import MadeUp, made_up


def diagnosed(data: MadeUp, **keywords: object) -> Diagnosis:
    return diagnose(data.probs, data.labels, data.sites, data.names, **keywords)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("classes", [2, 3, 7])
def test_equals_the_functions_of_the_library(seed: int, classes: int) -> None:
    data = made_up(9000, classes=classes, seed=seed)  # of several batches
    found = diagnosed(data)
    probs, labels = torch.from_numpy(data.probs), torch.from_numpy(data.labels)
    torch.testing.assert_close(torch.from_numpy(found.everywhere.asymmetry), error_asymmetry(probs, labels))
    assert found.ea_ratio == pytest.approx(ea_ratio(probs, labels).item())
    accuracy = class_accuracy(probs.argmax(1), labels, classes)
    np.testing.assert_allclose(found.everywhere.accuracy, accuracy, rtol=1e-6)
    assert found.sites is not None
    for at, site in enumerate(found.site_names):
        here = torch.from_numpy(data.sites == site)
        expected = error_asymmetry(probs[here], labels[here])
        np.testing.assert_allclose(found.sites.asymmetry[at], expected, rtol=1e-9)
        assert found.sites.ratio[at] == pytest.approx(ea_ratio(probs[here], labels[here]).item())
        assert found.sites.predicted[at].tolist() == probs[here].argmax(1).bincount(minlength=classes).tolist()


def test_a_class_without_samples_has_no_numbers() -> None:
    data = made_up(300)
    kept = data.labels != 2
    found = diagnose(data.probs[kept], data.labels[kept])
    assert np.isnan([found.everywhere.asymmetry[2], found.everywhere.accuracy[2], found.everywhere.low[2]]).all()
    assert np.isfinite(found.ea_ratio)


def test_sites_are_in_the_order_of_their_numbers() -> None:
    data = made_up(600, sites=12)
    assert diagnosed(data).site_names == tuple(f"site {number}" for number in range(12))


def test_more_sites_than_there_was_room_for_first() -> None:
    data = made_up(20_000, sites=5000, classes=4)
    found = diagnosed(data)
    assert found.sites is not None
    assert found.sites.samples.sum(1).tolist() == [(data.sites == site).sum() for site in found.site_names]
    alone = diagnose(data.probs, data.labels)  # few enough groups to add all of them up in every batch
    np.testing.assert_allclose(found.everywhere.asymmetry, alone.everywhere.asymmetry, rtol=1e-9)


def test_arrays_that_are_given_stay_as_they_are() -> None:
    data = made_up(9000)
    for dtype in (np.float32, np.float64):
        probs = np.round(data.probs.astype(dtype), 2)  # they do not sum to 1 exactly
        for given in (probs, np.asfortranarray(probs)):
            diagnose(given, data.labels, data.sites)
            np.testing.assert_array_equal(given, probs)


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize(
    ("missed", "false_alarm", "ill", "healthy"),
    [
        (0.4, [0.1], 60, 300),
        (0.95, [0.001], 60, 300),
        (0.95, [0.0005], 60, 300),  # most often, nothing is mistaken for it
        (0.999, [0.0002], 200, 5000),
        (0.9, [0.0003] * 9, 40, 36),
        (0.9, [0.3, 0.0, 0.0, 0.0], 40, 20),
        (0.002, [0.98], 300, 60),
        (0.02, [0.4], 300, 60),
    ],
)
def test_intervals_hold_the_true_value_as_often_as_they_say(
    hard: bool, missed: float, false_alarm: list[float], ill: int, healthy: int
) -> None:
    """Over many draws from one model; with all-or-nothing predictions the variance is the largest there can be."""
    draws, inside = np.random.default_rng(0), 0
    truth = missed / sum(false_alarm)
    levels = np.repeat([1 - missed, *false_alarm], [ill, *[healthy] * len(false_alarm)])
    labels = np.repeat(np.arange(1 + len(false_alarm)), [ill, *[healthy] * len(false_alarm)])
    spread = np.where((levels > 0) & (levels < 1), levels, 0.5)
    for _ in range(400):
        soft = np.where(levels > 0, draws.beta(2 * spread, 2 * (1 - spread)), 0)
        chosen = draws.random(len(labels)) < levels if hard else soft
        probs = np.zeros((len(labels), 1 + len(false_alarm)))
        probs[:, 0] = chosen
        probs[np.arange(len(labels)), np.where(labels > 0, labels, 1)] += 1 - chosen
        found = diagnose(probs, labels).everywhere
        inside += bool(found.low[0] <= truth <= found.high[0])
    assert inside >= 0.93 * 400  # 95 % less three standard deviations of 400 draws would be 92 %


@pytest.mark.parametrize("rare", [20, 40, 300])
def test_intervals_hold_where_some_of_the_other_classes_are_small(rare: int) -> None:
    """A small class in which nothing was mistaken may hide much: no limit may be sure that it does not."""
    draws, classes = np.random.default_rng(0), 7
    samples = np.array([10_000] * 5 + [rare] * 2)
    truth = np.full((classes, classes), 0.03)
    truth[5:, 0] = 0.046
    np.fill_diagonal(truth, 0)
    np.fill_diagonal(truth, 1 - truth.sum(1))
    means = np.stack([draws.multinomial(samples[at], truth[at], 4000) / samples[at] for at in range(classes)], 1)
    low, high = ratio_limits(means, np.broadcast_to(samples, (4000, classes)))
    asymmetry = (1 - truth.diagonal()) / (truth.sum(0) - truth.diagonal())
    assert ((low > asymmetry).mean(0) < 0.05).all()
    assert ((high < asymmetry).mean(0) < 0.05).all()


def test_intervals_of_errors_that_are_exactly_0_or_1() -> None:
    never = diagnose([[1.0, 0.0]] * 300, [0, 1] * 150).everywhere  # class 1 is never given
    assert never.low[1] > 10
    assert never.high[1] == never.asymmetry[1] == np.inf
    assert never.low[0] == never.asymmetry[0] == 0
    assert never.high[0] < 0.1
    perfect = diagnose([[1.0, 0.0], [0.0, 1.0]] * 50, [0, 1] * 50).everywhere
    assert np.isnan([perfect.low, perfect.high]).all()


@pytest.mark.parametrize("seed", range(5))
def test_intervals_hold_what_was_measured_and_narrow_with_more_samples(seed: int) -> None:
    data = made_up(2000, skew=0.3, classes=5, seed=seed)
    once, often = diagnosed(data).everywhere, diagnose(np.tile(data.probs, (9, 1)), np.tile(data.labels, 9)).everywhere
    assert (once.low < often.low).all()
    assert (often.low < often.asymmetry).all()
    assert (often.asymmetry < often.high).all()
    assert (often.high < once.high).all()


def stationary(counts: list[int], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Predictions of a linear model on the data it was trained on until the gradient vanished, and their labels."""
    torch.manual_seed(seed)
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    inputs = torch.randn(len(labels), 4, dtype=torch.float64) + torch.eye(len(counts), 4, dtype=torch.float64)[labels]
    weight = torch.zeros(4, len(counts), dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(len(counts), dtype=torch.float64, requires_grad=True)
    tight = {"tolerance_grad": 1e-12, "tolerance_change": 0.0, "line_search_fn": "strong_wolfe"}
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=500, **tight)  # type: ignore[arg-type]

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(inputs @ weight + bias, labels)
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    assert bias.grad is not None
    assert bias.grad.abs().max() < 1e-8
    return (inputs @ weight + bias).softmax(1).detach(), labels


@pytest.mark.parametrize("counts", [[800, 150, 30], [500, 500, 40], [900, 60], [400, 30, 5, 200]])
def test_converged_cross_entropy_lies_inside_the_bounds(counts: list[int]) -> None:
    found = diagnose(*stationary(counts, seed=1))
    low, high = found.bounds
    assert (low - 1e-6 <= found.everywhere.asymmetry).all()
    assert (found.everywhere.asymmetry <= high + 1e-6).all()


def test_bounds_are_of_the_counts_trained_on_and_leave_out_what_is_not_measured() -> None:
    low, high = stationary_bounds(np.array([100, 10, 1000]), np.array([True, True, False]))
    np.testing.assert_allclose(low, [0.1, 10, 0.01])
    np.testing.assert_allclose(high, [0.1, 10, 0.1])
    low, high = stationary_bounds(np.array([100, 0]), np.array([True, True]))
    assert low[1] == high[1] == np.inf
    assert low[0] == high[0] == 0


def test_counts_may_be_given_by_place_by_class_and_by_site() -> None:
    data = made_up(600)
    by_class = {"nevus": 100, "keratosis": 20, "melanoma": 4}
    for given in ([100, 20, 4], by_class, dict.fromkeys(set(data.sites.tolist()), by_class)):
        found = diagnosed(data, class_counts=given)
        np.testing.assert_allclose(found.bounds, stationary_bounds(np.array([100, 20, 4]), np.ones(3, bool)))
    assert diagnosed(data).holdings.totals.tolist() == np.bincount(data.labels).tolist()


def test_the_example_has_the_calibrated_labels_of_mean_predictions() -> None:
    found = diagnosed(made_up(3000, skew=1.5), class_counts={"nevus": 900, "keratosis": 90, "melanoma": 9})
    example = found.example
    assert example is not None
    assert found.class_names[example.rare.of_class] == "melanoma"
    assert found.class_names[example.frequent.of_class] == "nevus"
    for sample in (example.rare, example.frequent):
        prediction = torch.from_numpy(found.everywhere.means[sample.of_class])
        expected = calibrated_labels(prediction, torch.tensor(sample.of_class), [900, 90, 9])
        np.testing.assert_allclose(sample.label, expected)
    assert example.rare.label[0] < 0 <= example.frequent.label[2]


def test_the_example_is_told_at_the_site_that_outnumbers_the_class_most() -> None:
    data = made_up(3000, skew=1.5, sites=2)
    counts = {"site 0": {"nevus": 10, "keratosis": 10, "melanoma": 10}}
    counts["site 1"] = {"nevus": 90, "keratosis": 10, "melanoma": 1}
    example = diagnosed(data, class_counts=counts).example
    assert example is not None
    assert example.site == 1
    assert example.counts.tolist() == [90, 10, 1]


def test_equal_counts_change_nothing() -> None:
    found = diagnosed(made_up(600), class_counts=[50, 50, 50])
    assert found.example is not None
    assert found.example.changes_nothing
    assert found.example.rare.label.tolist() == np.eye(3)[found.example.rare.of_class].tolist()
