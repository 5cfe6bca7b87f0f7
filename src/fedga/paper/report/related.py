"""Every method beside FedAvg: differences paired by seed, with intervals, and ranks over settings."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedga.drawing.style import algorithm_rank, display_name
from fedga.errors import FedGAError
from fedga.paper.report.scores import Reading, score_of
from fedga.paper.report.significance import critical_difference, friedman, ranks_of, student_quantile
from fedga.paper.runs import EXPERIMENTS
from fedga.report.curves import Curve, deviation, mean
from fedga.report.documents import NOTHING, Cell, Table, number_cell
from fedga.report.words import listed, plural, seeds_text, signed
from fedga.spec.catalog import dataset_name, dataset_rank, place_name
from fedga.spec.presets import preset_settings
from fedga.spec.settings import RunSpec

PLAIN = "fedavg"
SETTINGS = {"paper": "the paper's setting", "strong": "the strong setting"}
MODELS = {"last": "", "averaged": ", model averaged over rounds"}
_FEWEST_METHODS, _FEWEST_PLACES = 3, 2  # to be ranked
_MOST_NAMED = 6  # methods of a headline
_TESTED = (
    "Difference to FedAvg in points, paired by seed, ± half of its 95 % interval (Student's t). Bold: the interval "
    "does not contain 0, as that of one cell in twenty does not by chance alone."
)


@dataclass(frozen=True)
class Method:
    """A row: an algorithm, or FedAvg with another rule of selection or server optimiser than its setting has."""

    algorithm: str
    select: str = ""
    server: str = ""

    @property
    def name(self) -> str:
        """
        >>> Method("fedprox").name, Method("fedavg", select="in-turn").name, Method("fedavg", server="adam").name
        ('FedProx', 'FedAvg, select in-turn', 'FedAvg, server adam')
        """
        changes = [f"select {self.select}"] * bool(self.select) + [f"server {self.server}"] * bool(self.server)
        return ", ".join([display_name(self.algorithm), *changes])


@dataclass(frozen=True)
class Place:
    """A column: one setting on one data set and α."""

    preset: str
    dataset: str
    alpha: float | None

    @property
    def name(self) -> str:
        return place_name(self.dataset, self.alpha)


@dataclass(frozen=True)
class Difference:
    """A method less FedAvg, in points, for every seed that both finished."""

    values: tuple[float, ...] = ()
    diverged: int = 0  # of its runs
    runs: int = 0
    itself: bool = False  # the method is FedAvg as its setting has it

    @cached_property
    def mean(self) -> float:
        return mean(np.array(self.values))

    @cached_property
    def half(self) -> float:
        """Of the 95 % interval; NaN for fewer than two pairs."""
        number = len(self.values)
        return (
            student_quantile(number - 1) * deviation(np.array(self.values)) / math.sqrt(number)
            if number > 1
            else math.nan
        )

    @property
    def sign(self) -> int:
        """1 where the interval lies above 0, -1 below; a method that diverges under every seed is below."""
        if self.failed:
            return -1
        return int(np.sign(self.mean)) if not self.itself and abs(self.mean) > self.half else 0

    @property
    def failed(self) -> bool:
        return self.runs > 0 and self.diverged == self.runs

    @property
    def ranked(self) -> float:
        """What ranks go by: a run that diverged puts a method last, for none of its others makes up for it."""
        return -math.inf if self.diverged else self.mean

    def cell(self) -> Cell:
        note = f"{self.diverged} of {plural(self.runs, 'run')} diverged" if self.diverged else ""
        if self.itself or not self.values:
            return Cell("itself" if self.itself else NOTHING, note=note)
        text = signed(self.mean, 1) + ("" if math.isnan(self.half) else f" ± {self.half:.1f}")
        wide = deviation(np.array(self.values))
        return Cell(text, self.mean, self.sign != 0, note, None if math.isnan(wide) else wide)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Methods by places; the methods are in the order of their mean rank."""

    methods: tuple[Method, ...]
    places: tuple[Place, ...]
    cells: Mapping[tuple[Method, Place], Difference]
    plain: Mapping[Place, tuple[float, ...]]  # FedAvg's accuracy by seed
    curves: Mapping[tuple[Method, Place], tuple[Curve, ...]]  # by seed
    model: str = "last"

    def at(self, method: Method, place: Place) -> Difference:
        return self.cells.get((method, place), Difference())

    def signs(self, method: Method) -> tuple[int, int]:
        """In how many places the method is ahead of FedAvg beyond the interval, and behind."""
        signs = [self.at(method, place).sign for place in self.places]
        return signs.count(1), signs.count(-1)

    def seeds(self) -> str:
        return seeds_text(len(one.values) for one in self.cells.values() if one.values)

    @cached_property
    def ranking(self) -> "Ranking | None":
        """Ranks of the methods with a number in every place; none for fewer than three methods or two places.

        One that is FedAvg itself in some of them would share its rank there: it has none.
        """
        complete = [one for one in self.methods if all(self._known(one, place) for place in self.places)]
        if len(complete) < _FEWEST_METHODS or len(self.places) < _FEWEST_PLACES:
            return None
        values = np.array([[self.at(method, place).ranked for method in complete] for place in self.places])
        ranks = ranks_of(values)
        order = np.argsort(ranks.mean(0), kind="stable")
        return Ranking(tuple(complete[at] for at in order), ranks[:, order])

    def _known(self, method: Method, place: Place) -> bool:
        one = self.at(method, place)
        return not math.isnan(one.ranked) and (method == Method(PLAIN) or not one.itself)


@dataclass(frozen=True, eq=False)
class Ranking:
    """Methods from the lowest mean rank, and their ranks, ``[places, methods]``."""

    methods: tuple[Method, ...]
    ranks: np.ndarray

    @cached_property
    def means(self) -> np.ndarray:
        return self.ranks.mean(0)

    @cached_property
    def critical(self) -> float:
        return critical_difference(len(self.methods), len(self.ranks))

    @cached_property
    def groups(self) -> list[tuple[int, int]]:
        """First and last of the methods of every largest group that is nowhere further apart than the critical one."""
        ends = [int(np.flatnonzero(self.means - of < self.critical)[-1]) for of in self.means]
        groups = [(first, last) for first, last in enumerate(ends) if last > first]
        return [(first, last) for first, last in groups if first == 0 or ends[first - 1] < last]

    @property
    def words(self) -> str:
        statistic, p = friedman(self.ranks)
        chance = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
        return (
            f"Mean rank over {plural(len(self.ranks), 'setting')} (data set, α, paper's or strong), 1 is best; a rule "
            "or optimiser that one of the settings has already is not ranked, and a method with a run that diverged is "
            "last in that setting. Friedman test that all "
            f"{len(self.methods)} are alike: χ² = {statistic:.1f}, {chance}. Critical difference (Nemenyi, 5 %): "
            f"{self.critical:.1f} ranks."
        )


def compare_methods(curves: Sequence[Curve], specs: Mapping[str, RunSpec], model: str = "last") -> Comparison:
    """All runs of the study, sorted into methods and places."""
    found: dict[tuple[Method, Place], dict[int, Curve]] = {}
    for curve in curves:
        spec = specs[curve.run_id]
        place = Place(spec.preset, spec.dataset, spec.alpha)
        for method in _methods(spec):
            of = found.setdefault((method, place), {})
            if spec.seed in of:
                what = f"two runs of {method.name} on {place.name} have seed {spec.seed}"
                raise FedGAError(f"{what}: give each scale of the study a folder of its own")
            of[spec.seed] = curve
    plain = {place: of for (method, place), of in found.items() if method == Method(PLAIN)}
    places = sorted(plain, key=lambda one: (one.preset, dataset_rank(one.dataset), one.alpha or 0.0))
    cells = {
        (method, place): _difference(of, plain[place], model)
        for (method, place), of in found.items()
        if place in plain and method != Method(PLAIN)
    }
    cells |= {(Method(PLAIN), place): _difference(plain[place], plain[place], model) for place in places}
    methods = {method for method, _ in cells}
    if len(methods) < 2:
        raise FedGAError("there is nothing to compare: give FedAvg and other methods")
    levels = {place: score_of(list(plain[place].values()), Reading(model=model)).values for place in places}
    by_seed = {key: tuple(of[seed] for seed in sorted(of)) for key, of in found.items()}
    result = Comparison((), tuple(places), cells, levels, by_seed, model)
    return replace(result, methods=tuple(sorted(methods, key=lambda method: _order(result, method))))


def _methods(spec: RunSpec) -> list[Method]:
    """The rows a run is in: FedAvg as its setting has it is also FedAvg with that setting's rule and optimiser."""
    select, server = _base(spec.preset, spec.dataset, spec.alpha)
    if spec.algorithm != PLAIN:
        return [Method(spec.algorithm)] if (spec.select, spec.server) == (select, server) else []
    if (spec.select, spec.server) == (select, server):
        return [Method(PLAIN), Method(PLAIN, select=select), Method(PLAIN, server=server)]
    both = spec.select != select and spec.server != server
    return (
        []
        if both
        else [Method(PLAIN, select=spec.select) if spec.select != select else Method(PLAIN, server=spec.server)]
    )


def _base(preset: str, dataset: str, alpha: float | None) -> tuple[str, str]:
    """Rule of selection and server optimiser that all algorithms have in a setting of the study."""
    groups = [group for group in EXPERIMENTS["related"].parts if group.preset == preset and not group.algorithms]
    values = {"select": "uniform", "server": "sgd", **preset_settings(preset, dataset, alpha).values}
    values |= groups[0].settings if groups else {}
    return values["select"], values["server"]


def _difference(of: Mapping[int, Curve], plain: Mapping[int, Curve], model: str) -> Difference:
    if of is plain or all(of[seed] is plain.get(seed) for seed in of):
        return Difference(tuple(0.0 for curve in of.values() if curve.status == "done"), runs=len(of), itself=True)
    reading = Reading(model=model)
    pairs = [(of[seed], plain[seed]) for seed in sorted(of) if seed in plain]
    done = [(reading.of(one), reading.of(other)) for one, other in pairs if one.status == other.status == "done"]
    values = tuple(100 * (one - other) for one, other in done if math.isfinite(one) and math.isfinite(other))
    return Difference(values, sum(curve.diverged for curve in of.values()), len(of))


def _order(found: Comparison, method: Method) -> tuple[float, tuple[int, str], str]:
    """By the mean, over the places it has, of the share of methods that are ahead of it."""
    shares = []
    for place in found.places:
        values = [
            one.ranked for (_, where), one in found.cells.items() if where == place and not math.isnan(one.ranked)
        ]
        own = found.at(method, place).ranked
        if not math.isnan(own):
            shares.append(np.mean([float(own < value) + 0.5 * float(own == value) for value in values]))
    return (float(np.mean(shares)) if shares else math.inf, algorithm_rank(method.algorithm), method.name)


def rows_of(found: Comparison) -> list[Method]:
    """The methods that a table or picture has a row for: FedAvg itself is what all others are compared with."""
    return [method for method in found.methods if method != Method(PLAIN)]


def differences_table(found: Comparison, preset: str) -> Table:
    """A row per method, a column per data set and α of one setting; FedAvg's own accuracy above."""
    places = [place for place in found.places if place.preset == preset]
    levels = [np.array(found.plain[place]) for place in places]
    first = [Cell("FedAvg, accuracy in %", "fedavg")]
    first += [number_cell(f"{100 * mean(of):.1f}" if len(of) else NOTHING, 100 * mean(of)) for of in levels]
    rows = [tuple(first)]
    for method in rows_of(found):
        cells = [found.at(method, place).cell() for place in places]
        if any(cell.text not in (NOTHING, "itself") or cell.note for cell in cells):
            rows.append((Cell(method.name), *cells))
    title = f"Methods less FedAvg in {SETTINGS.get(preset, preset)}{MODELS[found.model]}"
    name = f"related-{preset}" + ("" if found.model == "last" else f"-{found.model}")
    caption = f"{_TESTED} After the last round, {found.seeds()}. In the order of their mean rank over all settings."
    return Table(name, title, ("method", *(place.name for place in places)), tuple(rows), caption, (0,))


def ranks_table(found: Comparison, ranking: Ranking) -> Table:
    """Mean rank, and in how many settings a method is ahead of FedAvg, or behind, beyond its interval."""
    rows = []
    for method, rank in zip(ranking.methods, ranking.means.tolist(), strict=True):
        ahead, behind = found.signs(method)
        middle = mean(np.array([found.at(method, place).mean for place in found.places]))
        counts = [Cell(str(ahead), float(ahead)), Cell(str(behind), float(behind))]
        rows.append((Cell(method.name), Cell(f"{rank:.1f}", rank), *counts, number_cell(signed(middle, 1), middle)))
    headings = ("method", "mean rank", "ahead", "behind", "mean difference")
    caption = f"{ranking.words} Ahead, behind: settings in which the 95 % interval of the difference excludes 0."
    return Table("related-ranks", "Methods ranked over all settings", headings, tuple(rows), caption)


def related_headline(found: Comparison) -> str:
    """Who is ahead of FedAvg, and who is behind, in at least half of the settings."""
    half = len(found.places) / 2
    sentences = []
    for which, word in enumerate(("Ahead of FedAvg", "Behind")):
        named = [method.name for method in rows_of(found) if found.signs(method)[which] >= half]
        more = len(named) - _MOST_NAMED
        shown = [*named[:_MOST_NAMED], f"{more} more"] if more > 0 else named
        sentences.append(
            f"{word} in at least half of the {plural(len(found.places), 'setting')}: {listed(shown) or 'none'}."
        )
    return f"{' '.join(sentences)} Counted where the 95 % interval of the difference, paired by seed, excludes 0."


def panel_heads(places: Sequence[Place]) -> list[tuple[str, int, int]]:
    """Data set, first and last column of each run of columns that share one."""
    heads: list[tuple[str, int, int]] = []
    for at, place in enumerate(places):
        name = dataset_name(place.dataset)
        if heads and heads[-1][0] == name and places[heads[-1][1]].preset == place.preset:
            heads[-1] = (name, heads[-1][1], at)
        else:
            heads.append((name, at, at))
    return heads
