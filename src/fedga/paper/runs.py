"""The paper's experiments, and ours beyond it, as runs: what `fedga paper NAME` trains.

Experiments share their runs: the same settings are the same run in one results folder, so a figure of the main table's
runs trains nothing. At scale ``full`` everything is as published; ``quick`` is the same study on the embedded digits,
or on a twentieth of the rounds and few seeds and α of a data set that is named: a look within minutes.
"""

import dataclasses
import hashlib
import itertools
import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedga.common.files import read_text
from fedga.errors import FedGAError, check_known
from fedga.spec.catalog import find_source
from fedga.spec.grid import build_sweep
from fedga.spec.presets import STRONG, preset_settings
from fedga.spec.settings import RunSpec

DATASETS = ("mnist", "cifar10", "cifar100", "svhn", "tiny-imagenet")
ALPHAS = (0.05, 0.1, 0.5, 1.0, 10.0)
ALGORITHMS = ("fedavg", "fedprox", "fedrl", "climb", "fedntd", "fedga")
COLUMNS = (*ALGORITHMS, "fedga-batch")  # the authors' program counts classes per batch: a column of its own
SEEDS = (0, 1, 2, 3, 4)
SCALES = ("quick", "full")
BEYOND = "beyond the paper"
FILE_NAME = "paper.jsonl"
_DIGEST = "sha256"
_LISTS = ("datasets", "alphas", "seeds", "algorithms")
_MOST_VALUES = 1000  # in one list of a note
_ALL, _USUAL = "*", "usual"  # for a setting: all names of its registry; the augmentation that is usual on a data set

_QUICK_DATASET, _QUICK_SEEDS = "digits", (0, 1, 2)
_OTHER_QUICK_SEEDS, _OTHER_QUICK_ALPHAS = (0, 1), (0.05, 0.5)
_QUICK_SHARE, _FEWEST_ROUNDS = 20, 10
_SHORT = 100  # rounds; longer runs are evaluated in every second round and their clients evaluated less often

# The four axes of the strong setting that change training; the averaged model is measured beside every last one.
_CHANGED = {"pixels": "standardize", "momentum": "server", "schedule": "lr_schedule", "decay": "weight_decay"}
AXES: Mapping[str, Mapping[str, Any]] = {axis: {name: STRONG[name]} for axis, name in _CHANGED.items()}


@dataclass(frozen=True)
class Scope:
    """How much of an experiment is run; an empty entry means the experiment's own."""

    scale: str = "full"
    datasets: tuple[str, ...] = ()
    alphas: tuple[float, ...] = ()
    seeds: tuple[int, ...] = ()
    algorithms: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_known("scale", self.scale, SCALES)


@dataclass(frozen=True)
class RunGroup:
    """Runs of an experiment that differ in data set, α, algorithm and seed alone.

    ``algorithms``: where given, the part has these whatever the scope says. ``strongest``: only the smallest α.
    ``epochs`` keeps the total local work of the published rounds. A setting or an algorithm that is "*" stands for all
    built-in names, ``augment = "usual"`` for what the catalogue says of the data set.
    """

    preset: str = "paper"
    settings: Mapping[str, Any] = field(default_factory=dict)
    strongest: bool = False
    algorithms: tuple[str, ...] = ()
    epochs: int | None = None


@dataclass(frozen=True)
class Experiment:
    """One table or figure: where it stands in the paper, what it shows, and the runs it is made of."""

    name: str
    where: str
    shows: str
    parts: tuple[RunGroup, ...]
    datasets: tuple[str, ...] = DATASETS
    alphas: tuple[float, ...] = ALPHAS
    algorithms: tuple[str, ...] = COLUMNS
    seeds: tuple[int, ...] = SEEDS
    quick: Mapping[str, Any] = field(default_factory=dict)  # settings at that scale, on the embedded data
    by_name_only: bool = False  # whether `fedga paper all` leaves it out

    def datasets_in(self, scope: Scope) -> tuple[str, ...]:
        """The experiment's own data sets; those of the scope that are among them; or, if none is, the scope's."""
        if not scope.datasets:
            return (_QUICK_DATASET,) if scope.scale == "quick" else self.datasets
        return tuple(name for name in scope.datasets if name in self.datasets) or scope.datasets

    def alphas_in(self, scope: Scope, dataset: str) -> tuple[float, ...]:
        if scope.alphas:
            return scope.alphas
        if scope.scale == "full" or dataset == _QUICK_DATASET:
            return self.alphas
        return tuple(alpha for alpha in self.alphas if alpha in _OTHER_QUICK_ALPHAS) or self.alphas[:1]

    def seeds_in(self, scope: Scope, dataset: str) -> tuple[int, ...]:
        if scope.seeds:
            return scope.seeds
        few = _QUICK_SEEDS if dataset == _QUICK_DATASET else _OTHER_QUICK_SEEDS
        return self.seeds if scope.scale == "full" else tuple(seed for seed in few if seed in self.seeds)

    def runs(self, scope: Scope) -> list[RunSpec]:
        """All runs of the experiment, each once."""
        found: dict[str, RunSpec] = {}
        for dataset, part in itertools.product(self.datasets_in(scope), self.parts):
            alphas = self.alphas_in(scope, dataset)
            for alpha in (min(alphas),) if part.strongest else alphas:
                for spec in self._runs(scope, dataset, part, alpha):
                    found.setdefault(spec.run_id, spec)
        return list(found.values())

    def _runs(self, scope: Scope, dataset: str, part: RunGroup, alpha: float) -> Sequence[RunSpec]:
        rounds = _rounds(scope.scale, part, dataset, alpha)
        settings = {
            "dataset": dataset,
            "alpha": alpha,
            "preset": part.preset,
            "rounds": rounds,
            "server_average": STRONG["server_average"],  # a second model, evaluated beside the last
            "evaluate_every": 1 if rounds <= _SHORT else 2,
            "diagnose_every": 10 if rounds <= _SHORT else 25,
            **({"local_epochs": part.epochs} if part.epochs else {}),
            **part.settings,
            **(self.quick if scope.scale == "quick" and dataset == _QUICK_DATASET else {}),
        }
        lists = {name: _values(name, value, dataset) for name, value in settings.items()}
        chosen = part.algorithms or scope.algorithms or self.algorithms
        algorithms = list(dict.fromkeys(name for each in chosen for name in _values("algorithm", each, dataset)))
        return build_sweep({**lists, "algorithm": algorithms, "seed": self.seeds_in(scope, dataset)}).runs


def _values(setting: str, value: Any, dataset: str) -> Sequence[Any]:
    """What a setting is in turn."""
    if setting == "augment" and value == _USUAL:
        source = find_source(dataset)
        return ["" if source is None else source.augment]
    return _registered(setting) if value == _ALL else [value]


def _registered(setting: str) -> Sequence[str]:
    """The built-in names; they are loaded here, since a list of the experiments needs no torch."""
    from fedga.algorithms import ALGORITHMS
    from fedga.selection import SELECTIONS
    from fedga.servers import SERVERS

    names: Mapping[str, Sequence[str]] = {"algorithm": [*ALGORITHMS], "select": [*SELECTIONS], "server": [*SERVERS]}
    return names[setting]


def _rounds(scale: str, part: RunGroup, dataset: str, alpha: float) -> int:
    """The published number, fewer at equal work where a round has more local epochs, a twentieth of it when quick."""
    values = preset_settings(part.preset, dataset, alpha).values
    rounds = int(values["rounds"])
    if scale == "quick" and dataset != _QUICK_DATASET:
        rounds = max(rounds // _QUICK_SHARE, _FEWEST_ROUNDS)
    return rounds * values["local_epochs"] // part.epochs if part.epochs else rounds


def _axis_groups() -> Iterable[RunGroup]:
    """Each axis alone, and all but each: with none (the paper's setting) and all (the strong one) ten settings."""
    rarely_evaluated = {"evaluate_every": 10, "diagnose_every": 0}  # only where they end is asked
    for chosen in (*((name,) for name in AXES), *itertools.combinations(AXES, len(AXES) - 1)):
        settings = {key: value for name in chosen for key, value in AXES[name].items()}
        yield RunGroup(settings={**settings, **rarely_evaluated})


def _read_experiments() -> dict[str, Experiment]:
    text = Path(__file__).with_name("experiments.toml").read_text(encoding="utf-8")
    found = {}
    for name, table in tomllib.loads(text).items():
        parts = [_axis_groups() if part == "axes" else [RunGroup(**_tuples(part))] for part in table.pop("parts", [{}])]
        found[name] = Experiment(name, **_tuples(table), parts=tuple(itertools.chain(*parts)))
    return found


def _tuples(table: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}


EXPERIMENTS: Mapping[str, Experiment] = _read_experiments()
IN_ALL = tuple(each for each in EXPERIMENTS.values() if not each.by_name_only)
LEARNING_RATES = tuple(part.settings["lr"] for part in EXPERIMENTS["tuning"].parts)


def experiments_in(name: str, scope: Scope) -> list[Experiment]:
    """The experiment of that name; for ``all``, those that have a data set in the scope."""
    check_known("experiment", name, [*EXPERIMENTS, "all"])
    if name != "all":
        return [EXPERIMENTS[name]]
    if not scope.datasets or scope.scale == "quick":
        return list(IN_ALL)
    return [each for each in IN_ALL if set(each.datasets) & set(scope.datasets)]


def all_runs(experiments: Iterable[Experiment], *scopes: Scope) -> list[RunSpec]:
    """The runs of several experiments in these scopes, each once."""
    pairs = itertools.product(experiments, scopes)
    return list({spec.run_id: spec for each, scope in pairs for spec in each.runs(scope)}.values())


def remember(folder: Path, experiments: Iterable[Experiment], scope: Scope) -> None:
    """Note in the folder what was asked of it, for its report: lines that are only ever added, by any process."""
    known = asked(folder)
    names = [each.name for each in experiments if scope not in known.get(each.name, ())]
    notes = [{"experiment": name, **dataclasses.asdict(scope)} for name in names]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / FILE_NAME).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps({**note, _DIGEST: _digest(note)}, ensure_ascii=False) + "\n" for note in notes)
    except OSError as error:
        raise FedGAError(f"{str(folder)!r} cannot be written to ({error.strerror}): give another --out") from None


def asked(folder: Path) -> dict[str, tuple[Scope, ...]]:
    """The experiments that were run in this folder, and how much of each; empty for any other folder."""
    path = folder / FILE_NAME
    found: dict[str, tuple[Scope, ...]] = {}
    try:
        for line in read_text(path).splitlines():
            name, scope = _read_note(json.loads(line))
            if name in EXPERIMENTS:
                found[name] = tuple(dict.fromkeys((*found.get(name, ()), scope)))
    except FedGAError:
        raise
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise FedGAError(f"{path} cannot be read ({error}): delete it and repeat the `fedga paper` command") from None
    return found


def _read_note(values: dict[str, Any]) -> tuple[str, Scope]:
    """Experiment and scope as they were written; notes of version 0.1 have no digest."""
    digest = values.pop(_DIGEST, None)
    if set(values) != {"experiment", "scale", *_LISTS}:
        raise ValueError("a line has other entries than these notes have")
    if digest not in (None, _digest(values)):
        raise ValueError("a line does not match its digest")
    lists = {key: tuple(values[key]) for key in _LISTS}
    if max(map(len, lists.values())) > _MOST_VALUES:
        raise ValueError(f"a line lists more than {_MOST_VALUES:,} values")
    return values["experiment"], Scope(str(values["scale"]), **lists)


def _digest(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
