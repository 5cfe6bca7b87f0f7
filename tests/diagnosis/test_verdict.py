"""The sentence on top says what the numbers say, and no more."""

from __future__ import annotations

import numpy as np

from fedga.diagnosis import diagnose
from fedga.diagnosis.verdict import FORGOTTEN


def two_classes(missed: float, false_alarm: float, ill: int, healthy: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    """Every sample of a class is predicted alike, so that the errors are the given ones."""
    probs = [[1 - false_alarm, false_alarm]] * healthy + [[missed, 1 - missed]] * ill
    return np.array(probs), np.repeat([0, 1], [healthy, ill])


NAMES = ["healthy", "ill"]


def test_a_forgotten_class_is_named_with_how_much() -> None:
    found = diagnose(*two_classes(0.6, 0.05, ill=200), class_names=NAMES)
    assert found.verdict.level == "forgotten"
    assert found.verdict.suspect == 1
    assert found.headline.startswith("Yes: this model forgets the rare class “ill”, missed 12 times as much")


def test_where_it_is_worst_is_named() -> None:
    probs, labels, sites = [], [], []
    for site, missed in (("Aarhus", 0.4), ("Basel", 0.8), ("Cork", 0.5)):
        some, classes = two_classes(missed, 0.04, ill=100)
        probs.append(some)
        labels.append(classes)
        sites += [site] * len(classes)
    found = diagnose(np.concatenate(probs), np.concatenate(labels), sites, NAMES)
    assert "most of all at Basel" in found.headline
    assert found.verdict.site == 1


def test_a_class_forgotten_at_one_site_alone_is_found() -> None:
    good, labels = two_classes(0.1, 0.1, ill=3000, healthy=3000)
    bad, few_labels = two_classes(0.6, 0.05, ill=100, healthy=800)
    sites = ["Aarhus"] * len(labels) + ["Basel"] * len(few_labels)
    found = diagnose(np.concatenate([good, bad]), np.concatenate([labels, few_labels]), sites, NAMES)
    assert found.everywhere.asymmetry.max() < FORGOTTEN
    assert found.verdict.level == "at a site"
    assert "at Basel this model forgets" in found.headline
    assert "“ill”" in found.headline


def test_few_samples_conclude_nothing() -> None:
    found = diagnose(*two_classes(0.6, 0.05, ill=8), class_names=NAMES)
    assert found.verdict.level == "unclear"
    assert "8 samples are too few" in found.headline


def test_small_errors_conclude_nothing() -> None:
    found = diagnose(*two_classes(0.04, 0.001, ill=5000), class_names=NAMES)
    assert found.ea_ratio > 1000
    assert found.verdict.level == "fair"
    assert "missed by only 4.0\u00a0%" in found.headline


def test_an_even_model_is_fair() -> None:
    found = diagnose(*two_classes(0.2, 0.2, ill=2000), class_names=NAMES)
    assert found.verdict.level == "fair"
    assert found.headline.startswith("No: no class is being forgotten")


def test_a_perfect_model_is_fair() -> None:
    found = diagnose(*two_classes(0.0, 0.0, ill=200), class_names=NAMES)
    assert np.isnan(found.ea_ratio)
    assert found.headline == "No: this model makes no error that could be uneven."


def test_who_starves_it_is_said() -> None:
    probs, labels = two_classes(0.6, 0.05, ill=200)
    counts = {"a": {"healthy": 100, "ill": 0}, "b": {"healthy": 100, "ill": 2}, "c": {"healthy": 10, "ill": 18}}
    found = diagnose(probs, labels, ["a"] * len(labels), NAMES, counts)
    [said] = [finding for finding in found.verdict.findings if finding.startswith("Of 3 sites")]
    assert "1 holds no sample of it and 1 holds less" in said
    assert "c holds 90\u00a0%" in said
