"""The pictures of docs/method.md: what they show is what the package computes, and the page shows all of them."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

from fedga import calibrated_labels, error_asymmetry
from tests.docs.blocks import ROOT

PAGE = ROOT / "docs" / "method.md"
COUNTS = [100, 0, 20, 5, 20]


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("draw_method", ROOT / "docs" / "draw_method.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield module
    torch.set_num_threads(threads)


def test_it_draws_every_picture_that_the_page_shows(script: ModuleType, tmp_path: Path) -> None:
    written = script.main(tmp_path)
    shown = re.findall(r"\]\(pictures/(.*?)\)", PAGE.read_text(encoding="utf-8"))
    assert sorted(path.name for path in written) == sorted(shown)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)
    assert all((PAGE.parent / "pictures" / name).is_file() for name in shown)


def test_nothing_pulls_up_a_class_that_the_client_lacks(script: ModuleType) -> None:
    for own, others in script.pushes().values():
        assert own[1] == 0
        assert others[1] < 0
        assert abs(own + others).max() > 1
        assert (own + others).sum().abs() < 1e-9  # a softmax's gradient


def test_the_labels_and_steps_are_those_of_the_package(script: ModuleType) -> None:
    prediction = torch.tensor(script.PREDICTION, dtype=torch.float64)
    for target, (labels, steps) in script.worked_example().items():
        assert torch.equal(labels, calibrated_labels(prediction, torch.tensor(target), COUNTS))
        plain = F.one_hot(torch.tensor(target), 5) - prediction
        assert torch.allclose(steps["cross-entropy"], plain)
        by_labels = labels - labels.sum() * prediction  # of a cross-entropy against labels that are held fixed
        assert torch.allclose(steps["gradient alignment"], by_labels)


def test_plain_training_ends_inside_the_bounds_that_are_drawn(script: ModuleType) -> None:
    inputs, targets = script.client_samples()
    assert torch.bincount(targets, minlength=5).tolist() == COUNTS
    held = [0, 2, 3, 4]
    asymmetry = error_asymmetry(script.stationary_predictions(inputs, targets, F.cross_entropy), targets)[held]
    low, high = torch.tensor(script.bounds(held), dtype=torch.float64).T
    assert (low <= asymmetry).all()
    assert (asymmetry <= high).all()
    assert low[held.index(3)] > 1 > high[held.index(0)]
