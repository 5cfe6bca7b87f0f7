"""The numbers of a diagnosis: both errors of every class, their asymmetry and how sure it is, over all and by site.

The formulas are those of ``fedga.measures.asymmetry`` and ``fedga.losses.calibration``, written once more in NumPy and
tested to be the same: torch takes seconds to import, longer than most files take to read.
"""

from dataclasses import dataclass, fields
from functools import cached_property
from statistics import NormalDist
from typing import NamedTuple, Self

import numpy as np

from fedga.diagnosis.reading.tally import Tally

SURE = 1.96  # standard deviations: 95 %


def sure_of_all(number: int) -> float:
    """Standard deviations beyond which, with 95 %, none of so many numbers lies (Bonferroni).

    >>> round(sure_of_all(1), 2), round(sure_of_all(100), 2)
    (1.96, 3.48)
    """
    return NormalDist().inv_cdf(1 - 0.025 / max(number, 1))


class Limits(NamedTuple):
    """A number and the least and the most that it may be."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


def ratio_limits(means: np.ndarray, samples: np.ndarray, sure: float = SURE) -> tuple[np.ndarray, np.ndarray]:
    """Least and greatest likely EA from mean predictions, [..., true class, class], of samples: [..., classes].

    NaN where EA is not known; the least is finite, and the greatest infinite where nothing may be mistaken at all.
    A number between 0 and 1 of mean m has a variance of at most m (1 - m) (Bhatia and Davis 2000), which stands in its
    place: intervals are rather too wide than too narrow, and no squares have to be summed. Each error gets the limits
    of Wilson (1927), corrected by half a sample for what hard predictions can be (Newcombe 1998), and the limits of the
    two make those of their ratio (MOVER-R, Newcombe 2016).

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


FEW_SAMPLES = 20  # of a class: below, nothing is concluded from its numbers


@dataclass(frozen=True, eq=False)
class Errors:
    """What happens to each class, [classes] or, for all sites at once, [sites, classes]; NaN where nothing is known."""

    samples: np.ndarray  # how many there are of the class
    predicted: np.ndarray  # how many samples of any class were given to it
    accuracy: np.ndarray  # part of its samples that were given to it
    missed: np.ndarray  # mean probability that its samples give to other classes
    false_alarm: np.ndarray  # mean probability that samples of others give to it, added up over these classes
    asymmetry: np.ndarray  # missed / false_alarm
    low: np.ndarray  # 95 % interval of the asymmetry
    high: np.ndarray
    least: np.ndarray  # the same so wide that, with 95 %, all classes and sites that are judged lie inside theirs
    most: np.ndarray
    means: np.ndarray  # [..., true class, class]: mean prediction

    @cached_property
    def ratio(self) -> np.ndarray:
        """The EA ratio, largest over smallest asymmetry: [] or [sites]."""
        known = ~np.isnan(self.asymmetry)
        with np.errstate(invalid="ignore", divide="ignore"):
            most = np.where(known, self.asymmetry, -np.inf).max(-1)
            return most / np.where(known, self.asymmetry, np.inf).min(-1)

    @property
    def enough(self) -> np.ndarray:
        """Where there are enough samples of the class to conclude anything."""
        return self.samples >= FEW_SAMPLES

    @property
    def overall_accuracy(self) -> np.ndarray:
        """Part of all samples that were given to their class: [] or [sites]."""
        hits = np.nansum(self.accuracy * self.samples, -1)
        with np.errstate(invalid="ignore", divide="ignore"):
            return hits / self.samples.sum(-1)

    def at(self, site: int) -> Self:
        return type(self)(*(getattr(self, one.name)[site] for one in fields(self)))


def errors_of(tally: Tally) -> Errors:
    """Errors of every site and class: [sites, classes]."""
    samples = tally.samples.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        means = tally.sums / samples[..., None]
        others = np.where(np.eye(means.shape[-1], dtype=bool), np.nan, means)
        missed = np.maximum(1 - np.diagonal(means, axis1=-2, axis2=-1), 0)  # of rounded probabilities
        false_alarm = np.where(np.isnan(others).all(-2), np.nan, np.maximum(np.nansum(others, -2), 0))
        asymmetry = missed / false_alarm
        accuracy = tally.hits / samples
    limits = ratio_limits(means, samples)
    of_all = ratio_limits(means, samples, sure_of_all(int((samples >= FEW_SAMPLES).sum())))
    return Errors(tally.samples, tally.predicted, accuracy, missed, false_alarm, asymmetry, *limits, *of_all, means)


def stationary_bounds(class_counts: np.ndarray, measured: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Between which EA of every class lies where plain cross-entropy has stopped to train: twice [classes].

    class_counts: [classes] of the samples trained on, measured: bool [classes], which classes have samples to measure.

    Where the gradient of a class's bias vanishes, ``N_i · missed(i) = sum_{j != i} N_j P[j, i]``, so that EA(i) is a
    mean of N_j / N_i over the other classes, weighted by what they mistake for it (Eqs. 4 to 6 of the paper, in the
    reading of docs/reading-the-paper.md). NaN for a class that nothing else can be compared with.

    >>> low, high = stationary_bounds(np.array([90, 9, 1]), np.array([True, True, True]))
    >>> low.round(3), high.round(3)
    (array([0.011, 0.111, 9.   ]), array([ 0.1, 10. , 90. ]))
    """
    counts = class_counts.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = counts[:, None] / counts[None, :]  # [other class, class]
    usable = measured[:, None] & ~np.eye(len(counts), dtype=bool) & ~np.isnan(ratios)
    low = np.where(usable, ratios, np.inf).min(0)
    high = np.where(usable, ratios, -np.inf).max(0)
    known = usable.any(0)
    return np.where(known, low, np.nan), np.where(known, high, np.nan)
