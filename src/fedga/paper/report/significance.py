"""Quantiles and tests that a comparison of many methods needs, from their definitions: no scipy at run time."""

import math
from collections.abc import Callable

import numpy as np

_POINTS = 20_001  # of a quadrature


def student_quantile(freedom: int, level: float = 0.95) -> float:
    """What a t-distributed number stays below in absolute value, with probability ``level``.

    With ``t = √freedom · tan u`` its density is proportional to ``cos(u)^(freedom - 1)``.

    >>> round(student_quantile(2), 3), round(student_quantile(4), 3)
    (4.303, 2.776)
    """
    angle = np.linspace(0, math.pi / 2, _POINTS)
    height = np.cos(angle) ** (freedom - 1)
    below = np.concatenate([[0.0], np.cumsum(height[1:] + height[:-1])])
    return float(math.sqrt(freedom) * math.tan(np.interp(level, below / below[-1], angle)))


def studentized_range_quantile(number: int, level: float = 0.95) -> float:
    """What the range of ``number`` independent standard normal numbers stays below with probability ``level``.

    >>> round(studentized_range_quantile(2), 3), round(studentized_range_quantile(10), 3)
    (2.772, 4.474)
    """
    lowest, step = np.linspace(-9, 9, 2001, retstep=True)
    density = np.exp(-(lowest**2) / 2) / math.sqrt(2 * math.pi)
    below = _normal(lowest)

    def probability(width: float) -> float:
        within = _normal(lowest + width) - below  # of one other number, given the lowest
        return float(number * step * (density * within ** (number - 1)).sum())

    return _solve(probability, level, 0.0, 20.0)


def _normal(values: np.ndarray) -> np.ndarray:
    return np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in values.tolist()])


def _solve(rising: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > wanted else (middle, high)
    return low


def chi_square_above(value: float, freedom: int) -> float:
    """Probability that a χ² number of this freedom is above a value.

    >>> round(chi_square_above(3.841, 1), 4), round(chi_square_above(18.307, 10), 4)
    (0.05, 0.05)
    """
    half = value / 2
    if half <= 0:
        return 1.0
    a = 0.5 if freedom % 2 else 1.0
    total = math.erfc(math.sqrt(half)) if freedom % 2 else math.exp(-half)
    while a < freedom / 2:  # Q(a + 1, x) = Q(a, x) + x^a e^-x / Γ(a + 1)
        total += math.exp(a * math.log(half) - half - math.lgamma(a + 1))
        a += 1
    return min(total, 1.0)


def ranks_of(values: np.ndarray) -> np.ndarray:
    """Rank of each value in its row, 1 for the highest; those that are equal share the mean of their ranks.

    >>> ranks_of(np.array([[0.9, 0.7, 0.9, 0.8]]))
    array([[1.5, 4. , 1.5, 3. ]])
    """
    above = (values[:, None, :] > values[:, :, None]).sum(-1)
    equal = (values[:, None, :] == values[:, :, None]).sum(-1)
    return above + (equal + 1) / 2


def friedman(ranks: np.ndarray) -> tuple[float, float]:
    """Friedman's χ² of ``ranks [settings, methods]``, corrected for ties, and its p-value."""
    settings, methods = ranks.shape
    spread = float(((ranks - (methods + 1) / 2) ** 2).sum())
    if spread == 0:
        return 0.0, 1.0
    statistic = settings**2 * (methods - 1) * float(((ranks.mean(0) - (methods + 1) / 2) ** 2).sum()) / spread
    return statistic, chi_square_above(statistic, methods - 1)


def critical_difference(methods: int, settings: int) -> float:
    """Nemenyi's, at 5 %: how far two mean ranks must lie apart (Demšar 2006, Section 3.2.2).

    >>> round(critical_difference(4, 14), 2)
    1.25
    """
    return studentized_range_quantile(methods) / math.sqrt(2) * math.sqrt(methods * (methods + 1) / (6 * settings))
