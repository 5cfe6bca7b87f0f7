"""A diagnosis as a value, and the function that makes one of predictions in memory."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedga.diagnosis.counts import Adjustment, Given, TrainingCounts, holdings_of
from fedga.diagnosis.measure import Errors, errors_of, stationary_bounds
from fedga.diagnosis.reading.arrays import pieces_of, tally_arrays
from fedga.diagnosis.reading.tally import Predictions
from fedga.diagnosis.reading.vocabulary import text_of
from fedga.diagnosis.verdict import Example, Verdict, example_of, judge
from fedga.errors import FedGAError


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """Whether a model forgets somebody's class, with every number that says so.

    ``everywhere`` and ``sites`` hold, for each class, samples, accuracy, the two errors and their asymmetry: over all
    samples, [classes], and at every site, [sites, classes]. See :func:`diagnose`.
    """

    name: str  # what was diagnosed
    class_names: tuple[str, ...]
    everywhere: Errors
    site_names: tuple[str, ...]
    sites: Errors | None
    holdings: TrainingCounts
    notes: tuple[str, ...] = ()  # what the numbers were measured on, where it is not obvious
    before: Self | None = None  # of adjusted predictions: the diagnosis of the same without the adjustment

    def __repr__(self) -> str:
        return f"Diagnosis({self.name}: {self.headline})"

    def _repr_html_(self) -> str:
        from fedga.drawing import inline

        classes = zip(self.class_names, self.everywhere.accuracy, self.everywhere.asymmetry, strict=True)
        facts = {name: f"accuracy {right:.3f}, error asymmetry {ea:.3g}" for name, right, ea in classes}
        return inline.card(self.headline, {"EA ratio": f"{self.ea_ratio:.3g}"} | facts)

    @property
    def ea_ratio(self) -> float:
        """Largest over smallest error asymmetry of any class, 1 if unbiased."""
        return float(self.everywhere.ratio)

    @cached_property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Between which EA of each class would lie had plain cross-entropy converged: twice [classes]."""
        return stationary_bounds(self.holdings.totals, self.everywhere.samples > 0)

    @cached_property
    def verdict(self) -> Verdict:
        return judge(self.class_names, self.everywhere, self.site_names, self.sites, self.holdings)

    @cached_property
    def example(self) -> Example | None:
        """Calibrated labels of a rare and of a frequent sample; None where no class was both counted and measured."""
        return example_of(self.everywhere, self.holdings, self.verdict.suspect)

    @property
    def headline(self) -> str:
        """The answer in one sentence."""
        return self.verdict.headline

    def to_dict(self) -> dict[str, Any]:
        """Every number by class and by site, ready for JSON."""
        from fedga.diagnosis.numbers import as_dict

        return as_dict(self)

    def write(self, page: str | os.PathLike[str]) -> list[Path]:
        """Write the page, and beside it the numbers as JSON and CSV; the files written, the page first."""
        from fedga.diagnosis.build import write_diagnosis

        return write_diagnosis(self, Path(page))


def diagnose(
    probs: Any,
    labels: Any,
    sites: Any = None,
    class_names: Sequence[str] | None = None,
    class_counts: Given | None = None,
    *,
    logits: bool = False,
    adjust: float | None = None,
    name: str = "the predictions",
) -> Diagnosis:
    """Is a model forgetting somebody's class? probs: [samples, classes], labels: [samples], sites: [samples].

    Arrays, tensors or lists. ``probs`` of [samples] are the probability of class 1 out of two; with ``logits=True`` a
    softmax (or sigmoid) is applied. Labels are places from 0 or names of ``class_names``, which are the columns of a
    DataFrame if left out. ``class_counts`` are the samples of each class that were *trained* on: a sequence, a mapping
    by class, or a mapping of these by site; left out, the labels given here are counted in their place.

    With ``adjust`` τ the predictions are first corrected for the class counts, which must be given then: `prior_shift`
    is added to their logarithms. ``found.before`` is the diagnosis of the predictions as they are.

    >>> probs = [[0.9, 0.1]] * 80 + [[0.8, 0.2]] * 20
    >>> found = diagnose(probs, ["healthy"] * 80 + ["ill"] * 20, class_names=["healthy", "ill"])
    >>> print(found.headline)
    Yes: this model forgets the rare class “ill”, missed 8 times as much as others are mistaken for it.
    >>> round(found.ea_ratio, 6), found.everywhere.asymmetry.round(3)
    (64.0, array([0.125, 8.   ]))

    ``found.write("page.html")`` writes the page of ``fedga diagnose``.
    """
    columns = list(getattr(probs, "columns", ()))  # of a DataFrame
    if class_names is None and len(columns) > 1 and all(isinstance(name, str) for name in columns):
        class_names = columns
    values, places = _numbers(probs), None if sites is None else _words("sites", sites)
    given = (_words("labels", labels), places, class_names)

    def diagnosed(adjustment: Adjustment | None) -> Diagnosis:
        options: dict[str, Any] = {"logits": logits, "adjust": adjustment}
        predictions = tally_arrays(values.shape, pieces_of(values), *given, "probs", **options)
        return diagnosis_of(predictions, name, class_counts)

    return with_adjustment(diagnosed, None if adjust is None else Adjustment(adjust, class_counts))


def with_adjustment(diagnosed: Callable[[Adjustment | None], Diagnosis], adjustment: Adjustment | None) -> Diagnosis:
    """The diagnosis of predictions as they are; or, if there is an adjustment, with it, and the former beside it."""
    before = diagnosed(None)
    if adjustment is None:
        return before
    after = diagnosed(adjustment)
    return replace(after, notes=(*after.notes, adjustment.note), before=before)


def diagnosis_of(
    predictions: Predictions, name: str, class_counts: Given | None = None, source: str = "as given"
) -> Diagnosis:
    """The diagnosis of predictions that were read; ``source`` says where class counts come from if there are any."""
    names, sites, tally = predictions.class_names, predictions.site_names, predictions.tally
    if class_counts is None:
        holdings = TrainingCounts(sites, tally.samples.astype(np.float64), f"counted among the labels of {name}")
    else:
        holdings = holdings_of(class_counts, names, sites, source)
    everywhere, by_site = errors_of(tally.pooled()).at(0), errors_of(tally) if sites else None
    return Diagnosis(name, names, everywhere, sites, by_site, holdings, predictions.notes)


def _array(name: str, values: Any) -> np.ndarray:
    if hasattr(values, "detach"):  # a tensor, on any device
        values = values.detach().cpu()
        values = values.float() if values.dtype.is_floating_point and values.element_size() < 4 else values
    try:
        return np.asarray(values)
    except ValueError as error:
        raise FedGAError(f"{name} is ragged: give rows of equal length") from error


def _numbers(probs: Any) -> np.ndarray:
    """An array of numbers; those of pandas with a mask are objects until now."""
    array = _array("probs", probs)
    if array.dtype == object:
        try:
            known = [np.nan if text_of(value) == "" else float(value) for value in array.reshape(-1)]
        except (TypeError, ValueError) as error:
            raise FedGAError(f"probs does not hold numbers alone ({error}): give [samples, classes]") from error
        return np.array(known).reshape(array.shape)
    if array.dtype.kind not in "fiub":
        raise FedGAError(f"probs has type {array.dtype}: give numbers of [samples, classes]")
    return array


def _words(name: str, values: Any) -> np.ndarray:
    """An array of values of one kind, which can be sorted; what is missing among objects is empty."""
    array = _array(name, values)
    return np.array([text_of(value) for value in array.reshape(-1)]) if array.dtype == object else array
