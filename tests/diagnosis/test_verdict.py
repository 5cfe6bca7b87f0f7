"""The sentence on top says what the numbers say, and no more."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

from fedga.diagnosis import diagnose
from fedga.diagnosis.build import _facts
from fedga.diagnosis.picture import class_picture
from fedga.diagnosis.verdict import FORGOTTEN, class_kinds
from fedga.measures import asymmetry


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


def test_a_site_with_one_class_is_not_judged() -> None:
    """Nothing there could be mistaken for it."""
    probs, labels = two_classes(0.1, 0.1, ill=200, healthy=200)
    found = diagnose(probs, labels, np.where(labels == 1, "Basel", "Aarhus"), NAMES)
    assert found.verdict.level == "fair"
    assert found.sites is not None
    assert np.isnan([found.sites.asymmetry, found.sites.low, found.sites.high]).all()
    assert found.example is not None
    assert found.example.rare.of_class != found.example.frequent.of_class


@pytest.mark.parametrize("missed", [0.15, 0.5])  # EA 1.5 and 5: over all, the second is forgotten
def test_among_many_sites_that_are_alike_none_is_accused(missed: float) -> None:
    draws, accused = np.random.default_rng(0), 0
    sites, labels = np.repeat(np.arange(50), 120), np.tile([0] * 80 + [1] * 40, 50)
    for _ in range(40):
        ill = draws.random(len(labels)) < np.where(labels == 1, 1 - missed, 0.1)
        accused += diagnose(np.column_stack([~ill, ill]).astype(float), labels, sites, NAMES).verdict.site is not None
    assert accused <= 4  # 5 % of 40 are two


def test_nothing_on_the_page_is_forgotten_that_the_headline_does_not_call_so() -> None:
    found = diagnose(*two_classes(0.02, 0.001, ill=2000, healthy=20_000), class_names=NAMES)
    assert found.everywhere.least[1] > FORGOTTEN  # of errors that are too small to matter
    assert found.verdict.level == "fair"
    assert {row.kind for row in class_picture(found).rows} == {"even", "low"}
    assert "forgotten" not in {kind for _, _, kind in _facts(found)}


def test_two_samples_without_an_error_are_no_no() -> None:
    probs = np.array([[0.9, 0.1, 0.0]] * 50 + [[0.1, 0.9, 0.0]] * 50 + [[0.0, 0.0, 1.0]] * 2)
    found = diagnose(probs, np.repeat([0, 1, 2], [50, 50, 2]), class_names=["a", "b", "c"])
    assert found.headline.startswith("Cannot tell: only 2 samples of the rare class “c” are too few")


@pytest.mark.parametrize("counts", [[90, 10, 0], [5, 5, 5], [[1, 2, 3], [0, 0, 7]], [0.5, 0.5, 8]])
def test_kinds_of_classes_are_those_of_the_library(counts: list[float]) -> None:
    _, *expected = asymmetry.class_kinds(torch.tensor(counts))
    for found, kind in zip(class_kinds(np.array(counts)), expected, strict=True):
        np.testing.assert_array_equal(found, kind)


def test_few_samples_conclude_nothing() -> None:
    found = diagnose(*two_classes(0.6, 0.05, ill=8), class_names=NAMES)
    assert found.verdict.level == "unclear"
    assert found.headline.startswith("Cannot tell: only 8 samples of the rare class “ill” are too few")


def test_few_samples_of_a_class_that_may_be_forgotten_are_no_no() -> None:
    found = diagnose(*two_classes(0.3, 0.2, ill=9), class_names=NAMES)
    assert found.everywhere.asymmetry[1] < FORGOTTEN < found.everywhere.high[1]
    assert found.headline.startswith("Cannot tell: only 9 samples of the rare class “ill”")
    assert found.to_dict()["verdict"] == "unclear"
    enough = diagnose(*two_classes(0.3, 0.2, ill=500), class_names=NAMES)
    assert enough.headline.startswith("No: ")


def test_few_samples_do_not_hide_a_class_that_is_forgotten_for_sure() -> None:
    labels = np.repeat([0, 1, 2], [2000, 200, 19])
    probs = np.array([[0.9, 0.05, 0.05], [0.9, 0.05, 0.05], [0.6, 0.0, 0.4]])[labels]
    assert diagnose(probs, labels).headline.startswith("Yes: this model forgets the rare class “1”")


def test_a_class_never_trained_on_is_said_without_stumbling() -> None:
    found = diagnose(*two_classes(0.6, 0.05, ill=200), class_names=NAMES, class_counts=[100, 0])
    assert "“ill” (never trained on), missed 12 times" in found.headline
    assert ",," not in found.headline


def test_one_sample_is_too_few() -> None:
    assert (
        "only 1 sample of the rare class “ill” is too few"
        in diagnose(*two_classes(0.6, 0.05, ill=1), class_names=NAMES).headline
    )


def test_a_model_that_never_saw_a_class_forgets_it() -> None:
    """The surer a model is, the smaller the false alarm that EA is divided by: no reason to be less sure of it."""
    torch.manual_seed(0)
    pictures, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    pictures, training = pictures.float() / 16, torch.arange(len(labels)) % 2 == 0
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    kept = training & (labels != 8)
    for _ in range(300):
        optimizer.zero_grad()
        F.cross_entropy(model(pictures[kept]), labels[kept]).backward()
        optimizer.step()
    found = diagnose(model(pictures[~training]).detach(), labels[~training], logits=True)
    assert found.everywhere.asymmetry[8] > 1000
    assert found.verdict.level == "forgotten"
    assert found.headline == (
        "Yes: this model forgets the rare class “8”, never predicted and missed more than 1,000 times as much as "
        "others are mistaken for it."
    )


@pytest.mark.parametrize("each", [40, 5000])
def test_a_class_that_is_never_predicted_is_forgotten(each: int) -> None:
    labels = np.repeat([0, 1, 2], each)
    found = diagnose(np.eye(3)[np.where(labels == 2, 0, labels)], labels)
    assert found.verdict.level == "forgotten"
    assert found.headline.startswith(
        "Yes: this model forgets the class “2”, never predicted and missed more than 1,000"
    )
    assert "∞" not in found.headline


def test_a_class_that_is_recognised_is_not_called_never_predicted() -> None:
    found = diagnose(*two_classes(0.2, 0.00001, ill=3000, healthy=30_000), class_names=NAMES)
    assert "forgets the rare class “ill”, missed more than 1,000 times" in found.headline


def test_even_errors_are_said_in_grammar() -> None:
    found = diagnose(*two_classes(0.2, 0.2, ill=2000), class_names=NAMES)
    assert "missed 1.0 times as much" in found.headline


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
    assert found.headline == "No: this model makes no errors at all here, so that none can be uneven."
