"""The ServerApp: runs of an app that `fedga flower new` wrote, on simulated clients.

With ``sites``: a federation of machines that read their own data. With ``plan``: a `fedga run --engine flower`.
"""

import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedga.algorithms.base import overrides
from fedga.data.sources import names_clients
from fedga.engine.device_data import DeviceData
from fedga.engine.server import LaneRound
from fedga.engine.stack.lanes import Lane, LaneState
from fedga.errors import FedGAError, unknown_name
from fedga.flower.processes.words import split_names
from fedga.flower.server.events import event_writer
from fedga.flower.server.exchange import Exchange
from fedga.flower.server.remote import RemoteEngine, TimeoutPolicy
from fedga.flower.server.roster import Roster
from fedga.flower.server.sites import Sites
from fedga.spec.grid import build_sweep, parse_list, setting_name
from fedga.spec.kinds import Number
from fedga.spec.settings import SETTINGS, SITES, RunSpec
from fedga.store.database import FILE_NAME
from fedga.store.store import Store
from fedga.study.prepare import Preparation, choose_device
from fedga.study.sweep import ExecutionConfig, Interrupted, Observer, Provider, run_sweep

COMMIT_EVERY_S = 5.0

server_app = ServerApp()


@dataclass(frozen=True)
class Settings:
    """The app's settings beside those of a run; names have hyphens in Flower's configuration."""

    plan: str = ""
    out: str = "results"
    data_dir: str = ""
    device: str = "auto"
    name: str = "federation"
    sites: str = ""
    classes: str = ""
    server_data: str = ""
    wait_for_sites: float = 600.0
    min_sites: int = 0
    min_replies: int = 0
    round_timeout: float = 3600.0


def read_settings(config: Mapping[str, Any]) -> tuple[Settings, dict[str, list[Any]]]:
    """The app's own settings, and those of its runs as lists; an empty text means "not given"."""
    own = {field.name: field.type for field in fields(Settings)}
    given: dict[str, Any] = {}
    runs: dict[str, list[Any]] = {}
    for key, value in config.items():
        name = setting_name(key)
        if value == "":
            continue
        if name in own:
            number = Number(whole=own[name] is int, least=0)
            given[name] = str(value) if own[name] is str else number.check(key, value)
        elif name in SETTINGS:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            runs[name] = parse_list(name, text, flag=key)
        else:
            raise unknown_name("setting of the app", key, [*own, *SETTINGS])
    return Settings(**given), runs


@server_app.main()
def _main(grid: Grid, context: Context) -> None:
    settings, given = read_settings(context.run_config)
    if settings.plan:  # of a command that waits for its runs, and is told by two files how far they are
        plan = json.loads(Path(settings.plan).read_text(encoding="utf-8"))
        specs = [RunSpec.from_json(text) for text in plan["specs"]]
        observer = event_writer(Path(plan["events"]), Path(plan["stop"]))
        _simulate(grid, specs, plan["axes"], plan["out"], plan["data_dir"], plan["device"], observer)
    elif settings.sites:
        _federate(grid, settings, given)
    else:
        sweep = build_sweep(given, names_clients=names_clients)
        _simulate(grid, sweep.runs, sweep.axes, settings.out, settings.data_dir, settings.device, _spoken(), True)


# --- simulated clients -----------------------------------------------------------------------------------------------


def _simulate(
    grid: Grid,
    specs: Sequence[RunSpec],
    axes: Sequence[str],
    out: str,
    data_dir: str,
    device: str,
    observer: Observer,
    hinting: bool = False,  # a command that waits for its runs has said these by itself
) -> None:
    preparation = Preparation(specs, Path(data_dir) if data_dir else None)
    specs = preparation.fit_active(specs, chosen=False)
    for hint in (*preparation.holdings(specs), *preparation.hints(specs)) if hinting else ():
        observer.noticed(hint)
    folder = Path(out).expanduser().resolve()
    everyone = Roster(max(preparation.federation(spec).num_clients for spec in specs), noticed=observer.noticed)
    everyone.wait(grid, everyone.num_clients, TimeoutPolicy().arrive_within_s)
    kept = folder / "checkpoints" / "clients"
    told = {"data-dir": data_dir, "device": device, "state": str(kept)}

    def trainer(lane: Lane, data: DeviceData, **at: Any) -> RemoteEngine:
        counts = torch.from_numpy(lane.federation.class_counts).float()
        clients = everyone.first(lane.federation.num_clients)
        return RemoteEngine(lane, data, clients, grid, config=told, class_counts=lambda some: counts[list(some)], **at)

    algorithms = [preparation.lane(spec).algorithm for spec in specs]
    keeps = any(each.client_state_spec or overrides(each, "travels") for each in algorithms)
    commit_every_s = 0.0 if keeps else COMMIT_EVERY_S  # what clients keep must not run ahead of the server
    if _train(specs, axes, folder, device, preparation, observer, trainer, commit_every_s):
        for spec in specs:
            shutil.rmtree(kept / spec.run_id, ignore_errors=True)  # nobody asks for it again
        with suppress(OSError):  # other runs still keep something
            kept.rmdir()


# --- sites -----------------------------------------------------------------------------------------------------------


def _federate(grid: Grid, settings: Settings, given: dict[str, list[Any]]) -> None:
    if any(given.get("validate", ())):
        cure = "leave validate out, or let each site hold samples out in its own file"
        raise FedGAError(f"validate holds samples out of data that are on this machine, and sites keep theirs: {cure}")
    names, classes = split_names(settings.sites, "sites ="), split_names(settings.classes, "classes =", least=2)
    _check_number("min-sites", settings.min_sites, names)
    _check_number("min-replies", settings.min_replies, names)
    observer, grid = _spoken(), Exchange(grid)
    roster = Roster(len(names), names, classes, observer.noticed)
    timeouts = TimeoutPolicy(
        strict=False,
        least_to_begin=settings.min_sites,
        least_replies=settings.min_replies,
        arrive_within_s=settings.wait_for_sites,
        reply_within_s=settings.round_timeout,
    )
    folder = Path(settings.out).expanduser().resolve()
    begun = _has_begun(folder)
    roster.wait(grid, timeouts.least_to_begin or len(names), timeouts.arrive_within_s, enough=0 if begun else None)
    if not roster.nodes:
        roster.wait(grid, 1, math.inf)
    roster.began = True
    sites = Sites.meet(settings.name, classes, settings.server_data, roster)
    # A round takes a while whatever is looked at, so every one is.
    given = {"evaluate_every": [1], "diagnose_every": [1], **given}
    given["active"] = [number or len(names) for number in given.get("active", [0])]
    sweep = build_sweep(given | {"dataset": [SITES + settings.name], "partition": ["natural"]})
    if not all(spec.standardize for spec in sweep.runs) and (remark := sites.scale_remark()):
        observer.noticed(remark)
    _check_number("active", max(spec.active for spec in sweep.runs), names)

    told: dict[str, Any] = {"config": {"classes": classes}, "class_counts": sites.class_counts}
    trainer = partial(RemoteEngine, roster=roster, grid=grid, timeouts=timeouts, **told)
    _train(sweep.runs, sweep.axes, folder, settings.device, sites, observer, trainer, commit_every_s=0.0)


def _check_number(setting: str, number: int, names: Sequence[str]) -> None:
    if number > len(names):
        raise FedGAError(f"{setting} = {number} is more than the {len(names)} sites: give {len(names)} or fewer")


def _has_begun(folder: Path) -> bool:
    """Whether a round of any run is done: then those who are away are not waited for without end."""
    if not (folder / FILE_NAME).exists():
        return False
    with Store(folder) as store:
        return any(run.rounds_done for run in store.runs())


# --- both ------------------------------------------------------------------------------------------------------------


def _train(
    specs: Sequence[RunSpec],
    axes: Sequence[str],
    folder: Path,
    device: str,
    provider: Provider,
    observer: Observer,
    trainer: Callable[..., RemoteEngine],  # of a lane, the server's samples, the round and the state it is at
    commit_every_s: float,
) -> bool:
    """Train what the folder does not have yet; False where it was stopped before the end."""

    def make(
        lanes: Sequence[Lane], data: DeviceData, *, round_number: int, states: Sequence[LaneState] | None, **unused: Any
    ) -> RemoteEngine:
        if len(lanes) > 1:
            raise FedGAError("the built-in engine began the runs here: let it finish them, or give another --out")
        return trainer(lanes[0], data, round=round_number, state=states[0] if states else None)

    execution, place = ExecutionConfig(make, together=1, commit_every_s=commit_every_s), choose_device(device)
    with Store(folder) as store:
        try:
            run_sweep(specs, store, place, axes=axes, observer=observer, preparation=provider, execution=execution)
        except Interrupted:
            print(f"stopped; everything so far is in {folder}, and the same command continues", flush=True)
            return False
    return True


def _spoken() -> Observer:
    """Progress as lines, which `flwr run --stream` shows."""
    say = partial(print, flush=True)

    def started(specs: Sequence[RunSpec], done: int) -> None:
        for spec in specs:
            after = f", continued after round {done}" if done else ""
            say(f"{spec.algorithm}, seed {spec.seed}: {spec.rounds} rounds{after}")

    def advanced(specs: Sequence[RunSpec], rounds: Sequence[LaneRound]) -> None:
        for spec, result in zip(specs, rounds, strict=True):
            row = result.metrics or {}
            scores = ", ".join(f"{key} {row[key]:.3f}" for key in ("accuracy", "client_accuracy", "loss") if key in row)
            state = "diverged" if result.diverged else scores or "done"
            say(f"{spec.algorithm}, round {result.round} of {spec.rounds}: {state}")

    return Observer(started, advanced, say)
