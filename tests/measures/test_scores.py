"""Scores from confusion matrices against scikit-learn and torchmetrics."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics
from torchmetrics.functional.classification import multiclass_f1_score

from fedga.errors import FedGAError
from fedga.measures.scores import accuracy, balanced_accuracy, confusion_matrix, macro_f1, recall


@st.composite
def labels(draw) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Predictions and targets [samples] over few of the classes, so that some occur in only one or neither."""
    classes, samples = draw(st.integers(2, 8)), draw(st.integers(1, 40))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    seen = torch.randint(0, classes, (2, classes), generator=g)
    rows = torch.randint(0, classes, (2, samples), generator=g)
    predictions, targets = seen[0][rows[0]], seen[1][rows[1]]
    right = torch.rand(samples, generator=g) < draw(st.sampled_from([0.0, 0.5, 1.0]))
    return torch.where(right, targets, predictions), targets, classes


@given(labels())
@settings(max_examples=100, deadline=None)
def test_against_scikit_learn_and_torchmetrics(problem):
    predictions, targets, classes = problem
    matrix = confusion_matrix(predictions, targets, classes)
    assert matrix.tolist() == metrics.confusion_matrix(targets, predictions, labels=range(classes)).tolist()
    assert accuracy(matrix).item() == pytest.approx(metrics.accuracy_score(targets, predictions))
    f1 = macro_f1(matrix).item()
    assert f1 == pytest.approx(metrics.f1_score(targets, predictions, average="macro", zero_division=0))
    assert f1 == pytest.approx(multiclass_f1_score(predictions, targets, classes, average="macro").item())
    each = metrics.recall_score(targets, predictions, labels=range(classes), average=None, zero_division=float("nan"))
    torch.testing.assert_close(recall(matrix).double(), torch.tensor(each), equal_nan=True, rtol=1e-6, atol=1e-6)
    present = set(targets.tolist())
    if len(present) > 1 and set(predictions.tolist()) <= present:  # otherwise scikit-learn warns
        expected = metrics.balanced_accuracy_score(targets, predictions)
        assert balanced_accuracy(matrix).item() == pytest.approx(expected)


@pytest.mark.parametrize("score", [accuracy, macro_f1, balanced_accuracy, recall])
def test_leading_dimensions(score):
    g = torch.Generator().manual_seed(0)
    predictions, targets = torch.randint(0, 5, (2, 3, 4, 50), generator=g)
    matrices = confusion_matrix(predictions, targets, 5)
    assert matrices.shape == (3, 4, 5, 5)
    each = torch.stack([score(m) for m in matrices.reshape(12, 5, 5)])
    torch.testing.assert_close(score(matrices).reshape(each.shape), each)
    torch.testing.assert_close(score(matrices.double()), score(matrices).double())


def test_one_set_of_targets_serves_many_models():
    predictions, targets = torch.randint(0, 3, (6, 20)), torch.randint(0, 3, (20,))
    each = torch.stack([confusion_matrix(p, targets, 3) for p in predictions])
    assert torch.equal(confusion_matrix(predictions, targets, 3), each)


def test_more_samples_than_float32_can_count():
    same = torch.ones(1, dtype=torch.int8).expand(2**24 + 1_000)
    assert confusion_matrix(same, same, 2).tolist() == [[0, 0], [0, len(same)]]


def test_counts_in_parts_are_those_at_once(monkeypatch):
    predictions, targets = torch.randint(0, 3, (2, 6, 20))
    at_once = confusion_matrix(predictions, targets, 3)
    monkeypatch.setattr("fedga.measures.scores.AT_ONCE", 7)
    assert torch.equal(confusion_matrix(predictions, targets, 3), at_once)


def test_no_samples_is_no_score():
    empty = torch.zeros(2, 3, 3, dtype=torch.int64)
    for score in (accuracy, macro_f1, balanced_accuracy):
        assert score(empty).isnan().all()


def test_errors():
    with pytest.raises(FedGAError, match="argmax"):
        confusion_matrix(torch.rand(4), torch.zeros(4).long(), 2)
    with pytest.raises(FedGAError, match=r"\[4\] and \[5\]"):
        confusion_matrix(torch.zeros(4).long(), torch.zeros(5).long(), 2)
