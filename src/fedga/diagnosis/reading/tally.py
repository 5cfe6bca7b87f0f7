"""What is kept of predictions: sums by site and true class, added up batch by batch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedga.common.memory import require_memory
from fedga.diagnosis.reading.vocabulary import UNKNOWN, Labels, Sites, few_of, text_of, whole_number
from fedga.errors import FedGAError

ROWS_AT_ONCE = 4000  # of a hundred classes they fit a core's cache; no power of two, whose columns would collide there
LEAST_TOLERANCE, MOST_TOLERANCE = 0.01, 0.05  # of a sum of probabilities
_ROUNDED_BY = 0.005  # a probability of two digits
_NEARLY_ALL = 0.99  # of the rows
NEGATIVE_TOLERANCE = 1e-6
_MOST_GROUPS_PER_ROW = 8  # adding so many zeros costs less than finding out which groups occur
_LONGEST_SHOWN = 60  # characters of a label
MOST_CELLS = 20_000_000  # sites × classes × classes
_BYTES_PER_CELL = 80  # of all tables that a diagnosis makes of one, measured
_BYTES_PER_SITE = 2000  # of its row on the page and in the files beside it, measured


@dataclass(frozen=True, eq=False)
class Batch:
    """Some rows of predictions: what was read, with labels and sites as numbers."""

    first: int  # the number of the first row, counted from 1
    scores: np.ndarray  # [classes, rows]: probabilities, or logits; overwritten when they are counted in
    labels: np.ndarray  # int64 [rows]
    sites: np.ndarray  # int64 [rows]
    raw_labels: Callable[[int], Any]  # the label of a row of the batch as it was written, for a complaint


class Scores:
    """Room for the scores of a batch, used again for the next: new memory has to be cleared by the system first."""

    def __init__(self, classes: int) -> None:
        self._room = np.empty((classes, 0))

    def of(self, rows: int) -> np.ndarray:
        """float64 [classes, rows], with anything in it."""
        if self._room.shape[1] != rows:
            self._room = np.empty((len(self._room), rows))
        return self._room


@dataclass(frozen=True, eq=False)
class Tally:
    """Sums over the samples of each site and true class, from which every number of a diagnosis follows."""

    samples: np.ndarray  # int64 [sites, classes]
    sums: np.ndarray  # float64 [sites, true class, class]: of the probabilities
    hits: np.ndarray  # int64 [sites, classes]: samples of a class that were given to it
    predicted: np.ndarray  # int64 [sites, classes]: samples of any class that were given to it

    def pooled(self) -> Tally:
        """All sites as one."""
        return Tally(*(values.sum(0, keepdims=True) for values in (self.samples, self.sums, self.hits, self.predicted)))

    def in_order(self, sites: np.ndarray) -> Tally:
        """The sites at these places."""
        return Tally(self.samples[sites], self.sums[sites], self.hits[sites], self.predicted[sites])


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions that were read, checked and added up."""

    class_names: tuple[str, ...]
    site_names: tuple[str, ...]  # empty: nobody said
    tally: Tally
    notes: tuple[str, ...] = ()  # what a reader should know of how they were read


def check_classes(classes: int, where: str) -> None:
    """Refuse more classes than a table of each against each can hold."""
    most = math.isqrt(MOST_CELLS)
    if classes > most:
        raise FedGAError(
            f"{where} has {classes:,} classes, too many for one page, which holds {most:,}: put classes together, or "
            "choose columns with --probability-columns"
        )


class Tallying:
    """Checks batches and adds them up; sites are met on the way."""

    def __init__(self, labels: Labels, where: str, *, logits: bool = False) -> None:
        check_classes(len(labels.names), where)
        self.labels, self.where, self.logits = labels, where, logits
        self.rows = self._like_probabilities = 0
        self._classes = len(labels.names)
        self._tolerance = 1e-9 + min(max(_ROUNDED_BY * self._classes, LEAST_TOLERANCE), MOST_TOLERANCE)
        self._room = 0  # sites
        self._sums = np.zeros((self._classes, 0))  # [class, site and true class]
        self._counts = np.zeros((3, 0), dtype=np.int64)  # samples, hits and predicted, as `Tally` has them

    def add(self, batch: Batch) -> None:
        """Count a batch in, or say which row is wrong."""
        self._check_codes(batch)
        probs = self._probabilities(batch)
        self._make_room(int(batch.sites.max()) + 1)
        group = batch.sites * self._classes + batch.labels
        self._add_sums(group, probs)
        predicted = probs.argmax(0)
        given = batch.sites * self._classes + predicted
        for counts, groups in zip(self._counts, (group, group[predicted == batch.labels], given), strict=True):
            present, number = np.unique(groups, return_counts=True)
            counts[present] += number
        self.rows += len(batch.labels)

    def _add_sums(self, group: np.ndarray, probs: np.ndarray) -> None:
        groups = self._sums.shape[1]
        if groups <= _MOST_GROUPS_PER_ROW * len(group):
            for sums, column in zip(self._sums, probs, strict=True):
                sums += np.bincount(group, column, groups)
            return
        # Only the groups that occur here: with many sites all of them would cost more than the rows.
        present, local = np.unique(group, return_inverse=True)
        for sums, column in zip(self._sums, probs, strict=True):
            sums[present] += np.bincount(local, column, len(present))

    def result(self, sites: int) -> Tally:
        """What was added up, of so many sites."""
        if not self.rows:
            raise FedGAError(f"{self.where} has no rows: give at least one prediction of every class")
        self._check_all()
        self._check_memory(sites)
        shape = (self._room, self._classes)
        samples, hits, predicted = self._counts.reshape(3, *shape)[:, :sites]
        if (samples.sum(0) > 0).sum() < 2:
            [only] = np.flatnonzero(samples.sum(0))
            raise FedGAError(
                f"all rows of {self.where} are of class {self.labels.names[only]!r}, so nothing can be mistaken for "
                "it: give samples of two classes or more"
            )
        sums = self._sums.reshape(self._classes, *shape)[:, :sites].transpose(1, 2, 0)
        return Tally(samples, np.ascontiguousarray(sums), hits, predicted)

    def _check_all(self) -> None:
        """Refuse what can be told from all rows alone."""
        if self.logits and self._like_probabilities >= _NEARLY_ALL * self.rows:
            raise FedGAError(
                f"the numbers of {self.where} sum to 1 in every row, so these are probabilities already: leave "
                "--logits out (in Python logits=True), and call an array of them probs"
            )
        if self.labels.seem_to_count_from_one:
            raise self._from_one()

    def _from_one(self) -> FedGAError:
        return FedGAError(
            f"the labels of {self.where} seem to count from 1, since 0 never occurs: write the names of the classes "
            f"({few_of(self.labels.names, 4)}), or count from 0"
        )

    def _make_room(self, sites: int) -> None:
        if sites <= self._room:
            return
        if sites * self._classes**2 > MOST_CELLS:
            raise FedGAError(
                f"{self.where} has {sites:,} sites or more of {self._classes} classes, too many for one page: name a "
                "column with fewer sites, or pass --site-column none"
            )
        self._check_memory(sites)
        self._room = min(2 * sites, MOST_CELLS // self._classes**2)
        more = self._room * self._classes - self._sums.shape[1]
        self._sums = np.pad(self._sums, ((0, 0), (0, more)))
        self._counts = np.pad(self._counts, ((0, 0), (0, more)))

    def _check_memory(self, sites: int) -> None:
        require_memory(
            sites * (self._classes**2 * _BYTES_PER_CELL + _BYTES_PER_SITE),
            f"{self.where}, of {sites:,} {'sites' if sites > 1 else 'site'} and {self._classes:,} classes,",
            "put classes or sites together, or use a machine with more memory",
        )

    def _check_codes(self, batch: Batch) -> None:
        for codes, is_label in ((batch.labels, True), (batch.sites, False)):
            if codes.size and codes.min() == UNKNOWN:
                at = int(np.argmin(codes))
                row = f"row {batch.first + at:,} of {self.where}"
                if not is_label:
                    raise FedGAError(f"{row} names no site: name one in every row, or pass --site-column none")
                label = batch.raw_labels(at)
                text = text_of(label)
                if not text:
                    raise FedGAError(f"{row} has no label: label it or remove it")
                if self.labels.seem_to_count_from_one:
                    raise self._from_one()
                shown = text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
                why = "" if whole_number(text) is not None else f"; no column of probabilities is called {shown!r}"
                raise FedGAError(f"{row} has label {shown!r}, which is no class: it must be {self.labels.known()}{why}")

    def _probabilities(self, batch: Batch) -> np.ndarray:
        """The batch's probabilities, float64 [classes, rows], checked."""
        scores = np.asarray(batch.scores, dtype=np.float64)
        if self.logits:
            if len(scores) > 1:
                fits = (np.abs(scores.sum(0) - 1) <= self._tolerance) & (scores.min(0) >= -NEGATIVE_TOLERANCE)
                self._like_probabilities += int(fits.sum())
            return _softmax(self._finite(batch, scores))
        if len(scores) == 1:
            self._check_range(batch, scores, highest=1.0)
            return np.concatenate([1 - scores, scores])
        total = scores.sum(0)
        off = np.abs(total - 1) > self._tolerance
        if off.any() or not scores.min() >= -NEGATIVE_TOLERANCE:  # NaN is not at least anything
            self._check_range(batch, scores)
            self._refuse_sum(batch, scores, int(np.argmax(off)))
        return np.divide(scores, total, out=scores)

    def _finite(self, batch: Batch, scores: np.ndarray) -> np.ndarray:
        """Logits of which every one is a number; minus infinity is one, and means a probability of 0."""
        if np.isfinite(scores).all():
            return scores
        bad = np.isnan(scores) | (scores == np.inf) | ~np.isfinite(scores).any(0)
        if bad.any():
            self._refuse_number(batch, scores, bad)
        return scores

    def _check_range(self, batch: Batch, scores: np.ndarray, highest: float = np.inf) -> None:
        """Refuse the first row that has something else than a probability; NaN is none."""
        wrong = ~((scores >= -NEGATIVE_TOLERANCE) & (scores <= highest + NEGATIVE_TOLERANCE) & np.isfinite(scores))
        if not wrong.any():
            return
        at = int(np.argmax(wrong.any(0)))
        of_class = int(np.argmax(wrong[:, at]))
        if not np.isfinite(scores[of_class, at]):
            self._refuse_number(batch, scores, wrong & ~np.isfinite(scores))
        raise FedGAError(
            f"row {batch.first + at:,} of {self.where} gives class {self._called(scores, of_class)!r} the probability "
            f"{scores[of_class, at]:.4g}, which is none: give numbers from 0 to 1 (divide per cent by 100), or pass "
            "--logits (in Python logits=True) if these are logits"
        )

    def _refuse_number(self, batch: Batch, scores: np.ndarray, bad: np.ndarray) -> None:
        at = int(np.argmax(bad.any(0)))
        of_class = int(np.argmax(bad[:, at]))
        raise FedGAError(
            f"row {batch.first + at:,} of {self.where} has no number for class {self._called(scores, of_class)!r} "
            f"({scores[of_class, at]:g}): fill it in, or remove the row"
        )

    def _refuse_sum(self, batch: Batch, scores: np.ndarray, at: int) -> None:
        total = float(scores[:, at].sum())
        row = f"the probabilities in row {batch.first + at:,} of {self.where}"
        if abs(total - 100) <= 100 * self._tolerance:
            raise FedGAError(f"{row} sum to {total:.4g}, so these are per cent: divide them by 100")
        may_be_logits = scores[:, at].min() < 0 or scores[:, at].max() > 1
        first = "pass --logits (in Python logits=True) if these are logits" if may_be_logits else "correct them"
        raise FedGAError(
            f"{row} sum to {total:.4g}, not to 1: {first}, or choose the right columns with --probability-columns "
            f"(taken as classes: {few_of(self.labels.names, 4)})"
        )

    def _called(self, scores: np.ndarray, of_class: int) -> str:
        """The name of a class; a single row of scores is that of the positive one."""
        return self.labels.names[1 if len(scores) == 1 else of_class]


def _softmax(scores: np.ndarray) -> np.ndarray:
    if len(scores) == 1:  # one logit: that of class 1 against 0
        scores = np.concatenate([np.zeros_like(scores), scores])
    powers = np.exp(scores - scores.max(0))
    return powers / powers.sum(0)


def finished(tallying: Tallying, sites: Sites, has_sites: bool) -> Predictions:
    """What was added up, sites in the order of their names."""
    tally = tallying.result(len(sites.names) if has_sites else 1)
    if not has_sites:
        return Predictions(tallying.labels.names, (), tally)
    order = sorted(range(len(sites.names)), key=lambda at: (_by_number(sites.names[at]), sites.names[at]))
    names = tuple(sites.names[at] for at in order)
    return Predictions(tallying.labels.names, names, tally.in_order(np.array(order)))


def _by_number(name: str) -> list[tuple[int, int, str]]:
    """Sorts "site 9" before "site 10"; numbers by their length first, since they may be too long to be converted."""
    parts = [part for part in re.split(r"(\d+)", name) if part]
    return [(0, len(part.lstrip("0")), part.lstrip("0")) if part.isdecimal() else (1, 0, part) for part in parts]
