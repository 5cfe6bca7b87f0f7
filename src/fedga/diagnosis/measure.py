"""The numbers of a diagnosis: both errors of every class, their asymmetry and how sure it is, over all and by site.

The formulas are those of ``fedga.measures.asymmetry`` and ``fedga.losses.calibration``, written once more in NumPy and
tested to be the same: torch takes seconds to import, longer than most files take to read.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from fedga.diagnosis.interval import ratio_limits, sure_of_all
from fedga.diagnosis.reading.tally import Tally

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

    def at(self, site: int) -> Errors:
        """Those of one site."""
        return Errors(*(getattr(self, one.name)[site] for one in fields(self)))


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
