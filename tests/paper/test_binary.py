"""Binary error asymmetry: where cross-entropy and gradient alignment end, and what is kept of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedga.data import Dataset, load_dataset
from fedga.errors import FedGAError
from fedga.paper.binary import (
    FILE_NAME,
    LOSSES,
    BinaryRuns,
    binary_runs,
    read_binary_runs,
    write_binary_runs,
)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits")


@pytest.fixture(scope="module")
def runs(digits: Dataset) -> list[BinaryRuns]:
    return binary_runs(digits, seeds=(0, 1))


def of(runs: list[BinaryRuns], loss: str) -> list[BinaryRuns]:
    return [run for run in runs if run.loss == loss]


def test_cross_entropy_ends_at_the_imbalance_and_its_summed_errors_at_1(runs: list[BinaryRuns]) -> None:
    plain = of(runs, "cross-entropy")
    assert [run.counts for run in plain] == [(178, 18), (178, 2)]
    for run in plain:
        np.testing.assert_allclose(run.asymmetry[:, -1], run.ratio, rtol=0.005)
        np.testing.assert_allclose(run.cumulative[:, -1], 1, rtol=0.005)


def test_gradient_alignment_ends_at_1_whatever_the_imbalance(runs: list[BinaryRuns]) -> None:
    for run in of(runs, "gradient alignment"):
        np.testing.assert_allclose(run.asymmetry[:, -1], 1, atol=0.005)
        np.testing.assert_allclose(run.cumulative[:, -1], 1 / run.ratio, rtol=0.005)


def test_a_fresh_model_errs_by_a_half_and_every_epoch_is_recorded(runs: list[BinaryRuns]) -> None:
    for run in runs:
        assert run.epochs.tolist() == list(range(2001))
        assert run.missed.shape == run.false_alarm.shape == (2, 2001)
        np.testing.assert_array_equal(run.missed[:, 0], 0.5)
        np.testing.assert_array_equal(run.false_alarm[:, 0], 0.5)
        assert (run.missed[:, -1] < 0.5).all()


def test_without_imbalance_the_two_losses_are_one(digits: Dataset) -> None:
    plain, aligned = binary_runs(digits, [1], seeds=(0, 1), epochs=100)
    assert plain.counts == aligned.counts == (178, 178)
    np.testing.assert_allclose(plain.missed, aligned.missed, rtol=1e-12)
    np.testing.assert_allclose(plain.false_alarm, aligned.false_alarm, rtol=1e-12)


def test_a_seed_gives_the_same_numbers_alone_and_among_others(runs: list[BinaryRuns], digits: Dataset) -> None:
    alone = binary_runs(digits, seeds=[1], epochs=50)
    for one, among in zip(alone, runs, strict=True):
        np.testing.assert_allclose(one.missed[0], among.missed[1, :51], rtol=1e-9)
    assert not np.allclose(runs[0].missed[0, -1], runs[0].missed[1, -1], rtol=1e-9)


def test_other_classes_fewer_samples_and_features_that_are_no_pixels(digits: Dataset) -> None:
    [plain, _] = binary_runs(digits, [10], positive=1, negative=8, seeds=[0], epochs=2, most=50)
    assert (plain.positive, plain.negative, plain.counts) == ("1", "8", (50, 5))
    table = replace(
        digits,
        train_inputs=digits.train_inputs.reshape(-1, 64).astype(np.float32) / np.float32(digits.input_scale),
        test_inputs=digits.test_inputs.reshape(-1, 64).astype(np.float32) / np.float32(digits.input_scale),
    )
    [same, _] = binary_runs(table, [10], positive=1, negative=8, seeds=[0], epochs=2, most=50)
    np.testing.assert_allclose(same.missed, plain.missed, rtol=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"positive": 10}, "digits has no class 10: it has the classes 0 to 9"),
        ({"positive": 0}, "two different classes"),
        ({"seeds": ()}, "one seed or more"),
        ({"ratios": [0.5]}, "1 or more negative samples for a positive one, not 0.5"),
        ({"ratios": [float("nan")]}, "not nan"),
    ],
)
def test_what_cannot_be_trained_is_one_sentence(digits: Dataset, settings: dict[str, object], message: str) -> None:
    with pytest.raises(FedGAError, match=message):
        binary_runs(digits, **{"epochs": 1, **settings})  # type: ignore[arg-type]


def test_what_is_written_is_read_back(runs: list[BinaryRuns], tmp_path: Path) -> None:
    assert read_binary_runs(tmp_path / "nowhere") == []
    path = write_binary_runs(tmp_path / "new", runs)
    assert path == tmp_path / "new" / FILE_NAME
    assert [name.name for name in path.parent.iterdir()] == [FILE_NAME]
    again = read_binary_runs(path.parent)
    assert [run.loss for run in again] == [*LOSSES, *LOSSES]
    for run, kept in zip(runs, again, strict=True):
        assert (kept.dataset, kept.positive, kept.counts, kept.seeds) == ("digits", "6", run.counts, (0, 1))
        np.testing.assert_array_equal(kept.epochs, run.epochs)
        np.testing.assert_allclose(kept.asymmetry, run.asymmetry, rtol=1e-6)
        np.testing.assert_allclose(kept.cumulative, run.cumulative, rtol=1e-6)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(FedGAError, match="cannot be read"):
        read_binary_runs(path.parent)
