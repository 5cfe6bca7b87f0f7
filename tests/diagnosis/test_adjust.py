"""`diagnose(..., adjust=)`: a prior correction before anything is counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedga.diagnosis import Diagnosis, diagnose
from fedga.errors import FedGAError

MEANS, COUNTS = np.array([-1.0, 0.5, 2.0]), [900, 90, 10]
LABELS = np.random.default_rng(0).integers(0, 3, 500)
X = np.random.default_rng(1).normal(MEANS[LABELS])


def posterior(prior: Any) -> np.ndarray:
    joint = np.exp(-((X[:, None] - MEANS) ** 2) / 2) * np.asarray(prior)
    return joint / joint.sum(1, keepdims=True)


def assert_same(found: Diagnosis, other: Diagnosis, rtol: float = 0) -> None:
    for field in ("samples", "predicted", "accuracy", "missed", "false_alarm"):
        values = (getattr(each.everywhere, field) for each in (found, other))
        np.testing.assert_allclose(*values, rtol=rtol)


@pytest.mark.parametrize("logits", [False, True])
def test_an_adjusted_model_is_the_one_of_equal_classes(logits: bool) -> None:
    trained, counts = posterior(COUNTS), dict(zip("abc", COUNTS, strict=True))
    scores = np.log(trained) if logits else trained
    labels, names = np.array(list("abc"))[LABELS], list("abc")
    found = diagnose(scores, labels, class_names=names, class_counts=counts, logits=logits, adjust=1)
    assert_same(found, diagnose(posterior([1, 1, 1]), labels, class_names=names), rtol=1e-12)
    assert found.before is not None
    assert_same(found.before, diagnose(trained, labels, class_names=names), rtol=1e-12)
    assert found.everywhere.accuracy[2] > found.before.everywhere.accuracy[2]  # the rarest
    content = found.to_dict()
    assert content["before"]["accuracy"] == found.before.to_dict()["accuracy"] != content["accuracy"]
    assert any("τ = 1" in note for note in content["notes"])


@pytest.mark.parametrize(("counts", "tau"), [(COUNTS, 0.0), ([5, 5, 5], 1.0)])
def test_an_adjustment_of_nothing_changes_no_bit(counts: list[int], tau: float) -> None:
    found = diagnose(posterior(COUNTS), LABELS, class_counts=counts, adjust=tau)
    assert found.before is not None
    assert_same(found, found.before)


def test_counts_by_site_are_those_of_all_sites_together() -> None:
    sites = np.where(LABELS == 0, "north", "south")
    by_site = {"north": [900, 0, 0], "south": [0, 90, 10]}
    of_sites = {site: dict(zip("012", counts, strict=True)) for site, counts in by_site.items()}
    found = diagnose(posterior(COUNTS), LABELS, sites, class_counts=of_sites, adjust=1)
    assert_same(found, diagnose(posterior(COUNTS), LABELS, sites, class_counts=COUNTS, adjust=1))


def test_one_column_is_adjusted_like_two() -> None:
    probs, labels = posterior(COUNTS)[:, :2], np.minimum(LABELS, 1)
    probs = probs / probs.sum(1, keepdims=True)
    one, two = (diagnose(of, labels, class_counts=[10, 1], adjust=1) for of in (probs[:, 1], probs))
    assert_same(one, two, rtol=1e-12)


def test_without_the_counts_of_training_it_is_refused() -> None:
    with pytest.raises(FedGAError, match="needs the samples of each class that were trained on"):
        diagnose(posterior(COUNTS), LABELS, adjust=1)
    with pytest.raises(FedGAError, match="there are 2 class counts for 3 classes"):
        diagnose(posterior(COUNTS), LABELS, class_counts=[1, 2], adjust=1)
