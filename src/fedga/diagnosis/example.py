"""What gradient alignment would change: the labels that a rare and a frequent sample would be trained with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedga.diagnosis.counts import Holdings
from fedga.diagnosis.measure import Errors


@dataclass(frozen=True, eq=False)
class TypicalSample:
    """A typical sample of a class: the mean prediction on its samples, and its calibrated label."""

    of_class: int
    prediction: np.ndarray  # p, [classes]
    label: np.ndarray  # q of Eq. (10), [classes]


@dataclass(frozen=True, eq=False)
class Example:
    """Two samples trained at one site, or as if all samples lay together."""

    site: int | None  # among those of the holdings
    counts: np.ndarray  # [classes], that the labels are calibrated by
    rare: TypicalSample
    frequent: TypicalSample

    @property
    def changes_nothing(self) -> bool:
        """Whether all classes are counted alike, so that the labels are the usual ones."""
        return bool(np.ptp(self.counts) == 0)


def example_of(everywhere: Errors, holdings: Holdings, suspect: int | None) -> Example | None:
    """The suspect, or else the rarest class, beside the most frequent other one.

    With several sites it is about the one where that class is held and most outnumbered: a client trains with its
    own counts.
    """
    site, counts, measured = None, holdings.totals, everywhere.samples > 0
    candidates = (counts > 0) & measured
    if not candidates.any() or measured.sum() < 2:
        return None
    rarest = int(np.argmin(np.where(candidates, counts, np.inf)))
    rare = rarest if suspect is None or not candidates[suspect] else suspect
    held = (holdings.counts[:, rare] > 0) & ((holdings.counts > 0).sum(1) > 1)  # beside something else
    if holdings.site_names and held.any():
        outnumbered = holdings.counts.max(1) / np.maximum(holdings.counts[:, rare], 1)
        site = int(np.argmax(np.where(held, outnumbered, -1)))
        counts = holdings.counts[site]
    others = measured & (np.arange(len(counts)) != rare)
    frequent = int(np.argmax(np.where(others, counts, -1)))
    rare, frequent = sorted((rare, frequent), key=lambda at: counts[at])
    return Example(site, counts, _sample(everywhere, rare, counts), _sample(everywhere, frequent, counts))


def _sample(everywhere: Errors, of_class: int, counts: np.ndarray) -> TypicalSample:
    prediction = everywhere.means[of_class]
    label = (1 - counts / (counts[of_class] or 1.0)) * prediction  # Eq. (10): (N_y - N_i) / N_y · p_i
    label[of_class] = 1
    return TypicalSample(of_class, prediction, label)
