"""From a results folder to the sections of its report: one per experiment of the paper that it holds.

An experiment's section is a function below with the experiment's name in `SECTIONS`. It sees the runs of its own alone,
whatever else the folder holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedga.errors import FedGAError
from fedga.experiments.binary import read_binary_runs
from fedga.experiments.paper import BEYOND, EXPERIMENTS, Experiment, Scope, all_runs, asked
from fedga.experiments.records import Partition
from fedga.experiments.spec import RunSpec
from fedga.experiments.store import Store
from fedga.report.curves import Curve, read_curves
from fedga.report.documents import Picture, Section, Table
from fedga.report.paper import pictures
from fedga.report.paper.agreement import agreement_table, agreement_words
from fedga.report.paper.arms import arms
from fedga.report.paper.beyond import beyond_table, beyond_words
from fedga.report.paper.beyond_picture import beyond_picture
from fedga.report.paper.binary import binary_picture, binary_words
from fedga.report.paper.comparison import compare
from fedga.report.paper.printed import STAND_IN, dataset_name, printed_algorithm, printed_score
from fedga.report.paper.ranking import ranking_table
from fedga.report.paper.scores import MOMENTS, paper_table, score_table
from fedga.report.paper.speed import speed_table, speed_words
from fedga.report.paper.strong import strong_table, strong_words
from fedga.report.paper.tuning import chosen_rates, tuning_table, tuning_words
from fedga.report.style import algorithm_rank
from fedga.report.words import listed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOLD = ("fedavg", "fedntd", "fedga")  # the columns whose program had no known defect
_ZOOM, _LONG_ZOOM, _SHORT = 10, 100, 100
_ASKED_OF = {"tuning": ("lr",), "figure-epochs": ("local_epochs",)}  # settings a section needs of every curve


@dataclass(frozen=True, eq=False)
class Material:
    """What the section of one experiment is made of."""

    folder: Path
    experiment: Experiment
    scopes: Sequence[Scope]
    specs: Mapping[str, RunSpec]
    curves: Sequence[Curve]

    def where(self, keep: Callable[[RunSpec], bool]) -> list[Curve]:
        return [curve for curve in self.curves if keep(self.specs[curve.run_id])]

    def places(self) -> list[tuple[str, float | None]]:
        """Data sets and α, in the order they were asked for."""
        return list(dict.fromkeys((spec.dataset, spec.alpha) for spec in self.specs.values()))

    def at(self, dataset: str, alpha: float | None) -> list[Curve]:
        return self.where(lambda spec: (spec.dataset, spec.alpha) == (dataset, alpha))


def sections_of(folder: Path) -> list[Section]:
    """The sections of the experiments that ``fedga paper`` ran in this folder; none for any other folder."""
    found = asked(folder)
    sections = [section_of(folder, EXPERIMENTS[name], found[name]) for name in EXPERIMENTS if name in found]
    left = [each for each in EXPERIMENTS.values() if each.name not in found]
    return [*sections, _not_run(left)] if sections and left else sections


def _not_run(experiments: Sequence[Experiment]) -> Section:
    """What a reader would miss otherwise without knowing."""
    words = [f"{each.name} ({each.shows}): fedga paper {each.name}." for each in experiments]
    return Section("not-run", "Experiments not run here", tuple(words))


def section_of(folder: Path, experiment: Experiment, scopes: Sequence[Scope]) -> Section:
    """Words, tables and pictures of one experiment, from the runs of it that the folder holds."""
    specs = {spec.run_id: spec for spec in all_runs([experiment], *scopes)}
    curves = read_curves(folder, set(specs), _ASKED_OF.get(experiment.name, ())) if specs else []
    known = {curve.run_id for curve in curves}
    material = Material(folder, experiment, scopes, {key: specs[key] for key in specs if key in known}, curves)
    title = f"{experiment.name}: {experiment.shows}"
    if specs and not any(len(curve.rounds) for curve in curves):
        return Section(experiment.name, title, ("None of its runs is in this folder.",))
    try:
        words, tables, drawn = SECTIONS[experiment.name](material)
    except FedGAError as error:  # narrowed until nothing is left to compare: the other sections still have something
        words, tables, drawn = (f"Nothing to show: {error}.",), (), ()
    missing = len(specs) - sum(curve.status in ("done", "diverged") for curve in curves)
    left = (f"{missing} of its {len(specs)} runs are not finished, and in no number here.",) if missing else ()
    return Section(experiment.name, title, (*_scale_words(material), *words, *left), tuple(tables), tuple(drawn))


Content = tuple[Sequence[str], Sequence[Table], Sequence[Picture]]


def _scale_words(material: Material) -> tuple[str, ...]:
    """Where the paper has it, and what of it was not run."""
    experiment = material.experiment
    where = f"In the paper: {experiment.where}." if experiment.where != BEYOND else "Beyond the paper."
    if not all(scope.scale == "full" for scope in material.scopes):
        return (f"{where} Quick scale: a small version to look at, not the published setting.",)
    run = {spec.dataset for spec in material.specs.values()}
    missing = [dataset_name(name) for name in experiment.datasets if run and name not in run]
    return (where, f"Not run here: {listed(missing)}.") if missing else (where,)


def _main(material: Material) -> Content:
    """The published MNIST rows fit the mean over the curve, all others 80 % of the rounds: each is compared so."""
    tables = [paper_table(material.curves, at=at, name=f"table-main-{at}") for at in MOMENTS]
    tables.append(paper_table(material.curves, model="averaged", name="table-main-averaged"))
    words: list[str] = []
    by_curve, others = material.where(_fits_curve_mean), material.where(lambda spec: not _fits_curve_mean(spec))
    for moment, chosen in (("mean", by_curve), ("80", others)):
        if _is_printed(chosen, "main"):
            beside, said = _beside(chosen, "main", moment)
            tables += beside
            words += said
    return words, tables, ()


def _fits_curve_mean(spec: RunSpec) -> bool:
    return STAND_IN.get(spec.dataset, spec.dataset) == "mnist"


def _at_80(material: Material) -> Content:
    printed = [curve for curve in material.curves if curve.settings["algorithm"] != "fedrl"]  # not in that table
    tables = [paper_table(printed, at="80", name="table-80")]
    words: list[str] = []
    if _is_printed(printed, "at_80"):
        beside, words = _beside(printed, "at_80", "80")
        tables += [*beside, agreement_table(compare(printed, "at_80", metric="macro_f1"))]
    return words, tables, ()


def _is_printed(curves: Sequence[Curve], which: str) -> bool:
    """Whether the paper's table has any of these cells."""
    places = ((str(of.settings["dataset"]), of.settings["alpha"], str(of.settings["algorithm"])) for of in curves)
    return any(printed_score(which, *place) is not None for place in places)


def _beside(curves: Sequence[Curve], which: str, at: str) -> tuple[list[Table], list[str]]:
    """Our numbers beside the printed ones, the two orders of algorithms, and both in words."""
    agreement = compare(curves, which, at=at)
    tables = [agreement_table(agreement)]
    if len({printed_algorithm(str(curve.settings["algorithm"])) for curve in curves}) > 1:
        tables.append(ranking_table(agreement))
    told = [curve for curve in curves if curve.settings["algorithm"] in TOLD]
    return tables, [*agreement_words(compare(told, which, at=at))] if told else []


def _speed(material: Material) -> Content:
    tables = [speed_table(material.curves, fraction) for fraction in (0.9, 0.8)]
    return speed_words(material.curves, (0.9, 0.8)), tables, ()


def _clients(material: Material) -> Content:
    """The active clients of the first seed in the last round that was looked at, under every algorithm."""
    drawn = []
    for dataset, alpha in material.places():
        specs = [spec for spec in material.specs.values() if (spec.dataset, spec.alpha) == (dataset, alpha)]
        seed = min(spec.seed for spec in specs)
        with Store(material.folder) as store:
            looks = {spec.algorithm: store.client_rounds(spec.run_id) for spec in specs if spec.seed == seed}
            names = next((of.class_names for of in store.partitions() if of.dataset == dataset), ())
        seen = {name: looks[name][-1].arrays for name in sorted(looks, key=algorithm_rank) if looks[name]}
        if seen and names:
            title = f"Clients before and after local training: {_place(dataset, alpha)}"
            draw = partial(pictures.before_after_algorithms, seen, names)
            drawn.append(Picture(f"clients-{dataset}-{alpha:g}", title, draw, alt=f"{title}, class by class"))
    return (), (), drawn


def _place(dataset: str, alpha: float | None) -> str:
    return dataset_name(dataset) + ("" if alpha is None else f", α = {alpha:g}")


def _binary(material: Material) -> Content:
    runs = read_binary_runs(material.folder)
    if not runs:
        return ("It was not computed in this folder.",), (), ()
    title, words = "Error asymmetry of a binary classifier over training", binary_words(runs)
    return words, (), [Picture("binary", title, partial(binary_picture, runs), alt=" ".join(words))]


def _one_picture(name: str, title: str, draw: Callable[[Sequence[Curve]], Figure]) -> Callable[[Material], Content]:
    """A section that is a single picture of all its runs."""

    def content(material: Material) -> Content:
        alt = f"{title}: {', '.join(dict.fromkeys(_place(*place) for place in material.places()))}"
        return (), (), [Picture(name, title, partial(draw, material.curves), alt=alt)]

    return content


def _zoom(material: Material) -> Content:
    drawn = []
    for dataset, alpha in material.places():
        curves = material.at(dataset, alpha)
        rounds = max(spec.rounds for spec in material.specs.values() if (spec.dataset, spec.alpha) == (dataset, alpha))
        last = _ZOOM if rounds <= _SHORT else _LONG_ZOOM
        title = f"The first {last} rounds: {_place(dataset, alpha)}"
        draw = partial(pictures.zoom_picture, curves, last)
        drawn.append(Picture(f"zoom-{dataset}-{alpha:g}", title, draw, alt=f"{title}, accuracy of every algorithm"))
    return (), (), drawn


def _labels(material: Material) -> Content:
    with Store(material.folder) as store:
        every = [of for of in store.partitions() if of.partition == "dirichlet"]
    drawn = []
    for dataset in dict.fromkeys(dataset for dataset, _ in material.places()):
        alphas = [alpha for name, alpha in material.places() if name == dataset]
        chosen: dict[float, Partition] = {
            of.alpha: of for of in every if of.dataset == dataset and of.alpha is not None and of.alpha in alphas
        }
        if chosen:
            counts = {alpha: chosen[alpha].class_counts for alpha in sorted(chosen, reverse=True)}
            names = next(iter(chosen.values())).class_names
            title = f"Who holds which classes: {dataset_name(dataset)}"
            draw = partial(pictures.labels_picture, counts, names)
            drawn.append(Picture(f"labels-{dataset}", title, draw, alt=f"{title}, client by client"))
    return (), (), drawn


def _epochs(material: Material) -> Content:
    content = _one_picture("epochs", "Local epochs at equal total work", pictures.epochs_picture)
    if len({spec.local_epochs for spec in material.specs.values()}) < 2:
        return ("Runs of a single number of local epochs are here: nothing to compare yet.",), (), ()
    return content(material)


def _tuning(material: Material) -> Content:
    rates = chosen_rates(material.curves)
    title = "Accuracy by learning rate, FedAvg"
    draw = partial(pictures.tuning_picture, material.curves, rates)
    return tuning_words(rates), [tuning_table(material.curves)], [Picture("tuning", title, draw, alt=title)]


def _readings(material: Material) -> Content:
    tables = [
        score_table(material.curves, name="readings", title="Accuracy of several readings, after the last round"),
        score_table(material.curves, at="80", name="readings-80", title="Accuracy of several readings, at 80 %"),
    ]
    return (), tables, ()


def _strong(material: Material) -> Content:
    """One picture per data set: the averaged models in both settings, at the strongest skew there is."""
    drawn = []
    for dataset in dict.fromkeys(dataset for dataset, _ in material.places()):
        alpha = min(alpha for name, alpha in material.places() if name == dataset and alpha is not None)
        curves = [curve for curve in material.at(dataset, alpha) if material.specs[curve.run_id].partition != "even"]
        title = f"The paper's setting and the strong one, averaged models: {_place(dataset, alpha)}"
        draw = partial(pictures.curves_picture, curves, averaged=True)
        drawn.append(Picture(f"strong-{dataset}", title, draw, alt=f"{title}, accuracy over rounds"))
    table = strong_table(material.curves, material.specs)
    return strong_words(material.curves, material.specs), [table], drawn


def _beyond(material: Material) -> Content:
    found = arms(material.curves, material.specs)
    title = "What each axis does alone and together"
    words = beyond_words(found)
    return words, [beyond_table(found)], [Picture("beyond", title, partial(beyond_picture, found), alt=" ".join(words))]


SECTIONS: Mapping[str, Callable[[Material], Content]] = {
    "table-main": _main,
    "table-80": _at_80,
    "table-speed": _speed,
    "figure-clients": _clients,
    "figure-binary": _binary,
    "figure-alphas": _one_picture("alphas", "Accuracy under several levels of skew", pictures.alphas_picture),
    "figure-ea": _one_picture("client-ea", "EA ratio of the active clients", pictures.client_ea_picture),
    "figure-curves": _one_picture("curves", "Accuracy over rounds", pictures.curves_picture),
    "figure-labels": _labels,
    "figure-zoom": _zoom,
    "figure-adam": _one_picture("adam", "Adam as the clients' optimiser", pictures.curves_picture),
    "figure-epochs": _epochs,
    "tuning": _tuning,
    "readings": _readings,
    "strong": _strong,
    "beyond": _beyond,
}
