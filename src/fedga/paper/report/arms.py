"""Runs by which of four axes are on in them, and how far FedGA leads; the averaged model is measured in every run."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedga.errors import FedGAError
from fedga.paper.report.scores import MODELS, Reading, Score, never_left, score_of
from fedga.paper.runs import AXES as CHANGES
from fedga.report import words
from fedga.report.curves import Curve, deviation
from fedga.report.words import grouped
from fedga.spec.catalog import dataset_rank, place_name
from fedga.spec.settings import RunSpec

AXES: Mapping[str, str] = {
    "pixels": "standardised pixels",
    "momentum": "server momentum",
    "schedule": "falling rate",
    "decay": "weight decay",
}
NONE: frozenset[str] = frozenset()
ALL = frozenset(AXES)
SETTINGS = (NONE, *(frozenset({axis}) for axis in AXES), *(ALL - {axis} for axis in AXES), ALL)
PLAIN, ALIGNED = ALGORITHMS = ("fedavg", "fedga")
NO_SKEW = "No skew: the same samples partitioned evenly; the line is the best of FedAvg's and FedGA's models there."
_ERRORS = 2  # standard errors that a lead must exceed to be one
_UNSEEN = ("seed", "evaluate_every", "diagnose_every")  # settings that leave a run's numbers comparable


@dataclass(frozen=True, eq=False)
class Arm:
    dataset: str
    alpha: float | None
    algorithm: str
    axes: frozenset[str]  # of AXES, those that are on
    partition: str
    curves: tuple[Curve, ...]

    @property
    def even(self) -> bool:
        """Whether it is the line without skew."""
        return self.partition == "even"

    @cached_property
    def scores(self) -> Mapping[str, Score]:
        """Accuracy after the last round, of the last and of the averaged model."""
        return {model: score_of(self.curves, Reading(model=model)) for model in MODELS}

    @cached_property
    def stuck(self) -> int:
        """How many of its runs never left the start plateau; they count in its mean, which then says little."""
        finished = [curve for curve in self.curves if curve.status == "done"]
        return sum(never_left(curve, finished) for curve in finished)


@dataclass(frozen=True, eq=False)
class Ablation:
    dataset: str
    alpha: float | None
    arms: tuple[Arm, ...]

    @property
    def name(self) -> str:
        return place_name(self.dataset, self.alpha)

    def find(self, algorithm: str, axes: frozenset[str], *, even: bool = False) -> Arm | None:
        found = (arm for arm in self.arms if (arm.algorithm, arm.axes, arm.even) == (algorithm, axes, even))
        return next(found, None)

    def score(self, algorithm: str, axes: frozenset[str], model: str, *, even: bool = False) -> Score:
        """A score without values where there is no such run."""
        arm = self.find(algorithm, axes, even=even)
        return Score(()) if arm is None else arm.scores[model]

    def accuracy(self, algorithm: str, axes: frozenset[str], model: str) -> float:
        return self.score(algorithm, axes, model).mean

    def shown(self, axes: frozenset[str]) -> bool:
        """Whether there is any number of this setting."""
        return any(self.score(algorithm, axes, model).known for algorithm in ALGORITHMS for model in MODELS)

    def fails(self, algorithm: str, axes: frozenset[str], model: str) -> bool:
        """Whether it does not train: it stays below half of what the algorithm reaches in the paper's setting."""
        return self.accuracy(algorithm, axes, model) < self.accuracy(algorithm, NONE, model) / 2

    def trains(self, algorithm: str, axes: frozenset[str], model: str) -> bool:
        """Whether its mean can be set beside others: every run of it learnt something."""
        arm = self.find(algorithm, axes)
        return arm is not None and arm.scores[model].known and not arm.stuck and not self.fails(algorithm, axes, model)

    def lead(self, axes: frozenset[str], model: str) -> float:
        """How far FedGA is ahead of FedAvg, in points; NaN where either is missing."""
        return 100 * (self.accuracy(ALIGNED, axes, model) - self.accuracy(PLAIN, axes, model))

    def remains(self, axes: frozenset[str], model: str) -> float:
        """The share that is left of the lead in the paper's setting; NaN where that is noise or either fails."""
        lead = self.lead(NONE, "last")
        needed = [(one, *of) for one in ALGORITHMS for of in ((NONE, "last"), (axes, model))]
        compared = all(self.trains(*of) for of in needed)
        return self.lead(axes, model) / lead if compared and lead > max(self.noise, 0.05) else np.nan

    @cached_property
    def noise(self) -> float:
        """Two standard errors, in points, of the lead in the paper's setting; seeds are pairs. 0 for a single one."""
        arms = [self.find(algorithm, NONE) for algorithm in (ALIGNED, PLAIN)]
        curves = [arm.curves if arm else () for arm in arms]
        ours, theirs = ({of.seed: of.last("accuracy") for of in each if of.status == "done"} for each in curves)
        pairs = np.array([ours[seed] - theirs[seed] for seed in ours if seed in theirs])
        pairs = pairs[np.isfinite(pairs)]
        return 100 * _ERRORS * deviation(pairs) / np.sqrt(len(pairs)) if len(pairs) > 1 else 0.0

    def without_skew(self, axes: frozenset[str]) -> Score:
        return line_without_skew({arm.algorithm: arm.curves for arm in self.arms if arm.even and arm.axes == axes})

    @property
    def best(self) -> tuple[str, frozenset[str], str] | None:
        """Algorithm, setting and model of the highest accuracy under skew."""
        every = [(algorithm, axes, model) for algorithm in (ALIGNED, PLAIN) for axes in SETTINGS for model in MODELS]
        known = [one for one in every if self.score(*one).known]
        return max(known, key=lambda one: self.accuracy(*one), default=None)


def line_without_skew(even: Mapping[str, Sequence[Curve]]) -> Score:
    """What could be reached: the best mean of the runs without skew, ``even``, given by algorithm."""
    every = [score_of(even.get(name, ()), Reading(model=model)) for name in ALGORITHMS for model in MODELS]
    return max((one for one in every if one.known), key=lambda one: one.mean, default=Score(()))


def arms(curves: Sequence[Curve], specs: Mapping[str, RunSpec]) -> list[Arm]:
    """The runs by what is switched on in them; ``specs`` are the settings of every run by its id."""
    found: dict[tuple[str, float | None, str, frozenset[str], str], list[Curve]] = {}
    alike: dict[tuple[Any, ...], RunSpec] = {}
    for curve in curves:
        if curve.run_id not in specs:
            raise FedGAError(f"the settings of run {curve.run_id!r} are missing: give those of every curve")
        spec = specs[curve.run_id]
        place = (spec.dataset, spec.alpha, spec.algorithm, axes_of(spec), spec.partition)
        first, settings = asdict(alike.setdefault(place, spec)), asdict(spec)
        if differing := [name for name in settings if settings[name] != first[name] and name not in _UNSEEN]:
            what = f"runs of {spec.algorithm} on {spec.dataset} have the same axes but differ in {', '.join(differing)}"
            raise FedGAError(f"{what}: give those of one setting")
        found.setdefault(place, []).append(curve)
    return [Arm(*place, tuple(sorted(of, key=lambda curve: curve.seed))) for place, of in found.items()]


def axes_of(spec: RunSpec) -> frozenset[str]:
    """The axes that are on in a run.

    >>> sorted(axes_of(RunSpec(alpha=0.1, standardize=True, lr_schedule="cosine")))
    ['pixels', 'schedule']
    """
    settings = asdict(spec)
    return frozenset(axis for axis, changes in CHANGES.items() if changes.items() <= settings.items())


def ablations(of: Sequence[Arm]) -> list[Ablation]:
    """The arms by data set, in the paper's order, and α; those without runs under skew are left out."""
    groups = grouped(of, lambda arm: (arm.dataset, arm.alpha))
    order = sorted(groups, key=lambda key: (dataset_rank(key[0]), key[1] is not None, key[1] or 0.0))
    found = [one for key in order if (one := Ablation(*key, tuple(groups[key]))).best]
    if not found:
        raise FedGAError("there is nothing to compare: no run of FedAvg or FedGA under skew has finished yet")
    return found


def seeds_text(of: Sequence[Ablation]) -> str:
    scores = [one for place in of for arm in place.arms for one in arm.scores.values()]
    return words.seeds_text(len(one.values) for one in scores if one.known)


def setting_name(axes: frozenset[str]) -> str:
    """A setting of SETTINGS in words.

    >>> [setting_name(axes) for axes in (NONE, frozenset({"pixels"}), ALL - {"decay"}, ALL)]
    ["the paper's setting", 'standardised pixels', 'all but weight decay', 'all four']
    """
    if axes in (NONE, ALL):
        return "all four" if axes else "the paper's setting"
    if len(axes) == 1:
        return AXES[next(iter(axes))]
    return f"all but {' and '.join(name for axis, name in AXES.items() if axis not in axes)}"


def share(value: float) -> str:
    """
    >>> share(0.454), share(-0.2), share(float("nan"))
    ('45 %', '−20 %', '–')
    """
    return f"{100 * value:.0f} %".replace("-0 %", "0 %").replace("-", "−") if np.isfinite(value) else "–"


def row_name(axes: frozenset[str]) -> str:
    """A setting of SETTINGS as a row of the table and of the picture begins with it."""
    if len(axes) == 1:
        return f"with {setting_name(axes)}"  # a plus would begin a formula in a spreadsheet
    return "all four (strong)" if axes == ALL else setting_name(axes)


def even_name(axes: frozenset[str]) -> str:
    """The line without skew of a setting.

    >>> even_name(NONE), even_name(ALL)
    ("no skew, paper's setting", 'no skew, all four')
    """
    return f"no skew, {setting_name(axes).removeprefix('the ')}"
