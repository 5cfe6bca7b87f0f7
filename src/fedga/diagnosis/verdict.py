"""The diagnosis in one sentence: is a class being forgotten, which one, where and by how much.

And an example of what gradient alignment would change: the labels that a rare and a frequent sample would get.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedga.diagnosis.counts import TrainingCounts
from fedga.diagnosis.measure import Errors, sure_of_all
from fedga.report.documents import NOTHING

FORGOTTEN = 2.0  # EA from which a class counts as forgotten
LEAST_MISSED = 0.05  # below, the ratio of two small errors says little
MOST_TIMES = 1000  # beyond, EA says how small a number was divided by, and is not spelled out

Level = Literal["forgotten", "at a site", "unclear", "fair"]
Kind = Literal["high", "low", "even", "few"]  # as the page colours it
KIND_NAMES = {"high": "forgotten", "low": "favoured", "even": "in between", "few": "too few"}


def percent(share: float) -> str:
    """
    >>> print(percent(0.4567), percent(0.0312), percent(0.00004), percent(0.0), sep=", ")
    46 %, 3.1 %, under 0.1 %, 0 %
    >>> print(percent(0.9961), percent(0.99999), percent(1.0), sep=", ")
    99.6 %, over 99.9 %, 100 %
    """
    if math.isnan(share):
        return NOTHING
    if 0 < share < 0.001:
        return "under 0.1\u00a0%"
    if 0.9995 <= share < 1:
        return "over 99.9\u00a0%"
    whole = share in (0, 1) or 0.1 <= share < 0.99
    return f"{100 * share:.{0 if whole else 1}f}\u00a0%"


def times(ea: float) -> str:
    """
    >>> times(8.04), times(1.26), times(340.2), times(1.01), times(float("inf"))
    ('8 times', '1.3 times', '340 times', '1.0 times', 'more than 1,000 times')
    """
    if ea > MOST_TIMES:
        return f"more than {MOST_TIMES:,} times"
    text = f"{ea:,.0f}" if ea >= 10 else f"{ea:.1f}"
    return f"{text if text == '1.0' else text.removesuffix('.0')} times"


@dataclass(frozen=True)
class Verdict:
    """``suspect`` is the class, and ``site`` the site, that the headline is about."""

    level: Level
    headline: str
    suspect: int | None = None
    site: int | None = None


def judge(
    class_names: Sequence[str],
    everywhere: Errors,
    site_names: Sequence[str],
    sites: Errors | None,
    holdings: TrainingCounts,
) -> Verdict:
    """A class is forgotten where its EA on ``FEW_SAMPLES`` or more reaches ``FORGOTTEN``, and its samples give other
    classes at least ``LEAST_MISSED`` of their probability: sure to 95 % of all that is judged at once, since among many
    sites there is always one that was unlucky.
    """
    rare, missing = class_kinds(holdings.totals)

    def called(at: int) -> str:
        kind = "rare class" if rare[at] else "class"
        return f"the {kind} “{class_names[at]}”" + " (never trained on)" * bool(missing[at])

    if (worst := worst_of(everywhere.least, is_forgotten(everywhere))) is not None:
        site = _worst_site(everywhere, sites, worst)
        where = "" if site is None else f", most of all at {site_names[site]}"
        headline = f"Yes: this model forgets {called(worst)}, {_missed(everywhere, worst)}{where}."
        return Verdict("forgotten", headline, worst, site)
    if sites is not None and (pair := worst_of(sites.least, is_forgotten(sites))) is not None:
        site, worst = divmod(pair, len(class_names))
        there = f"which is there {_missed(sites.at(site), worst)}"
        headline = f"Not everywhere, but at {site_names[site]} this model forgets {called(worst)}, {there}."
        return Verdict("at a site", headline, worst, site)
    unsure = everywhere.enough & (everywhere.asymmetry >= FORGOTTEN) & (everywhere.missed >= LEAST_MISSED)
    if (worst := worst_of(everywhere.least, unsure)) is not None:
        seems = f"{called(worst)} seems to be forgotten, {_missed(everywhere, worst)}"
        return Verdict("unclear", f"Perhaps: {seems}, but the samples are too few to be sure.", worst)
    # So few samples may always be missed by `LEAST_MISSED`.
    not_judged = ~everywhere.enough & (everywhere.samples > 0) & ~(everywhere.high < FORGOTTEN)
    if (worst := worst_of(everywhere.asymmetry, not_judged)) is not None:
        samples = int(everywhere.samples[worst])
        few = f"{samples:,} samples of {called(worst)} are" if samples != 1 else f"1 sample of {called(worst)} is"
        return Verdict("unclear", f"Cannot tell: only {few} too few to say whether it is forgotten.", worst)
    return Verdict("fair", _fair(class_names, everywhere))


def worst_of(scores: np.ndarray, chosen: np.ndarray) -> int | None:
    """Where the score is highest of those chosen; one that is not known counts as 0."""
    if not chosen.any():
        return None
    return int(np.argmax(np.where(chosen, np.nan_to_num(scores, nan=0.0, posinf=np.inf), -np.inf)))


def _missed(errors: Errors, at: int) -> str:
    ea = errors.asymmetry[at]
    never = "never predicted and " if ea > MOST_TIMES and not errors.predicted[at] else ""
    return f"{never}missed {times(ea)} as much as others are mistaken for it"


def _fair(class_names: Sequence[str], errors: Errors) -> str:
    worst = worst_of(errors.asymmetry, ~np.isnan(errors.asymmetry))
    if worst is None:
        return "No: this model makes no errors at all here, so that none can be uneven."
    if errors.asymmetry[worst] >= FORGOTTEN:
        small = f"the most one-sided, is missed by only {percent(errors.missed[worst])}"
        return f"No: no class is being forgotten; errors are uneven, but even “{class_names[worst]}”, {small}."
    return f"No: no class is being forgotten; the worst off, “{class_names[worst]}”, is {_missed(errors, worst)}."


def _worst_site(everywhere: Errors, sites: Errors | None, of_class: int) -> int | None:
    """Where a class is missed most, if there are sites to compare and it is clearly missed more than over all."""
    judged = 0 if sites is None else int(sites.enough[:, of_class].sum())
    if sites is None or judged < 2:
        return None
    missed = np.where(sites.enough[:, of_class], sites.missed[:, of_class], -np.inf)
    worst, overall = int(np.argmax(missed)), everywhere.missed[of_class]
    chance = sure_of_all(judged) * np.sqrt(overall * (1 - overall) / sites.samples[worst, of_class])
    return worst if missed[worst] > overall + chance else None


def class_kinds(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which classes are rare and which are missing among so many samples of each: masks, [..., classes]."""
    held = counts > 0
    return held & (counts * counts.shape[-1] < counts.sum(-1, keepdims=True)), ~held


def is_forgotten(errors: Errors) -> np.ndarray:
    """Classes that are clearly missed too much."""
    return errors.enough & (errors.least >= FORGOTTEN) & (errors.missed >= LEAST_MISSED)


def kind_of(errors: Errors, at: int) -> Kind:
    """Whether a class is clearly missed too much, given too much, neither, or has too few samples to say."""
    if not errors.enough[at]:
        return "few"
    if is_forgotten(errors)[at]:
        return "high"
    return "low" if errors.most[at] <= 1 / FORGOTTEN else "even"


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


def example_of(everywhere: Errors, holdings: TrainingCounts, suspect: int | None) -> Example | None:
    """The suspect, else the rarest class, beside the most frequent other one, at the site where most outnumbered."""
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
