"""The sections of a folder's report, one per experiment of the paper: each sees the runs of its own alone."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from fedga.drawing.style import Figure, algorithm_rank, display_name
from fedga.errors import FedGAError
from fedga.paper.binary import read_binary_runs
from fedga.paper.printed import STAND_IN, printed_score
from fedga.paper.report import pictures
from fedga.paper.report.agreement import agreement_summary, agreement_table, compare, ranking_table, rankings
from fedga.paper.report.arms import arms
from fedga.paper.report.beyond import beyond_headline, beyond_picture, beyond_table, strong_headline, strong_table
from fedga.paper.report.binary import binary_headline, binary_picture
from fedga.paper.report.related import MODELS, compare_methods, differences_table, ranks_table, related_headline
from fedga.paper.report.related_pictures import differences_picture, ranks_picture
from fedga.paper.report.scores import MOMENTS, Reading, paper_table, score_table
from fedga.paper.report.speed import speed_headline, speed_table
from fedga.paper.report.tuning import chosen_rates, tuning_headline, tuning_table
from fedga.paper.runs import BEYOND, EXPERIMENTS, IN_ALL, Experiment, Scope, all_runs, asked
from fedga.report.curves import Curve, read_curves
from fedga.report.documents import Cell, Picture, Section, Table
from fedga.report.figures.clients import before_after_algorithms
from fedga.report.general import as_file
from fedga.report.tables import values_text
from fedga.report.words import grouped, listed
from fedga.spec.catalog import dataset_name, place_name
from fedga.spec.presets import preset_settings
from fedga.spec.settings import RunSpec
from fedga.store.store import Store

SUMMARISED = ("fedavg", "fedntd", "fedga")  # the columns whose program had no known defect
_ZOOM, _LONG_ZOOM, _SHORT = 10, 100, 100
_ASKED_OF = {"tuning": ("lr",), "figure-epochs": ("local_epochs",)}  # settings a section needs of every curve
Content = tuple[str, Sequence[Table], Sequence[Picture]]  # a headline, tables and pictures


@dataclass(frozen=True, eq=False)
class Material:
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

    def datasets(self) -> list[str]:
        return list(dict.fromkeys(dataset for dataset, _ in self.places()))

    def at(self, dataset: str, alpha: float | None) -> list[Curve]:
        return self.where(lambda spec: (spec.dataset, spec.alpha) == (dataset, alpha))


def sections_of(folder: Path) -> list[Section]:
    """The sections of the experiments that ``fedga paper`` ran in this folder; none for any other folder."""
    found = asked(folder)
    sections = [section_of(folder, EXPERIMENTS[name], found[name]) for name in EXPERIMENTS if name in found]
    others = [each for each in EXPERIMENTS.values() if each.name not in found]
    rows = [(Cell(each.name), Cell(each.shows), Cell(f"fedga paper {each.name}")) for each in others]
    if not sections or not rows:
        return sections
    title = "Experiments not run here"
    table = Table("not-run", title, ("experiment", "shows", "command"), tuple(rows))
    return [*sections, Section("not-run", title, tables=(table,))]


def paper_commands(folder: Path, into: str) -> tuple[list[str], set[str]]:
    """The ``fedga paper`` commands that were asked of this folder, to train ``into`` another; the ids of their runs."""
    pairs = [(scope, name) for name, scopes in asked(folder).items() for scope in scopes]
    commands, covered = [], set()
    for scope, found in grouped(pairs, lambda pair: pair[0]).items():
        names = [name for _, name in found]
        words = ["--scale", scope.scale]
        for kind in ("datasets", "alphas", "seeds", "algorithms"):
            values = getattr(scope, kind)
            words += [f"--{kind}", values_text(values)] if values else []
        chosen = ["all"] if set(names) == {each.name for each in IN_ALL} else names
        commands += [shlex.join(["fedga", "paper", name, *words, "--out", into]) for name in chosen]
        covered |= {spec.run_id for spec in all_runs([EXPERIMENTS[name] for name in names], scope)}
    return commands, covered


def section_of(folder: Path, experiment: Experiment, scopes: Sequence[Scope]) -> Section:
    """Headline, tables and pictures of one experiment, from the runs of it that the folder holds."""
    specs = {spec.run_id: spec for spec in all_runs([experiment], *scopes)}
    curves = read_curves(folder, set(specs), _ASKED_OF.get(experiment.name, ())) if specs else []
    known = {curve.run_id for curve in curves}
    material = Material(folder, experiment, scopes, {key: specs[key] for key in specs if key in known}, curves)
    title = f"{experiment.name}: {experiment.shows}"
    ended = sum(curve.status in ("done", "diverged") for curve in curves)
    missing = f"Not in this folder or not finished: {len(specs) - ended} of {len(specs)} runs."
    if specs and not any(len(curve.rounds) for curve in curves):
        counts = f"{len(curves)} are here, {sum(curve.diverged for curve in curves)} diverged"
        return Section(experiment.name, title, (f"None of its {len(specs)} runs has an evaluated round: {counts}.",))
    try:
        headline, tables, wanted = SECTIONS[experiment.name](material)
    except FedGAError as error:  # narrowed until nothing is left to compare: the other sections still have something
        headline, tables, wanted = f"Nothing to show: {error}.", (), ()
    drawn, undrawn = [], []
    for picture in wanted:  # each once, for file and page alike; one with nothing to show must not take the page along
        try:
            draw = cache(picture.draw)
            draw()
            drawn.append(replace(picture, draw=draw))
        except FedGAError as error:
            undrawn.append(f'No picture of "{picture.title}": {error}.')
    words = [_scale_text(material), headline, *undrawn, missing if ended < len(specs) else ""]
    return Section(experiment.name, title, tuple(filter(None, words)), tuple(tables), tuple(drawn))


def _scale_text(material: Material) -> str:
    """Where the paper has it, and what of it was not run."""
    experiment = material.experiment
    where = f"In the paper: {experiment.where}." if experiment.where != BEYOND else "Beyond the paper."
    if not all(scope.scale == "full" for scope in material.scopes):
        return f"{where} Quick scale: a small version, not the published setting."
    run = {spec.dataset for spec in material.specs.values()}
    missing = [dataset_name(name) for name in experiment.datasets if run and name not in run]
    return f"{where} Not run here: {listed(missing)}." if missing else where


def _main(material: Material) -> Content:
    """The published MNIST rows fit the mean over the curve; the others are compared at both moments of the paper."""
    tables = [paper_table(material.curves, f"table-main-{at}", at=at) for at in MOMENTS]
    tables.append(paper_table(material.curves, "table-main-averaged", model="averaged"))
    by_curve = material.where(lambda spec: _is_comparable(spec) and _fits_curve_mean(spec))
    others = material.where(lambda spec: _is_comparable(spec) and not _fits_curve_mean(spec))
    compared = [("mean", by_curve), ("80", others), ("last", others)]
    headline, summary = _summary(compared, "main")
    return headline, [*tables, *summary, *(table for at, of in compared for table in _beside(of, "main", at))], ()


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
    by_curve = [curve for curve in printed if curve not in others]
    headline, summary = _summary([("80", by_curve), ("80", others), ("last", others)], "at_80")
    tables = [paper_table(shown, "table-80", at="80"), *summary, *_beside(printed, "at_80", "80")]
    if _is_printed(printed, "at_80"):
        tables.append(agreement_table(compare(printed, "at_80", metric="macro_f1")))
    return headline, [*tables, *_beside(others, "at_80", "last")], ()


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


def _summary(compared: Sequence[tuple[str, Sequence[Curve]]], which: str) -> tuple[str, list[Table]]:
    """How many cells agree with print at each moment; the headline leaves out the second moment of the same runs."""
    chosen = [(at, [curve for curve in of if curve.settings["algorithm"] in SUMMARISED]) for at, of in compared]
    found = [compare(of, which, at=at) for at, of in chosen if _is_printed(of, which)]
    if not found:
        return "", []
    names = [display_name(name) for name in SUMMARISED]
    first = [one for one in found if one.reading.at != "last"]
    within, cells = sum(one.within for one in first), sum(one.compared for one in first)
    headline = f"{within} of {cells} printed accuracies of {listed(names)} agree with ours." if cells else ""
    return headline, [agreement_summary(found, f"agreement-{which}".replace("_", "-"), names)]


def _speed(material: Material) -> Content:
    return speed_headline(material.curves, 0.9), [speed_table(material.curves, part) for part in (0.9, 0.8)], ()


def _clients(material: Material) -> Content:
    """The active clients of the first seed in the last evaluated round, under every algorithm."""
    drawn = []
    for dataset, alpha in material.places():
        specs = [spec for spec in material.specs.values() if (spec.dataset, spec.alpha) == (dataset, alpha)]
        seed = min(spec.seed for spec in specs)
        with Store(material.folder) as store:
            rounds = {spec.algorithm: store.client_rounds(spec.run_id) for spec in specs if spec.seed == seed}
            names = next((of.class_names for of in store.partitions() if of.dataset == dataset), ())
        seen = {name: rounds[name][-1].arrays for name in sorted(rounds, key=algorithm_rank) if rounds[name]}
        if seen and names:
            title = f"Clients before and after local training: {place_name(dataset, alpha)}"
            draw = partial(before_after_algorithms, seen, names)
            drawn.append(Picture(_file("clients", dataset, alpha), title, draw, alt=f"{title}, class by class"))
    return "", (), drawn


def _file(kind: str, dataset: str, alpha: float | None = None) -> str:
    return f"{kind}-{as_file(dataset)}" + ("" if alpha is None else f"-{alpha:g}")


def _binary(material: Material) -> Content:
    runs = read_binary_runs(material.folder)
    if not runs:
        return "It was not computed in this folder.", (), ()
    title, headline = "Error asymmetry of a binary classifier over training", binary_headline(runs)
    return f"{headline}.", (), [Picture("binary", title, partial(binary_picture, runs), alt=headline)]


def _one_picture(
    name: str, title: str, draw: Callable[..., Figure], *, titled: bool = False
) -> Callable[[Material], Content]:
    """A section that is a single picture of all its runs; ``titled`` where the picture finds no title by itself."""

    def content(material: Material) -> Content:
        alt = f"{title}: {listed(list(dict.fromkeys(place_name(*place) for place in material.places())))}"
        drawn = partial(draw, material.curves, title=alt) if titled else partial(draw, material.curves)
        return "", (), [Picture(name, title, drawn, alt=alt)]

    return content


def _zoom(material: Material) -> Content:
    drawn = []
    for dataset, alpha in material.places():
        curves = material.at(dataset, alpha)
        rounds = max(material.specs[curve.run_id].rounds for curve in curves)
        last = _ZOOM if rounds <= _SHORT else _LONG_ZOOM
        title = f"The first {last} rounds: {place_name(dataset, alpha)}"
        draw = partial(pictures.zoom_picture, curves, last, title=title)
        drawn.append(Picture(_file("zoom", dataset, alpha), title, draw, alt=f"{title}, accuracy by algorithm"))
    return "", (), drawn


def _labels(material: Material) -> Content:
    """The partitions of this experiment's own runs, of the lowest seed; a folder may hold others."""
    wanted = {(of.dataset, of.partition, of.alpha, of.clients, of.seed) for of in material.specs.values()}
    with Store(material.folder) as store:
        kept = [of for of in store.partitions() if of.partition == "dirichlet"]
    ours = [of for of in kept if (of.dataset, of.partition, of.alpha, of.clients, of.seed) in wanted]
    by_dataset = grouped(sorted(ours, key=lambda of: of.seed), lambda of: of.dataset)
    drawn = []
    for dataset in material.datasets():
        if chosen := {of.alpha: of for of in reversed(by_dataset.get(dataset, ())) if of.alpha is not None}:
            counts = {alpha: chosen[alpha].class_counts for alpha in sorted(chosen, reverse=True)}
            names = next(iter(chosen.values())).class_names
            title = f"Who holds which classes: {dataset_name(dataset)}"
            draw = partial(pictures.labels_picture, counts, names)
            drawn.append(Picture(_file("labels", dataset), title, draw, alt=f"{title}, client by client"))
    return "", (), drawn


def _epochs(material: Material) -> Content:
    if len({spec.local_epochs for spec in material.specs.values()}) < 2:
        return "All runs have the same number of local epochs: nothing to compare yet.", (), ()
    return _one_picture("epochs", "Local epochs at equal total work", pictures.epochs_picture)(material)


def _tuning(material: Material) -> Content:
    """Runs of several scales have no common choice: the table has a row for each, and the picture says why not."""
    title = "Accuracy by learning rate, FedAvg"
    picture = Picture("tuning", title, partial(pictures.tuning_picture, material.curves), alt=title)
    try:
        headline = tuning_headline(chosen_rates(material.curves))
    except FedGAError:
        headline = ""
    return headline, [tuning_table(material.curves)], [picture]


def _readings(material: Material) -> Content:
    title = "Accuracy of several readings"
    last = score_table(material.curves, [Reading()], "readings", f"{title}, after the last round")
    return "", [last, score_table(material.curves, [Reading(at="80")], "readings-80", f"{title}, at 80 %")], ()


def _strong(material: Material) -> Content:
    """One picture per data set: the averaged models in both settings, at the strongest skew there is."""
    drawn = []
    for dataset in material.datasets():
        alpha = min(alpha for name, alpha in material.places() if name == dataset and alpha is not None)
        curves = [curve for curve in material.at(dataset, alpha) if material.specs[curve.run_id].partition != "even"]
        title = f"The paper's setting and the strong one, averaged models: {place_name(dataset, alpha)}"
        draw = partial(pictures.curves_picture, curves, averaged=True, title=title)
        drawn.append(Picture(_file("strong", dataset), title, draw, alt=f"{title}, accuracy over rounds"))
    return strong_headline(material.curves, material.specs), [strong_table(material.curves, material.specs)], drawn


def _beyond(material: Material) -> Content:
    found = arms(material.curves, material.specs)
    title, headline = "What each axis does alone and together", beyond_headline(found)
    picture = Picture("beyond", title, partial(beyond_picture, found), alt=headline)
    return f"{headline}.", [beyond_table(found)], [picture]


def _related(material: Material) -> Content:
    """The last model first, and what the averaged one says of the strong setting, which has it."""
    found = {model: compare_methods(material.curves, material.specs, model) for model in MODELS}
    last, headline = found["last"], related_headline(found["last"])
    presets = list(dict.fromkeys(place.preset for place in last.places))
    tables = [differences_table(found[model], preset) for preset in presets for model in MODELS]
    title = "Which methods help where: the difference to FedAvg"
    drawn = [Picture("related", title, partial(differences_picture, last), alt=headline)]
    if last.ranking is not None:
        title = "Mean ranks and the critical difference"
        tables.insert(0, ranks_table(last, last.ranking))
        drawn.append(Picture("related-ranks", title, partial(ranks_picture, last.ranking), alt=last.ranking.words))
    return headline, tables, drawn


SECTIONS: Mapping[str, Callable[[Material], Content]] = {
    "table-main": _main,
    "table-80": _at_80,
    "table-speed": _speed,
    "figure-clients": _clients,
    "figure-binary": _binary,
    "figure-alphas": _one_picture("alphas", "Accuracy under several levels of skew", pictures.alphas_picture),
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
    "related": _related,
}
