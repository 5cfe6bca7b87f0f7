"""`fedga run`: settings in, a trained and evaluated grid of runs out."""

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from fedga.cli.console import out, say
from fedga.cli.training import (
    Cluster,
    DataDir,
    Device,
    Devices,
    Engines,
    Program,
    Threads,
    Track,
    names_clients,
    own_option,
    prepare,
    train,
)
from fedga.drawing.style import ALGORITHM_NAMES
from fedga.errors import FedGAError
from fedga.plugins import KINDS, parts, unknown
from fedga.spec.catalog import SOURCES
from fedga.spec.grid import Provenance, Sweep, build_sweep, parse_list
from fedga.spec.kinds import OneOf
from fedga.spec.presets import PRESETS
from fedga.spec.settings import SETTINGS, RunSpec, parse_selection

PANELS = {
    "What to run": ("algorithm", "preset", "seed", "rounds"),
    "Data and clients": (
        *("dataset", "alpha", "partition", "clients", "active", "standardize", "augment"),
        *("client_column", "label_column", "resize", "classes_per_client"),
    ),
    "Local training": (
        *("model", "norm", "local_epochs", "batch_size", "optimizer", "lr", "lr_schedule"),
        *("momentum", "weight_decay", "clip", "centralize", "precision"),
    ),
    "Who takes part": ("select", "availability", "stragglers"),
    "Server": ("server", "server_rate", "server_average", "aggregation"),
    "Evaluation": ("validate", "evaluate_every", "diagnose_every"),
}


def default_folder(specs: Sequence[RunSpec]) -> Path:
    """A folder of its own for every set of runs, the same for the same command: giving it again continues.

    Where a plugin has changed, it is another one.
    """
    from fedga.store.code import code_digest, own_code

    content = [*sorted(spec.run_id for spec in specs), code_digest(own_code(specs, measured=True))]
    digest = hashlib.sha256("".join(content).encode()).hexdigest()
    names = "-".join(dict.fromkeys(Path(spec.dataset).stem for spec in specs))
    return Path("runs") / f"{names}-{digest[:8]}"


def _fitted(sweep: Sweep, specs: Sequence[RunSpec]) -> list[Provenance]:
    """The lines of the settings table, with the number of active clients that the data allow."""
    active = tuple(dict.fromkeys(spec.active for spec in specs))
    if [spec.active for spec in specs] == [spec.active for spec in sweep.runs]:
        return list(sweep.provenance)
    fitted = Provenance("active", active, "default, or all clients")
    return list(dict.fromkeys(fitted if line.setting == "active" else line for line in sweep.provenance))


# Names whose registries are not settings; `fedga data list` and `fedga algorithms` say more.
NAMES: Mapping[str, Sequence[str]] = {
    "algorithm": ALGORITHM_NAMES,
    "select": ("uniform", "in-turn", "balanced", "bandit", "swap-balanced", "power-of-choice"),
    "dataset": tuple(SOURCES),
    "model": ("mlp", "lenet", "resnet20", "package.module:Class"),
    "preset": PRESETS,
}


def refuse_unknown(runs: Sequence[RunSpec]) -> None:
    """A sentence for a name that nobody knows, before torch is loaded to look it up."""
    named = {
        "algorithm": ("algorithms", {spec.algorithm_name for spec in runs}),
        "select": ("selections", {parse_selection(spec.select)[0] for spec in runs}),
        "model": ("models", {spec.model for spec in runs if ":" not in spec.model}),
    }
    for setting, (kind, names) in named.items():
        for name in sorted(names.difference(NAMES[setting])):
            mine = parts(kind, NAMES[setting])
            if name not in mine:
                raise unknown(kind, name, [*NAMES[setting], *mine])


def help_text(name: str) -> str:
    """What a setting is, and the names it knows, those of the user's project file too."""
    setting, kind = SETTINGS[name], {"select": "selections"}.get(name, f"{name}s")
    known = [*NAMES.get(name, ()), *(setting.kind.names if isinstance(setting.kind, OneOf) else ())]
    with suppress(FedGAError):  # help is printed also where the project file is wrong
        known += parts(kind, installed=False) if kind in KINDS else ()
    return f"{setting.help}: {', '.join(known)}" if known else setting.help


def setting_option(name: str, *flags: str, metavar: str = "LIST", panel: str | None = None) -> Any:
    """The option of a setting, under its own flag or under others."""
    shown: dict[str, Any] = {"help": help_text(name), "metavar": metavar, "rich_help_panel": panel}
    return typer.Option(*(flags or (SETTINGS[name].flag,)), show_default=False, **shown)


def _with_settings(function: Callable[..., None]) -> Callable[..., None]:
    """The function with one option per setting of a run: flag, TOML key, column and field share one name."""
    whole = inspect.signature(function, eval_str=True).parameters
    options = {name: setting_option(name, panel=panel) for panel, names in PANELS.items() for name in names}
    one = whole["settings"].replace(kind=inspect.Parameter.KEYWORD_ONLY, default=None)
    listed = [one.replace(name=name, annotation=Annotated[str | None, options[name]]) for name in options]

    def command(**values: Any) -> None:
        settings = {name: values.pop(name) for name in SETTINGS}
        function(settings=settings, **values)

    parameters = [*listed, *(p.replace(kind=one.kind) for p in whole.values() if p.name != "settings")]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__doc__ = function.__doc__
    return command


@_with_settings
def command(
    settings: dict[str, str | None],
    config: Annotated[Path | None, own_option("--config", "TOML file with the same names as the flags.")] = None,
    data_dir: DataDir = None,
    device: Device = None,
    out_dir: Annotated[Path | None, own_option("--out", "Folder for results; the same one continues.")] = None,
    threads: Threads = None,
    pictures: Annotated[bool, own_option("--pictures/--no-pictures", "Draw figures at the end.")] = True,
    profile: Annotated[bool, own_option("--profile", "Show where a round's time goes; writes profile.json.")] = False,
    track: Track = None,
    engine: Engines = None,
    devices: Devices = None,
    cluster: Cluster = None,
) -> None:
    """Train and compare algorithms on one machine.

    With no arguments: FedAvg against FedGA on handwritten digits that ship with scikit-learn, each in the paper's
    setting and in the strong one. Every flag takes a comma list, and lists make a grid; seeds may be a range:

        fedga run --dataset mnist --preset paper --algorithm fedavg,fedga --alpha 0.05,0.1,1 --seeds 0-4

    A run that was stopped, by Ctrl-C or a crash, goes on where it was when the same command is given again.
    """
    given_settings = {name: parse_list(name, text) for name, text in settings.items() if text is not None}
    sweep = build_sweep(given_settings, config, names_clients)
    refuse_unknown(sweep.runs)
    given = Program(data_dir, device, out_dir, threads, profile, track, engine, devices, cluster)
    program = given.completed(sweep.program)
    active = [line.source for line in sweep.provenance if line.setting == "active"]
    chosen = not all(source.startswith(("preset", "default")) for source in active)
    prepared = prepare(sweep.runs, program, active_chosen=chosen)
    from fedga.cli.summary import draw_pictures, print_summary

    specs, folder = prepared.specs, program.out or default_folder(sweep.runs)
    train(prepared, folder, program, axes=sweep.axes, provenance=_fitted(sweep, specs))
    curves = print_summary(folder, {spec.run_id for spec in specs}, out)
    if pictures:
        draw_pictures(folder, curves, specs)
    say(f"a page to look at: fedga report {folder}")
    say(f"every round: fedga results {folder} --format csv; trained models: {folder / 'models'}")
