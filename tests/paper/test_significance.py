"""Quantiles and tests, against scipy, which only the tests have."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fedga.paper.report.significance import (
    chi_square_above,
    critical_difference,
    friedman,
    ranks_of,
    student_quantile,
    studentized_range_quantile,
)


@pytest.mark.parametrize("freedom", [1, 2, 4, 9, 29])
def test_intervals_of_few_seeds(freedom: int) -> None:
    assert student_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-7)


@pytest.mark.parametrize("number", [2, 5, 40])
def test_the_range_of_normal_numbers(number: int) -> None:
    assert studentized_range_quantile(number) == pytest.approx(stats.studentized_range.ppf(0.95, number, np.inf))


@pytest.mark.parametrize("freedom", [1, 2, 7, 38])
@pytest.mark.parametrize("value", [0.0, 0.3, 20.0, 150.0])
def test_a_chi_square(value: float, freedom: int) -> None:
    assert chi_square_above(value, freedom) == pytest.approx(stats.chi2.sf(value, freedom))


def test_friedman_s_test_with_and_without_ties() -> None:
    noise = np.random.default_rng(0).normal(size=(7, 5))
    for values in (noise, noise.round()):
        ranks = ranks_of(values)
        np.testing.assert_array_equal(ranks, stats.rankdata(-values, axis=1))
        assert friedman(ranks) == pytest.approx(tuple(stats.friedmanchisquare(*values.T)))
    assert friedman(ranks_of(np.ones((3, 4)))) == (0.0, 1.0)


def test_the_critical_difference_of_demsar_s_example() -> None:
    """Section 3.2.2: four classifiers on 14 data sets, 1.25."""
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=0.005)
