"""The diagnosis in words: is a class being forgotten, which one, where, by how much, and who starves it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedga.diagnosis.counts import Holdings
from fedga.diagnosis.interval import sure_of_all
from fedga.diagnosis.measure import Errors
from fedga.report.summary import number_text
from fedga.report.words import listed

FORGOTTEN = 2.0  # EA from which a class counts as forgotten
_MOST_TIMES = 1000  # beyond, EA says how small a number was divided by, and is not spelled out
LEAST_MISSED = 0.05  # where less goes astray the ratio of two small errors says little

Level = Literal["forgotten", "at a site", "unclear", "fair"]
_MOST_NAMED = 4


@dataclass(frozen=True)
class Verdict:
    """``suspect`` is the class, and ``site`` the place, that the headline is about."""

    level: Level
    headline: str
    findings: tuple[str, ...]
    suspect: int | None = None
    site: int | None = None


def judge(
    class_names: Sequence[str], everywhere: Errors, site_names: Sequence[str], sites: Errors | None, holdings: Holdings
) -> Verdict:
    """What the numbers say.

    A class is forgotten where its EA on ``FEW_SAMPLES`` or more is at least ``FORGOTTEN``, and its samples give other
    classes at least ``LEAST_MISSED`` of their probability: sure to 95 % of all that is judged at once, since among many
    sites there is always one that was unlucky.
    """
    return _Judge(class_names, everywhere, site_names, sites, holdings).verdict()


@dataclass(frozen=True)
class _Judge:
    names: Sequence[str]
    everywhere: Errors
    site_names: Sequence[str]
    sites: Errors | None
    holdings: Holdings

    def verdict(self) -> Verdict:
        forgotten = _worst_first(self.everywhere, is_forgotten(self.everywhere))
        if forgotten:
            return self._forgotten(forgotten)
        if self.sites is not None and (cells := np.argwhere(is_forgotten(self.sites))).size:
            sure = self.sites.least[tuple(cells.T)]
            site, of_class = cells[int(np.argmax(sure))].tolist()
            return self._at_a_site(site, of_class, len(cells) - 1)
        maybe = _worst_first(self.everywhere, _may_be_forgotten(self.everywhere))
        if maybe:
            return self._unclear(maybe[0])
        unknown = np.flatnonzero(_cannot_be_judged(self.everywhere)).tolist()
        if unknown:
            return self._unknown(sorted(unknown, key=lambda at: -np.nan_to_num(self.everywhere.asymmetry[at])))
        return self._fair()

    def _forgotten(self, forgotten: Sequence[int]) -> Verdict:
        worst, *others = forgotten
        site = self._worst_site(worst)
        where = "" if site is None else f", most of all at {self.site_names[site]}"
        headline = f"Yes: this model forgets {self._called(worst)}, {_missed(self.everywhere, worst)}{where}."
        findings = [self._errors(worst)]
        if site is not None and self.sites is not None:
            there = self.sites.at(site)
            findings.append(
                f"At {self.site_names[site]}, {percent(there.accuracy[worst])} of its {_samples(there, worst)} are "
                f"recognised, and {percent(there.missed[worst])} of the probability goes to other classes."
            )
        if others:
            findings.append(f"{self._few(others)} {'is' if len(others) == 1 else 'are'} forgotten too.")
        return Verdict("forgotten", headline, (*findings, *self._favoured(), *self._starved(worst)), worst, site)

    def _at_a_site(self, site: int, of_class: int, others: int) -> Verdict:
        assert self.sites is not None
        there = self.sites.at(site)
        headline = (
            f"Not everywhere, but at {self.site_names[site]} this model forgets {self._called(of_class)}, which is "
            f"there {_missed(there, of_class)}."
        )
        findings = [
            f"There, {percent(there.accuracy[of_class])} of its {_samples(there, of_class)} are recognised; over all "
            f"sites it is {percent(self.everywhere.accuracy[of_class])}."
        ]
        if others:
            findings.append(f"The same holds for {others} more {'pair' if others == 1 else 'pairs'} of site and class.")
        return Verdict("at a site", headline, (*findings, *self._starved(of_class)), of_class, site)

    def _unclear(self, worst: int) -> Verdict:
        headline = (
            f"Perhaps: {self._called(worst)} seems to be forgotten, {_missed(self.everywhere, worst)}, but the samples "
            "are too few to be sure."
        )
        return Verdict("unclear", headline, (self._errors(worst), *self._starved(worst)), worst)

    def _unknown(self, unknown: Sequence[int]) -> Verdict:
        """No class is known to be forgotten, and of some too little is known."""
        worst, *others = unknown
        verb = "is" if self.everywhere.samples[worst] == 1 else "are"
        headline = (
            f"Cannot tell: only {_samples(self.everywhere, worst)} of {self._called(worst)} {verb} too few to say "
            "whether it is forgotten."
        )
        findings = [self._errors(worst)]
        if others:
            findings.append(f"The same holds for {self._few(others)}; no other class is forgotten.")
        else:
            findings.append("No other class is forgotten.")
        return Verdict("unclear", headline, (*findings, *self._starved(worst)), worst)

    def _fair(self) -> Verdict:
        found = self.everywhere
        known = ~np.isnan(found.asymmetry)
        if not known.any():
            return Verdict("fair", "No: this model makes no errors at all here, so that none can be uneven.", ())
        worst = int(np.argmax(np.where(known, found.asymmetry, -np.inf)))
        ea = found.asymmetry[worst]
        if ea >= FORGOTTEN:
            headline = (
                "No: no class is being forgotten; errors are uneven, but even “"
                f"{self.names[worst]}”, the most one-sided, is missed by only {percent(found.missed[worst])}."
            )
        else:
            headline = (
                f"No: no class is being forgotten; the worst off, “{self.names[worst]}”, is missed {times(ea)} as much "
                "as others are mistaken for it."
            )
        return Verdict("fair", headline, (self._errors(worst), *self._favoured()))

    def _few(self, classes: Sequence[int]) -> str:
        """The first of these classes by name, and how many more there are."""
        shown, more = [f"“{self.names[at]}”" for at in classes[:_MOST_NAMED]], len(classes) - _MOST_NAMED
        return f"{', '.join(shown)} and {more} more" if more > 0 else listed(shown)

    def _called(self, of_class: int) -> str:
        rare, missing = class_kinds(self.holdings.totals)
        kind = "class" if not rare[of_class] else "rare class"
        return f"the {kind} “{self.names[of_class]}”" + (" (never trained on)" if missing[of_class] else "")

    def _errors(self, of_class: int) -> str:
        found = self.everywhere
        if found.missed[of_class] == found.false_alarm[of_class] == 0:
            return f"“{self.names[of_class]}” is never missed, and nothing else is mistaken for it."
        low, high = found.low[of_class], found.high[of_class]
        span = f"{_ea(low)} or more" if high > _MOST_TIMES else f"{_ea(low)} to {_ea(high)}"
        sure = "" if np.isnan(low) else f"; 95 % sure: {span}"
        return (
            f"{percent(found.accuracy[of_class])} of the {_samples(found, of_class)} of “{self.names[of_class]}” are "
            f"recognised; over all samples it is {percent(float(found.overall_accuracy))}. On average they are missed "
            f"by {number_text(found.missed[of_class])}, and others are mistaken for them by "
            f"{number_text(found.false_alarm[of_class])}: error asymmetry {number_text(found.missed[of_class])} / "
            f"{number_text(found.false_alarm[of_class])} = {_ea(found.asymmetry[of_class])}, where 1 is fair{sure}."
        )

    def _favoured(self) -> list[str]:
        """Who gains by it: the class that is given too often."""
        found = self.everywhere
        sure = np.where(is_favoured(found), found.most, np.inf)
        best = int(np.argmin(sure))
        if np.isinf(sure[best]):
            return []
        return [
            f"“{self.names[best]}” is favoured: it was predicted {found.predicted[best]:,} times and is true "
            f"{found.samples[best]:,} times (error asymmetry {number_text(found.asymmetry[best], True)})."
        ]

    def _starved(self, of_class: int) -> list[str]:
        """Who holds little of a class, by the samples trained on."""
        counts, totals = self.holdings.counts, self.holdings.totals
        if not totals.sum():
            return []
        share = totals[of_class] / totals.sum()
        found = [
            f"“{self.names[of_class]}” is {percent(share)} of the samples ({number(totals[of_class])} of "
            f"{number(totals.sum())}, {self.holdings.source})."
        ]
        if len(self.holdings.site_names) < 2 or not totals[of_class]:
            return found
        rare, missing = class_kinds(counts)
        none, few = int(missing[:, of_class].sum()), int(rare[:, of_class].sum())
        most = int(np.argmax(counts[:, of_class]))
        part = counts[most, of_class] / totals[of_class]
        return [
            *found,
            f"Of {len(counts)} sites, {none} {'holds' if none == 1 else 'hold'} no sample of it and {few} "
            f"{'holds' if few == 1 else 'hold'} less of it than of an average class; "
            f"{self.holdings.site_names[most]} holds {percent(part)} of all there are.",
        ]

    def _worst_site(self, of_class: int) -> int | None:
        """Where a class is missed most, if there are sites to compare and it is clearly missed more than over all."""
        judged = 0 if self.sites is None else int(self.sites.enough[:, of_class].sum())
        if self.sites is None or judged < 2:
            return None
        samples = self.sites.samples[:, of_class]
        missed = np.where(self.sites.enough[:, of_class], self.sites.missed[:, of_class], -np.inf)
        worst, overall = int(np.argmax(missed)), self.everywhere.missed[of_class]
        chance = sure_of_all(judged) * np.sqrt(overall * (1 - overall) / samples[worst])
        return worst if missed[worst] > overall + chance else None


def class_kinds(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which classes are rare and which are missing among so many samples of each: masks, [..., classes]."""
    held = counts > 0
    return held & (counts * counts.shape[-1] < counts.sum(-1, keepdims=True)), ~held


def is_forgotten(errors: Errors) -> np.ndarray:
    """Classes that are clearly missed too much."""
    return errors.enough & (errors.least >= FORGOTTEN) & (errors.missed >= LEAST_MISSED)


def is_favoured(errors: Errors) -> np.ndarray:
    """Classes that are clearly given too often."""
    return errors.enough & (errors.most <= 1 / FORGOTTEN)


def _may_be_forgotten(errors: Errors) -> np.ndarray:
    return errors.enough & (errors.asymmetry >= FORGOTTEN) & (errors.missed >= LEAST_MISSED)


def _cannot_be_judged(errors: Errors) -> np.ndarray:
    """Classes of few samples that may be forgotten for all we know; so few may always be missed by `LEAST_MISSED`."""
    return ~errors.enough & (errors.samples > 0) & ~(errors.high < FORGOTTEN)


def _worst_first(errors: Errors, chosen: np.ndarray) -> list[int]:
    """Places in the order of the least EA that is still likely."""
    return sorted(np.flatnonzero(chosen).tolist(), key=lambda at: -np.nan_to_num(errors.least[at], nan=0.0))


def _samples(errors: Errors, of_class: int) -> str:
    number_of = int(errors.samples[of_class])
    return f"{number_of:,} sample{'s' * (number_of != 1)}"


def _missed(errors: Errors, of_class: int) -> str:
    """By how much a class is missed."""
    ea = errors.asymmetry[of_class]
    never = "never predicted and " if ea > _MOST_TIMES and not errors.predicted[of_class] else ""
    return f"{never}missed {times(ea)} as much as others are mistaken for it"


def _ea(value: float) -> str:
    return f"over {_MOST_TIMES:,}" if value > _MOST_TIMES else number_text(value, True)


def percent(share: float) -> str:
    """
    >>> print(percent(0.4567), percent(0.0312), percent(0.00004), percent(0.0), sep=", ")
    46 %, 3.1 %, under 0.1 %, 0 %
    >>> print(percent(0.9961), percent(0.99999), percent(1.0), sep=", ")
    99.6 %, over 99.9 %, 100 %
    """
    if math.isnan(share):
        return "–"
    if 0 < share < 0.001:
        return "under 0.1\u00a0%"
    if 0.9995 <= share < 1:
        return "over 99.9\u00a0%"
    whole = share in (0, 1) or 0.1 <= share < 0.99
    return f"{100 * share:.{0 if whole else 1}f}\u00a0%"


def times(ea: float) -> str:
    """
    >>> times(8.04), times(1.26), times(340.2), times(1.01)
    ('8 times', '1.3 times', '340 times', '1.0 times')
    >>> times(8598172.0), times(float("inf"))
    ('more than 1,000 times', 'more than 1,000 times')
    """
    if ea > _MOST_TIMES:
        return f"more than {_MOST_TIMES:,} times"
    text = f"{ea:,.0f}" if ea >= 10 else f"{ea:.1f}"
    return f"{text if text == '1.0' else text.removesuffix('.0')} times"


def number(count: float) -> str:
    return f"{count:,.0f}" if float(count).is_integer() else f"{count:,.1f}"
