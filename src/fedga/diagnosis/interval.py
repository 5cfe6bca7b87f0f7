"""How sure an error asymmetry is: a 95 % interval that also holds where an error is nearly 0 or nearly 1.

An error is a mean, or a sum of means, of numbers between 0 and 1. Such a number of mean m has a variance of at most
m (1 - m) (Bhatia and Davis 2000), which stands in its place: intervals are rather too wide than too narrow, and no
squares have to be summed. Each error gets the limits of Wilson (1927), corrected by half a sample for what hard
predictions can be (Newcombe 1998), and the limits of the two make those of their ratio (MOVER-R, Newcombe 2016).
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

SURE = 1.96  # standard deviations: 95 %


def sure_of_all(number: int) -> float:
    """Standard deviations beyond which, with 95 %, none of so many numbers lies (Bonferroni).

    >>> round(sure_of_all(1), 2), round(sure_of_all(100), 2)
    (1.96, 3.48)
    """
    return NormalDist().inv_cdf(1 - 0.025 / max(number, 1))


@dataclass(frozen=True, eq=False)
class Limits:
    """A number and the least and the most that it may be."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


def ratio_limits(means: np.ndarray, samples: np.ndarray, sure: float = SURE) -> tuple[np.ndarray, np.ndarray]:
    """Least and greatest likely EA from mean predictions, [..., true class, class], of samples: [..., classes].

    NaN where EA is not known; the least is finite, and the greatest infinite where nothing may be mistaken at all.

    >>> low, high = ratio_limits(np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([50, 50]))  # class 1 is never given
    >>> low.round(2), high.round(2)
    (array([ 0.  , 11.21]), array([0.09,  inf]))
    """
    with np.errstate(divide="ignore"):
        weights = np.where(samples > 0, 1 / samples, 0)  # of one sample; 0 where there are none
    other = ~np.eye(means.shape[-1], dtype=bool)
    own = 1 - np.diagonal(means, axis1=-2, axis2=-1)
    missed = sum_limits(own[..., None, :], weights[..., None, :], sure)
    of_others = np.where(other, weights[..., None], 0)
    false_alarm = sum_limits(np.where(other, np.nan_to_num(means), 0), of_others, sure)
    unknown = np.isnan(own) | (of_others == 0).all(-2) | ((missed.value == 0) & (false_alarm.value == 0))
    with np.errstate(divide="ignore"):
        low, high = _least_ratio(missed, false_alarm), 1 / _least_ratio(false_alarm, missed)
    return np.where(unknown, np.nan, low), np.where(unknown, np.nan, high)


def sum_limits(means: np.ndarray, weights: np.ndarray, sure: float = SURE) -> Limits:
    """Limits of sums of means over the last axis but one; weights: 1 / samples of each mean, 0 to leave it out.

    Wilson's limits are the sums F that the measured one is ``sure`` standard deviations away from, by the variance that
    F itself would have. F is taken to be spread over its terms as it was measured to be; where hardly anything was
    measured, by what each may hide, which is most where samples are few. Of one term they are Wilson's own.
    """
    terms = (weights > 0).sum(-2)
    total = np.clip(means.sum(-2), 0, terms)
    with np.errstate(invalid="ignore", divide="ignore"):
        hiding = weights / weights.sum(-2, keepdims=True)
        shift = sure**2 / 2 * (hiding * weights).sum(-2)  # Wilson's, of a sum of 0
        parts = np.where(weights > 0, (means + shift[..., None, :] * hiding) / (total + shift)[..., None, :], 0)
    # The variance of a sum F is F · linear - F² · square.
    linear, square = (parts * weights).sum(-2), (parts**2 * weights).sum(-2)
    low, high = (_wilson(np.clip(total + side * linear / 2, 0, terms), linear, square, side, sure) for side in (-1, 1))
    return Limits(total, np.clip(low, 0, total), np.clip(high, total, terms))


def _wilson(total: np.ndarray, linear: np.ndarray, square: np.ndarray, side: int, sure: float) -> np.ndarray:
    """The lower (``side`` -1) or upper (1) F of ``(total - F)² = sure² (F · linear - F² · square)``."""
    middle, scale = 2 * total + sure**2 * linear, 1 + sure**2 * square
    root = np.sqrt(np.maximum(middle**2 - 4 * scale * total**2, 0))
    return (middle + side * root) / (2 * scale)


def _least_ratio(over: Limits, under: Limits) -> np.ndarray:
    """The least that ``over / under`` may be (Newcombe 2016, multiplied out so that ``under`` may be 0)."""
    product, spread = over.value * under.value, over.low * (2 * over.value - over.low)
    root = np.sqrt(np.maximum(product**2 - spread * under.high * (2 * under.value - under.high), 0))
    return np.divide(spread, product + root, out=np.zeros_like(product), where=spread > 0)
