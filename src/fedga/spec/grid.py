"""From layered settings to runs: flags win over the configuration file, that over the preset, that over the default.

Every setting may have several values; the runs are all their combinations. ``Sweep.provenance`` says for each value
where it came from, so that a user sees what was decided for her.
"""

import itertools
import math
import re
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fedga.common.files import read_text
from fedga.common.ranges import wrong_value
from fedga.errors import FedGAError, unknown_name
from fedga.plugins import FILE_NAME, KINDS
from fedga.spec.catalog import find_source
from fedga.spec.kinds import Number
from fedga.spec.presets import algorithm_defaults, preset_settings
from fedga.spec.settings import PARTITIONS, READ_ALPHA, SETTINGS, RunSpec, parse_algorithm

DEMO = {"preset": ("paper", "strong"), "seed": (0, 1, 2)}  # when neither data set nor algorithm is named
DEFAULTS: Mapping[str, tuple[Any, ...]] = {
    **{"partition": ("dirichlet",), "dataset": ("digits",), "algorithm": ("fedavg", "fedga"), "alpha": (0.1,)},
    **{"preset": ("",), "seed": (0,)},
}
# In a file too; they change no number.
PROGRAM_KEYS = ("cluster", "data_dir", "device", "devices", "engine", "out", "threads", "track")
_LONGEST_RANGE = 10_000
_MOST_RUNS = 1_000_000

# Settings that only some partitions read: given with none of those they are refused, beside one they apply to it alone.
_READ_BY: Mapping[str, tuple[str, ...]] = {
    "alpha": READ_ALPHA,
    "classes_per_client": ("shards",),
    "clients": tuple(name for name in PARTITIONS if name != "natural"),
}


@dataclass(frozen=True)
class Provenance:
    """Where a setting's value came from: one line of the table printed at the start."""

    setting: str
    values: tuple[Any, ...]
    source: str


@dataclass(frozen=True)
class Sweep:
    """The runs of one command, in a fixed order; ``axes`` are the settings given several values."""

    runs: tuple[RunSpec, ...]
    provenance: tuple[Provenance, ...]
    axes: tuple[str, ...]
    program: Mapping[str, str] = field(default_factory=dict)


# One value of one run: who set it and, for what a preset looks up, in which row of its table.
_Origin = tuple[Any, str, str]


class _Given(NamedTuple):
    """Values a user wrote, and where."""

    values: tuple[Any, ...] = (None,)
    source: str = ""


def parse_list(name: str, text: str, flag: str = "") -> list[Any]:
    """The values of a comma list, of the setting's own flag or another place; whole numbers may be ranges.

    >>> parse_list("alpha", "0.1,1")
    [0.1, 1.0]
    >>> parse_list("clip", "5,none")
    [5.0, None]
    """
    where, kind = flag or SETTINGS[name].flag, SETTINGS[name].kind
    values: list[Any] = []
    for part in (part.strip() for part in text.split(getattr(kind, "separator", ","))):
        if not part and not (name == "preset" and part == text.strip()):
            raise FedGAError(f"{where} {text!r} has an empty entry: separate values by single commas")
        ends = re.fullmatch(r"([0-9]+)-([0-9]+)", part)
        if ends and isinstance(kind, Number) and kind.whole:
            first, last = (int(kind.parse(where, end) or 0) for end in ends.groups())
            if last < first:
                raise FedGAError(f"{where} {part!r} is a range that ends before it begins: write it as {last}-{first}")
            if last - first >= _LONGEST_RANGE:
                raise FedGAError(f"{where} {part!r} is a range of more than {_LONGEST_RANGE:,} values")
            values.extend(kind.check(where, number) for number in range(first, last + 1))
        else:
            values.append(kind.parse(where, part))
    return values


def setting_name(key: str) -> str:
    """The field behind a flag or a TOML key: hyphens are underscores, ``seeds`` is ``seed``."""
    name = key.replace("-", "_")
    return "seed" if name == "seeds" else name


def read_config(path: Path) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """Settings and program keys of a TOML file: a key holds one value, an array of values, or a text as on a flag."""
    try:
        table = tomllib.loads(read_text(path))
    except FedGAError:
        raise
    except FileNotFoundError:
        raise FedGAError(f"the file of --config does not exist: {path}") from None
    except OSError as error:
        raise FedGAError(f"the file of --config cannot be read: {path} ({error.strerror})") from None
    except (ValueError, RecursionError) as error:  # of TOML, of UTF-8, of a number of thousands of digits
        raise FedGAError(f"{path} is not valid TOML: {error}") from None
    settings: dict[str, list[Any]] = {}
    program: dict[str, str] = {}
    for key, value in table.items():
        name, where = setting_name(key), f"{key} in {path.name}"
        if name in settings or name in program:
            raise FedGAError(f"{where} is given twice, with a hyphen and with an underscore")
        if value in ("", []) and name != "preset":
            raise FedGAError(f"{where} is empty: give a value, or leave the key out")
        if key in KINDS and isinstance(value, dict):
            project = f"{path.name} has a table [{key}], as a project file ({FILE_NAME}) has, which is read by itself"
            raise FedGAError(f"{project}: give --config a file of settings, such as rounds = 10")
        if name in PROGRAM_KEYS:
            if not isinstance(value, str) and name != "threads":
                raise wrong_value(where, "a text", value)
            program[name] = str(value)
        elif name not in SETTINGS:
            raise unknown_name(f"key in {path.name}", key, [*SETTINGS, *PROGRAM_KEYS])
        elif isinstance(value, str):
            settings[name] = parse_list(name, value, where)
        else:
            entries = value if isinstance(value, list) else [value]
            settings[name] = [SETTINGS[name].kind.check(where, entry) for entry in entries]
    return settings, program


def build_sweep(
    flags: Mapping[str, Sequence[Any] | None],
    config: Path | None = None,
    names_clients: Callable[[str], bool] = lambda dataset: False,
) -> Sweep:
    """All runs that these flags (field name -> values, None where not given) and this TOML file describe.

    A data set of which ``names_clients`` is true keeps its own clients, where nothing says how to partition it.

    >>> sweep = build_sweep({"dataset": ["mnist"], "algorithm": ["fedavg", "fedga"], "seed": [0, 1], "lr": [0.05]})
    >>> [(run.algorithm, run.seed, run.lr, run.rounds) for run in sweep.runs]
    [('fedavg', 0, 0.05, 100), ('fedavg', 1, 0.05, 100), ('fedga', 0, 0.05, 100), ('fedga', 1, 0.05, 100)]
    >>> [line.source for line in sweep.provenance if line.setting in ("lr", "rounds")]
    ['default (mnist, α=0.1)', '--lr']
    """
    written, program = ({}, {}) if config is None else read_config(config)
    file = "" if config is None else config.name
    given = {name: _Given(tuple(values), file) for name, values in written.items()}
    for key, values in flags.items():
        name = setting_name(key)
        if name not in SETTINGS:
            raise unknown_name("setting", key, SETTINGS)
        if values:
            flag = SETTINGS[name].flag
            given[name] = _Given(tuple(SETTINGS[name].kind.check(flag, value) for value in values), flag)
    if "dataset" in given:  # a known one under its one name, however it was spelt: presets and results go by it
        values, flag = given["dataset"]
        given["dataset"] = _Given(tuple(getattr(find_source(name), "name", name) for name in values), flag)
    return _expand(_axes(given, names_clients), program)


def _expand(axes: dict[str, _Given], program: Mapping[str, str]) -> Sweep:
    combined = math.prod(len(entry.values) for entry in axes.values())
    if combined > _MOST_RUNS:
        raise FedGAError(f"these lists make {combined:,} runs, and {_MOST_RUNS:,} are the most: give shorter lists")
    runs: dict[str, RunSpec] = {}
    origins: dict[str, list[_Origin]] = {name: [] for name in SETTINGS}
    for combination in itertools.product(*(entry.values for entry in axes.values())):
        values, sources = _fill(dict(zip(axes, combination, strict=True)), axes)
        run = RunSpec(**values)
        runs.setdefault(run.run_id, run)
        for name, origin in sources.items():
            origins[name].append((getattr(run, name), *origin))
        written = dict(parse_algorithm(run.algorithm)[1])
        for option, value in run.algorithm_options:
            if option not in written:
                source = f"preset {run.preset}" if run.preset else "default"
                origins.setdefault(f"{run.algorithm_name} {option}", []).append((value, source, run.dataset))
    provenance = tuple(line for name, of in origins.items() for line in _lines(name, of))
    several = tuple(name for name, entry in axes.items() if len(set(entry.values)) > 1)
    return Sweep(tuple(runs.values()), provenance, several, dict(program))


def _reads(partition: str, readers: Collection[str]) -> bool:
    """Whether a partition may read a setting; one of the user's own may read any."""
    return partition in readers or partition not in PARTITIONS


def _axes(given: dict[str, _Given], names_clients: Callable[[str], bool]) -> dict[str, _Given]:
    """What is combined: the user's lists and the few defaults that are lists, in the order of the spec's fields."""
    demo = DEMO if given.keys().isdisjoint(("dataset", "algorithm")) else {}
    axes = {name: _Given(values, "default") for name, values in {**DEFAULTS, **demo}.items()} | given
    column = given.get("client_column", _Given())
    if "partition" not in given and column.values != (None,):
        axes["partition"] = _Given(("natural",), column.source)
    elif given.keys().isdisjoint(("partition", *_READ_BY)) and all(map(names_clients, axes["dataset"].values)):
        names = ", ".join(Path(name).name for name in axes["dataset"].values)
        axes["partition"] = _Given(("natural",), f"clients named in {names}")
    partitions = axes["partition"].values
    for name, readers in _READ_BY.items():
        asked = given.get(name, _Given())
        if asked.values != (None,) and not any(_reads(partition, readers) for partition in partitions):
            where = asked.source if asked.source == SETTINGS[name].flag else f"{name} in {asked.source}"
            remedy = f"leave it out, or choose --partition {', '.join(readers)}"
            raise FedGAError(f"{where} is not read by --partition {','.join(partitions)}: {remedy}")
    return {name: axes[name] for name in SETTINGS if name in axes}


def _fill(chosen: dict[str, Any], axes: Mapping[str, _Given]) -> tuple[dict[str, Any], dict[str, tuple[str, str]]]:
    """One combination completed from preset and defaults; and for each setting its source and row of the table."""
    for name, readers in _READ_BY.items():
        by_default = name in axes and axes[name].source == "default" and chosen["partition"] not in readers
        if by_default or not _reads(chosen["partition"], readers):
            chosen.pop(name, None)
    label = chosen["preset"]
    preset = preset_settings(label, chosen["dataset"], chosen.get("alpha"))
    values = {**preset.values, **chosen}
    if values["server"] != preset.values["server"] and "server_rate" not in chosen:
        values["server_rate"] = None  # a preset's rate belongs to its own optimiser, not to the user's
    if chosen["partition"] == "natural":
        values["clients"] = None
    elif "active" not in chosen:
        values["active"] = min(values["active"], values["clients"])  # few clients: all of them
    values["algorithm_options"] = algorithm_defaults(chosen["dataset"], parse_algorithm(chosen["algorithm"])[0])
    sources = dict.fromkeys(SETTINGS, ("default", ""))
    for name, value in preset.values.items():
        if values[name] == value:
            sources[name] = (f"preset {label}" if label else "default", preset.row if name in preset.looked_up else "")
    return values, sources | {name: (axes[name].source, "") for name in chosen}


def _lines(name: str, origins: Sequence[_Origin]) -> list[Provenance]:
    """The lines of one setting: a user's list on one, values of presets one by one with the rows they stand in."""
    values: dict[str, dict[Any, dict[str, None]]] = {}  # source -> value -> rows
    for value, source, row in origins:
        values.setdefault(source, {}).setdefault(value, {})[row] = None
    lines: dict[tuple[tuple[Any, ...], str], list[str]] = {}  # values and their rows -> sources that agree on them
    for source, rows_of in values.items():
        if any(any(rows) for rows in rows_of.values()):
            for value, rows in rows_of.items():
                lines.setdefault(((value,), f" ({_merge_rows(tuple(rows))})"), []).append(source)
        else:
            lines.setdefault((tuple(rows_of), ""), []).append(source)
    return [Provenance(name, of, ", ".join(sources) + rows) for (of, rows), sources in lines.items()]


def _merge_rows(rows: Sequence[str]) -> str:
    """Rows of one data set behind its name: "mnist, α=0.1; mnist, α=1" is "mnist, α=0.1, α=1"."""
    by_dataset: dict[str, list[str]] = {}
    for row in rows:
        dataset, _, alpha = row.partition(", ")
        by_dataset.setdefault(dataset, []).append(alpha)
    return "; ".join(", ".join([dataset, *filter(None, alphas)]) for dataset, alphas in by_dataset.items())
