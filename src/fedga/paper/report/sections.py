"""From a results folder to the sections of its report: one per experiment of the paper that it holds.

An experiment's section is a function below with the experiment's name in `SECTIONS`. It sees the runs of its own alone,
whatever else the folder holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedga.drawing.style import algorithm_rank
from fedga.errors import FedGAError
from fedga.paper.binary import read_binary_runs
from fedga.paper.printed import STAND_IN, printed_score
from fedga.paper.report import by_alpha, pictures
from fedga.paper.report.agreement import agreement_table, agreement_words
from fedga.paper.report.arms import arms
from fedga.paper.report.beyond import beyond_table, beyond_words
from fedga.paper.report.beyond_picture import beyond_picture
from fedga.paper.report.binary import binary_picture, binary_words
from fedga.paper.report.comparison import compare
from fedga.paper.report.ranking import ranking_table, rankings
from fedga.paper.report.scores import MOMENTS, paper_table, score_table
from fedga.paper.report.speed import speed_table, speed_words
from fedga.paper.report.strong import strong_table, strong_words
from fedga.paper.report.tuning import chosen_rates, tuning_table, tuning_words
from fedga.paper.runs import BEYOND, EXPERIMENTS, Experiment, Scope, all_runs, asked
from fedga.report.clients import before_after_algorithms
from fedga.report.curves import Curve, read_curves
from fedga.report.documents import Picture, Section, Table
from fedga.report.general import as_file
from fedga.report.words import listed
from fedga.spec.catalog import dataset_name, place_name
from fedga.spec.presets import preset_settings
from fedga.spec.settings import RunSpec
from fedga.store.records import Partition
from fedga.store.store import Store

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
        return Section(experiment.name, title, (_nothing_measured(curves),))
    try:
        words, tables, pictures_of = SECTIONS[experiment.name](material)
    except FedGAError as error:  # narrowed until nothing is left to compare: the other sections still have something
        words, tables, pictures_of = (f"Nothing to show: {error}.",), (), ()
    drawn, undrawn = _draw(pictures_of)
    said = (*_scale_words(material), *words, *undrawn, *_missing_words(len(specs), curves))
    return Section(experiment.name, title, said, tuple(tables), drawn)


def _nothing_measured(curves: Sequence[Curve]) -> str:
    """Why there is no number at all: runs that are missing and runs without a number are not the same."""
    if not curves:
        return "None of its runs is in this folder."
    diverged = sum(curve.diverged for curve in curves)
    counts = {"diverged": diverged, "not finished": len(curves) - diverged}
    told = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return f"No run of it in this folder has an evaluated round ({told})."


def _missing_words(asked_for: int, curves: Sequence[Curve]) -> tuple[str, ...]:
    missing = asked_for - sum(curve.status in ("done", "diverged") for curve in curves)
    are = "is" if missing == 1 else "are"
    told = f"{missing} of its {asked_for} runs {are} not in this folder or not finished, and in no number here."
    return (told,) if missing else ()


def _draw(wanted: Iterable[Picture]) -> tuple[tuple[Picture, ...], tuple[str, ...]]:
    """Those that can be drawn, drawn once for file and page alike, and in words why the others cannot.

    One picture without anything to show must not take the page with it.
    """
    drawn, words = [], []
    for picture in wanted:
        try:
            drawn.append(replace(picture, draw=partial(_same, picture.draw())))
        except FedGAError as error:
            words.append(f'No picture of "{picture.title}": {error}.')
    return tuple(drawn), tuple(words)


def _same(figure: Figure) -> Figure:
    return figure


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
    """The published MNIST rows fit the mean over the curve; the others are compared at both moments of the paper."""
    tables = [paper_table(material.curves, at=at, name=f"table-main-{at}") for at in MOMENTS]
    tables.append(paper_table(material.curves, model="averaged", name="table-main-averaged"))
    words: list[str] = []
    by_curve = material.where(lambda spec: _is_comparable(spec) and _fits_curve_mean(spec))
    others = material.where(lambda spec: _is_comparable(spec) and not _fits_curve_mean(spec))
    for moment, chosen in (("mean", by_curve), ("80", others), ("last", others)):
        tables += _beside(chosen, "main", moment)
        words += _told(chosen, "main", moment)
    return words, tables, ()


def _is_comparable(spec: RunSpec) -> bool:
    """Not the quick runs of a published data set, which end long before the printed numbers were taken."""
    published = preset_settings("paper", spec.dataset, spec.alpha).values["rounds"]
    return spec.dataset in STAND_IN or spec.rounds >= published


def _fits_curve_mean(spec: RunSpec) -> bool:
    return STAND_IN.get(spec.dataset, spec.dataset) == "mnist"


def _at_80(material: Material) -> Content:
    """CIFAR-10 and SVHN are printed alike in both tables, so that these numbers may be of either moment."""
    shown = material.where(lambda spec: spec.algorithm != "fedrl")  # not in that table
    printed = [curve for curve in shown if _is_comparable(material.specs[curve.run_id])]
    others = [curve for curve in printed if not _fits_curve_mean(material.specs[curve.run_id])]
    tables = [paper_table(shown, at="80", name="table-80"), *_beside(printed, "at_80", "80")]
    if _is_printed(printed, "at_80"):
        tables.append(agreement_table(compare(printed, "at_80", metric="macro_f1")))
    tables += _beside(others, "at_80", "last")
    by_curve = [curve for curve in printed if curve not in others]
    words = [_told(chosen, "at_80", at) for at, chosen in (("80", by_curve), ("80", others), ("last", others))]
    return [sentence for said in words for sentence in said], tables, ()


def _is_printed(curves: Sequence[Curve], which: str) -> bool:
    """Whether the paper's table has any of these cells."""
    places = ((str(of.settings["dataset"]), of.settings["alpha"], str(of.settings["algorithm"])) for of in curves)
    return any(printed_score(which, *place) is not None for place in places)


def _beside(curves: Sequence[Curve], which: str, at: str) -> list[Table]:
    """Our numbers beside the printed ones, and the two orders of algorithms where there are two to rank."""
    if not _is_printed(curves, which):
        return []
    agreement = compare(curves, which, at=at)
    ranked = [ranking_table(agreement)] if rankings(agreement) else []
    return [agreement_table(agreement), *ranked]


def _told(curves: Sequence[Curve], which: str, at: str) -> tuple[str, ...]:
    told = [curve for curve in curves if curve.settings["algorithm"] in TOLD]
    return agreement_words(compare(told, which, at=at)) if _is_printed(told, which) else ()


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
            title = f"Clients before and after local training: {place_name(dataset, alpha)}"
            draw = partial(before_after_algorithms, seen, names)
            drawn.append(Picture(_file("clients", dataset, alpha), title, draw, alt=f"{title}, class by class"))
    return (), (), drawn


def _file(kind: str, dataset: str, alpha: float | None = None) -> str:
    return f"{kind}-{as_file(dataset)}" + ("" if alpha is None else f"-{alpha:g}")


def _binary(material: Material) -> Content:
    runs = read_binary_runs(material.folder)
    if not runs:
        return ("It was not computed in this folder.",), (), ()
    title, words = "Error asymmetry of a binary classifier over training", binary_words(runs)
    return words, (), [Picture("binary", title, partial(binary_picture, runs), alt=" ".join(words))]


def _one_picture(
    name: str, title: str, draw: Callable[..., Figure], *, titled: bool = False
) -> Callable[[Material], Content]:
    """A section that is a single picture of all its runs; ``titled`` where the picture finds no title by itself."""

    def content(material: Material) -> Content:
        alt = f"{title}: {listed(list(dict.fromkeys(place_name(*place) for place in material.places())))}"
        drawn = partial(draw, material.curves, title=alt) if titled else partial(draw, material.curves)
        return (), (), [Picture(name, title, drawn, alt=alt)]

    return content


def _zoom(material: Material) -> Content:
    drawn = []
    for dataset, alpha in material.places():
        curves = material.at(dataset, alpha)
        rounds = max(spec.rounds for spec in material.specs.values() if (spec.dataset, spec.alpha) == (dataset, alpha))
        last = _ZOOM if rounds <= _SHORT else _LONG_ZOOM
        title = f"The first {last} rounds: {place_name(dataset, alpha)}"
        draw = partial(pictures.zoom_picture, curves, last, title=title)
        drawn.append(Picture(_file("zoom", dataset, alpha), title, draw, alt=f"{title}, accuracy by algorithm"))
    return (), (), drawn


def _labels(material: Material) -> Content:
    by_dataset: dict[str, dict[float, Partition]] = {}
    for of in _dealt(material):
        if of.alpha is not None:
            by_dataset.setdefault(of.dataset, {}).setdefault(of.alpha, of)
    drawn = []
    for dataset in dict.fromkeys(dataset for dataset, _ in material.places()):
        if chosen := by_dataset.get(dataset, {}):
            counts = {alpha: chosen[alpha].class_counts for alpha in sorted(chosen, reverse=True)}
            names = next(iter(chosen.values())).class_names
            title = f"Who holds which classes: {dataset_name(dataset)}"
            draw = partial(pictures.labels_picture, counts, names)
            drawn.append(Picture(_file("labels", dataset), title, draw, alt=f"{title}, client by client"))
    return (), (), drawn


def _dealt(material: Material) -> list[Partition]:
    """How this experiment's own runs had their samples dealt out, the lowest seed first; a folder may hold others."""
    wanted = {(of.dataset, of.partition, of.alpha, of.clients, of.seed) for of in material.specs.values()}
    with Store(material.folder) as store:
        found = [of for of in store.partitions() if of.partition == "dirichlet"]
    own = [of for of in found if (of.dataset, of.partition, of.alpha, of.clients, of.seed) in wanted]
    return sorted(own, key=lambda of: of.seed)


def _epochs(material: Material) -> Content:
    content = _one_picture("epochs", "Local epochs at equal total work", pictures.epochs_picture)
    if len({spec.local_epochs for spec in material.specs.values()}) < 2:
        return ("Runs of a single number of local epochs are here: nothing to compare yet.",), (), ()
    return content(material)


def _tuning(material: Material) -> Content:
    """Runs of several scales have no common choice: the table has a row for each, and the picture says why not."""
    title = "Accuracy by learning rate, FedAvg"
    picture = Picture("tuning", title, partial(by_alpha.tuning_picture, material.curves), alt=title)
    try:
        words = tuning_words(chosen_rates(material.curves))
    except FedGAError:
        words = ()
    return words, [tuning_table(material.curves)], [picture]


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
        title = f"The paper's setting and the strong one, averaged models: {place_name(dataset, alpha)}"
        draw = partial(pictures.curves_picture, curves, averaged=True, title=title)
        drawn.append(Picture(_file("strong", dataset), title, draw, alt=f"{title}, accuracy over rounds"))
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
    "figure-alphas": _one_picture("alphas", "Accuracy under several levels of skew", by_alpha.alphas_picture),
    "figure-ea": _one_picture("client-ea", "EA ratio of the active clients", pictures.client_ea_picture),
    "figure-curves": _one_picture("curves", "Accuracy over rounds", pictures.curves_picture, titled=True),
    "figure-labels": _labels,
    "figure-zoom": _zoom,
    "figure-adam": _one_picture("adam", "Adam as the clients' optimiser", pictures.curves_picture, titled=True),
    "figure-epochs": _epochs,
    "tuning": _tuning,
    "readings": _readings,
    "strong": _strong,
    "beyond": _beyond,
}
