"""What is kept of predictions: sums by site and true class, added up batch by batch."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from fedga.common.memory import require_memory
from fedga.data.assemble import listed
from fedga.diagnosis.counts import Adjustment
from fedga.diagnosis.reading.vocabulary import UNKNOWN, Labels, SiteNames, text_of, whole_number
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
_IF_LOGITS = "pass --logits (in Python logits=True) if these are logits"


class Tally(NamedTuple):
    """Sums over the samples of each site and true class, from which every number of a diagnosis follows."""

    samples: np.ndarray  # int64 [sites, classes]
    sums: np.ndarray  # float64 [sites, true class, class]: of the probabilities
    hits: np.ndarray  # int64 [sites, classes]: samples of a class that were given to it
    predicted: np.ndarray  # int64 [sites, classes]: samples of any class that were given to it

    def pooled(self) -> Self:
        """All sites as one."""
        return type(self)(*(values.sum(0, keepdims=True) for values in self))


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
        problem = f"{where} has {classes:,} classes, too many for one page, which holds {most:,}"
        raise FedGAError(f"{problem}: put classes together, or choose columns with --probability-columns")


class Tallying:
    """Checks batches of predictions and adds them up; sites are met on the way."""

    def __init__(self, labels: Labels, where: str, *, logits: bool = False, adjust: Adjustment | None = None) -> None:
        check_classes(len(labels.names), where)
        self.labels, self.where, self.logits = labels, where, logits
        self._shift = np.zeros(len(labels.names)) if adjust is None else adjust.shift(labels.names)
        self.rows = self._like_probabilities = 0
        self._classes = len(labels.names)
        self._tolerance = 1e-9 + min(max(_ROUNDED_BY * self._classes, LEAST_TOLERANCE), MOST_TOLERANCE)
        self._scores = np.empty((0, 0))
        self._room = 0  # sites
        self._sums = np.zeros((self._classes, 0))  # [class, site and true class]
        self._counts = np.zeros((3, 0), dtype=np.int64)  # samples, hits and predicted, as `Tally` has them

    def scores(self, columns: int, rows: int) -> np.ndarray:
        """Room for the scores of a batch, used again for the next: new memory has to be cleared by the system first."""
        if self._scores.shape != (columns, rows):
            self._scores = np.empty((columns, rows))
        return self._scores

    def add(self, scores: np.ndarray, labels: np.ndarray, sites: np.ndarray, written: Callable[[int], Any]) -> None:
        """Count a batch in, or say which row is wrong.

        scores: float64 [classes, rows] of probabilities or logits, which are overwritten; labels, sites: int64 [rows];
        ``written`` gives the label of a row as it stands in the file.
        """
        self._check_codes(labels, sites, written)
        probs = self._adjusted(self._probabilities(scores))
        self._make_room(int(sites.max()) + 1)
        group = sites * self._classes + labels
        self._add_sums(group, probs)
        predicted = probs.argmax(0)
        given = sites * self._classes + predicted
        for counts, groups in zip(self._counts, (group, group[predicted == labels], given), strict=True):
            present, number = np.unique(groups, return_counts=True)
            counts[present] += number
        self.rows += len(labels)

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

    def result(self, sites: SiteNames | None) -> Predictions:
        """What was added up, sites in the order of their names; None: of one site, which nobody named."""
        if not self.rows:
            raise FedGAError(f"{self.where} has no rows: give at least one prediction of every class")
        if self.logits and self._like_probabilities >= _NEARLY_ALL * self.rows:
            raise FedGAError(f"rows of {self.where} sum to 1, so these are probabilities already: leave --logits out")
        if self.labels.seem_to_count_from_one:
            raise self._from_one()
        names = () if sites is None else sites.names
        number = len(names) or 1
        self._check_memory(number)
        samples, hits, predicted = self._counts.reshape(3, self._room, self._classes)[:, :number]
        if (samples.sum(0) > 0).sum() < 2:
            [only] = np.flatnonzero(samples.sum(0))
            problem = f"all rows of {self.where} are of class {self.labels.names[only]!r}"
            raise FedGAError(f"{problem}, so nothing can be mistaken for it: give samples of two classes or more")
        sums = self._sums.reshape(self._classes, self._room, self._classes)[:, :number].transpose(1, 2, 0)
        order = sorted(range(len(names)), key=lambda at: (_by_number(names[at]), names[at])) or [0]
        tally = Tally(*(np.ascontiguousarray(values[order]) for values in (samples, sums, hits, predicted)))
        return Predictions(self.labels.names, tuple(names[at] for at in order) if names else (), tally)

    def _from_one(self) -> FedGAError:
        cure = f"write the names of the classes ({listed(self.labels.names, 4)}), or count from 0"
        return FedGAError(f"the labels of {self.where} seem to count from 1, since 0 never occurs: {cure}")

    def _make_room(self, sites: int) -> None:
        if sites <= self._room:
            return
        if sites * self._classes**2 > MOST_CELLS:
            problem = f"{self.where} has {sites:,} sites or more of {self._classes} classes, too many for one page"
            raise FedGAError(f"{problem}: name a column with fewer sites, or pass --site-column none")
        self._check_memory(sites)
        self._room = min(2 * sites, MOST_CELLS // self._classes**2)
        more = self._room * self._classes - self._sums.shape[1]
        self._sums = np.pad(self._sums, ((0, 0), (0, more)))
        self._counts = np.pad(self._counts, ((0, 0), (0, more)))

    def _check_memory(self, sites: int) -> None:
        require_memory(
            sites * (self._classes**2 * _BYTES_PER_CELL + _BYTES_PER_SITE),
            f"{self.where}, of {sites:,} site{'s' * (sites > 1)} and {self._classes:,} classes,",
            "put classes or sites together, or use a machine with more memory",
        )

    def _row(self, at: int) -> str:
        return f"row {self.rows + at + 1:,} of {self.where}"

    def _check_codes(self, labels: np.ndarray, sites: np.ndarray, written: Callable[[int], Any]) -> None:
        if labels.min() == UNKNOWN:
            at = int(np.argmin(labels))
            text = text_of(written(at))
            if not text:
                raise FedGAError(f"{self._row(at)} has no label: label it or remove it")
            if self.labels.seem_to_count_from_one:
                raise self._from_one()
            shown = repr(text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}...")
            why = "" if whole_number(text) is not None else f"; no column of probabilities is called {shown}"
            known = self.labels.known()
            raise FedGAError(f"{self._row(at)} has label {shown}, which is no class: it must be {known}{why}")
        if sites.min() == UNKNOWN:
            row = self._row(int(np.argmin(sites)))
            raise FedGAError(f"{row} names no site: name one in every row, or pass --site-column none")

    def _adjusted(self, probs: np.ndarray) -> np.ndarray:
        """Probabilities [classes, rows] after the prior correction; as they are where that changes nothing."""
        if not self._shift.any():
            return probs
        with np.errstate(divide="ignore"):  # a probability of 0 stays one
            scores = np.log(np.maximum(probs, 0)) + self._shift[:, None]
        powers = np.exp(scores - scores.max(0))
        return powers / powers.sum(0)

    def _probabilities(self, scores: np.ndarray) -> np.ndarray:
        """Probabilities, float64 [classes, rows], checked."""
        if self.logits:
            # Minus infinity is a logit, and means a probability of 0.
            self._refuse(scores, np.isnan(scores) | (scores == np.inf) | ~np.isfinite(scores).any(0))
            if len(scores) == 1:  # one logit: that of class 1 against 0
                scores = np.concatenate([np.zeros_like(scores), scores])
            else:
                fits = (np.abs(scores.sum(0) - 1) <= self._tolerance) & (scores.min(0) >= -NEGATIVE_TOLERANCE)
                self._like_probabilities += int(fits.sum())
            powers = np.exp(scores - scores.max(0))
            return powers / powers.sum(0)
        if len(scores) == 1:
            self._refuse(scores, ~((scores >= -NEGATIVE_TOLERANCE) & (scores <= 1 + NEGATIVE_TOLERANCE)))
            return np.concatenate([1 - scores, scores])
        total = scores.sum(0)
        off = np.abs(total - 1) > self._tolerance
        if off.any() or not scores.min() >= -NEGATIVE_TOLERANCE:  # NaN is not at least anything
            self._refuse(scores, ~((scores >= -NEGATIVE_TOLERANCE) & np.isfinite(scores)))
            raise self._wrong_sum(scores, int(np.argmax(off)))
        return np.divide(scores, total, out=scores)

    def _refuse(self, scores: np.ndarray, wrong: np.ndarray) -> None:
        """Name the first row that has a wrong number; NaN and infinity are none at all."""
        if not wrong.any():
            return
        at = int(np.argmax(wrong.any(0)))
        of_class = int(np.argmax(wrong[:, at]))
        name = self.labels.names[1 if len(scores) == 1 else of_class]  # one row of scores is that of the positive class
        number = scores[of_class, at]
        if not np.isfinite(number):
            raise FedGAError(f"{self._row(at)} has no number for class {name!r} ({number:g}): fill it in")
        cure = f"give numbers from 0 to 1 (divide per cent by 100), or {_IF_LOGITS}"
        raise FedGAError(f"{self._row(at)} gives class {name!r} the probability {number:.4g}, which is none: {cure}")

    def _wrong_sum(self, scores: np.ndarray, at: int) -> FedGAError:
        total, row = float(scores[:, at].sum()), f"the probabilities in {self._row(at)}"
        if abs(total - 100) <= 100 * self._tolerance:
            return FedGAError(f"{row} sum to {total:.4g}, so these are per cent: divide them by 100")
        may_be_logits = scores[:, at].min() < 0 or scores[:, at].max() > 1
        cure = f"{_IF_LOGITS if may_be_logits else 'correct them'}, or choose the right columns with"
        taken = f"--probability-columns (taken as classes: {listed(self.labels.names, 4)})"
        return FedGAError(f"{row} sum to {total:.4g}, not to 1: {cure} {taken}")


def _by_number(name: str) -> list[tuple[int, int, str]]:
    """Sorts "site 9" before "site 10"; numbers by their length first, since they may be too long to be converted."""
    parts = [part for part in re.split(r"(\d+)", name) if part]
    return [(0, len(part.lstrip("0")), part.lstrip("0")) if part.isdecimal() else (1, 0, part) for part in parts]
