"""Prior correction against Bayes' rule, where everything is known in closed form."""

from __future__ import annotations

import numpy as np
import pytest

from fedga.errors import FedGAError
from fedga.measures.prior import prior_shift

MEANS = np.array([-1.0, 0.5, 2.0])  # of three classes on a line, all of variance 1
COUNTS = np.array([900, 90, 10])


def posterior(x: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """p(class | x), ``[samples, classes]``: what a model learns that is trained on classes of these shares."""
    joint = np.exp(-((x[:, None] - MEANS) ** 2) / 2) * prior
    return joint / joint.sum(1, keepdims=True)


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


@pytest.mark.parametrize("tau", [0.5, 1.0])
@pytest.mark.parametrize("target", [[1, 1, 1], [1, 2, 5]])
def test_the_prior_is_exchanged_as_bayes_rule_says(tau: float, target: list[int]) -> None:
    x = np.linspace(-6, 6, 101)
    found = softmax(np.log(posterior(x, COUNTS / COUNTS.sum())) + prior_shift(COUNTS, tau) - prior_shift(target))
    expected = posterior(x, np.array(target) * (COUNTS / COUNTS.sum()) ** (1 - tau))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_the_threshold_of_equal_classes_lies_half_way_between_their_means() -> None:
    x = np.array([-0.251, -0.249, 1.249, 1.251])
    raw = np.log(posterior(x, COUNTS))
    assert raw.argmax(1).tolist() == [0, 0, 0, 0]
    assert (raw + prior_shift(COUNTS)).argmax(1).tolist() == [0, 1, 1, 2]


def test_what_changes_nothing_changes_no_bit() -> None:
    assert prior_shift(COUNTS, 0).tolist() == [0, 0, 0]
    assert prior_shift([0.3, 0.3, 0.3], 5).tolist() == [0, 0, 0]
    np.testing.assert_allclose(prior_shift(COUNTS), prior_shift(COUNTS / COUNTS.sum()), rtol=1e-14)


def test_a_class_that_was_never_seen_counts_as_the_rarest_that_could_have_been() -> None:
    np.testing.assert_array_equal(prior_shift([9, 0, 3]), prior_shift([9, 1, 3]))
    np.testing.assert_array_equal(prior_shift([0.7, 0, 0.3]), prior_shift([0.7, 0.3, 0.3]))


@pytest.mark.parametrize("counts", [[], [[1, 2]], [1, -1], [1, np.nan], [0, 0]])
def test_counts_that_are_none_are_refused(counts: list[float]) -> None:
    with pytest.raises(FedGAError, match="class counts"):
        prior_shift(counts)
    with pytest.raises(FedGAError, match="tau"):
        prior_shift([1, 2], np.inf)
