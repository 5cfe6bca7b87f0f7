"""The ServerApp: the runs that its settings describe, on whatever nodes Flower has.

Three ways lead here. ``flwr run`` on an app that `fedga flower new` wrote: the settings are those of `fedga run`, and
the data set is dealt out to simulated clients. With ``sites``: a federation of machines that read their own data.
With ``plan``: the runs of a `fedga run --engine flower`, which waits for them.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from fedga.engine.device_data import DeviceData
from fedga.engine.profile import Profile
from fedga.engine.server import LaneRound
from fedga.engine.stack.lanes import Lane, LaneState
from fedga.errors import FedGAError, unknown_name
from fedga.flower.server.events import EventWriter
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
from fedga.study.sweep import ExecutionConfig, Interrupted, Observer, Provider, TrainerMaker, run_sweep

COMMIT_EVERY_S = 5.0

TrainerOf = Callable[[Lane, DeviceData], RemoteEngine]  # at the beginning of a run

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
    own = {field.name: str(field.type) for field in fields(Settings)}
    given: dict[str, Any] = {}
    runs: dict[str, list[Any]] = {}
    for key, value in config.items():
        name = setting_name(key)
        if value == "":
            continue
        if name in own:
            given[name] = _checked(key, own[name], value)
        elif name in SETTINGS:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            runs[name] = parse_list(name, text, flag=key)
        else:
            raise unknown_name("setting of the app", key, [*own, *SETTINGS])
    return Settings(**given), runs


def _checked(key: str, kind: str, value: Any) -> Any:
    if kind == "str":
        return str(value)
    return Number(whole=kind == "int", least=0).check(key, value)


@server_app.main()
def _main(grid: Grid, context: Context) -> None:
    settings, given = read_settings(context.run_config)
    if settings.plan:
        plan = Plan.read(Path(settings.plan))
        plan.run(grid)
    elif settings.sites:
        _federate(grid, settings, given)
    else:
        sweep = build_sweep(given)
        _simulate(grid, sweep.runs, sweep.axes, settings.out, settings.data_dir, settings.device, _spoken())


# --- simulated clients -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """The runs of a command that waits for them, and the files by which it is told how far they are."""

    specs: list[str]  # as JSON
    axes: list[str]
    out: str
    data_dir: str
    device: str
    events: str
    stop: str

    @classmethod
    def read(cls, path: Path) -> Plan:
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    def run(self, grid: Grid) -> None:
        specs = [RunSpec.from_json(text) for text in self.specs]
        observer = EventWriter(Path(self.events), Path(self.stop)).observer()
        _simulate(grid, specs, self.axes, self.out, self.data_dir, self.device, observer)


def _simulate(
    grid: Grid,
    specs: Sequence[RunSpec],
    axes: Sequence[str],
    out: str,
    data_dir: str,
    device: str,
    observer: Observer,
) -> None:
    preparation = Preparation(specs, Path(data_dir) if data_dir else None)
    specs = preparation.fit_active(specs, chosen=False)
    folder = Path(out).expanduser().resolve()
    everyone = Roster(max(preparation.federation(spec).num_clients for spec in specs), noticed=observer.noticed)
    everyone.wait(grid, everyone.num_clients, TimeoutPolicy().arrive_within_s)
    kept = folder / "checkpoints" / "clients"
    told = {"data-dir": data_dir, "device": device, "state": str(kept)}

    def trainer(lane: Lane, data: DeviceData) -> RemoteEngine:
        federation = lane.federation

        def class_counts(clients: Sequence[int]) -> Tensor:
            return torch.from_numpy(federation.class_counts[list(clients)]).float()

        return RemoteEngine(
            lane, data, everyone.first(federation.num_clients), grid, config=told, class_counts=class_counts
        )

    keeps = any(preparation.lane(spec).algorithm.client_state_spec for spec in specs)
    commit_every_s = 0.0 if keeps else COMMIT_EVERY_S  # what clients keep must not run ahead of the server
    if _train(specs, axes, folder, device, preparation, observer, trainer, commit_every_s):
        for spec in specs:
            shutil.rmtree(kept / spec.run_id, ignore_errors=True)  # nobody asks for it again
        with suppress(OSError):  # other runs still keep something
            kept.rmdir()


# --- sites -----------------------------------------------------------------------------------------------------------


def _federate(grid: Grid, settings: Settings, given: dict[str, list[Any]]) -> None:
    names, classes = _listed("sites", settings.sites), _listed("classes", settings.classes)
    for name, number in (("min-sites", settings.min_sites), ("min-replies", settings.min_replies)):
        if number > len(names):
            raise FedGAError(f"{name} = {number} is more than the {len(names)} sites: give {len(names)} or fewer")
    observer, grid = _spoken(), Exchange(grid)
    roster = Roster(len(names), names, ConfigRecord({"classes": classes}), observer.noticed)
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
    active = given.pop("active", [0])
    given["active"] = [number or len(names) for number in active]
    # A round takes a while whatever is looked at, so every one is.
    given = {"evaluate_every": [1], "diagnose_every": [1], **given}
    sweep = build_sweep(given | {"dataset": [SITES + settings.name], "partition": ["natural"]})
    for spec in sweep.runs:
        if spec.active > len(names):
            raise FedGAError(f"active = {spec.active} is more than the {len(names)} sites: give {len(names)} or fewer")

    def trainer(lane: Lane, data: DeviceData) -> RemoteEngine:
        return RemoteEngine(
            lane,
            data,
            roster,
            grid,
            timeouts=timeouts,
            config={"classes": classes},
            tells_pixels=lane.spec.standardize,
            class_counts=sites.class_counts,
        )

    _train(sweep.runs, sweep.axes, folder, settings.device, sites, observer, trainer, commit_every_s=0.0)


def _has_begun(folder: Path) -> bool:
    """Whether a round of any run is done: then those who are away are not waited for without end."""
    if not (folder / FILE_NAME).exists():
        return False
    with Store(folder) as store:
        return any(run.rounds_done for run in store.runs())


def _listed(name: str, text: str) -> list[str]:
    found = [part.strip() for part in text.split(",")]
    twice = sorted({part for part in found if found.count(part) > 1})
    if "" in found or twice:
        wrong = f"has {twice[0]!r} twice" if twice else "has an empty entry"
        raise FedGAError(f"{name} = {text!r} {wrong}: write names with single commas between them")
    if len(found) < 2 and name == "classes":
        raise FedGAError("classes names fewer than two: list all classes that the sites tell apart")
    return found


# --- both ------------------------------------------------------------------------------------------------------------


def _train(
    specs: Sequence[RunSpec],
    axes: Sequence[str],
    folder: Path,
    device: str,
    provider: Provider,
    observer: Observer,
    trainer: TrainerOf,
    commit_every_s: float,
) -> bool:
    """Train what the folder does not have yet; False where it was stopped before the end."""
    execution = ExecutionConfig(_maker(trainer), together=1, commit_every_s=commit_every_s)
    with Store(folder) as store:
        try:
            run_sweep(
                specs,
                store,
                choose_device(device),
                axes=axes,
                observer=observer,
                preparation=provider,
                execution=execution,
            )
        except Interrupted:
            print(f"stopped; everything so far is in {folder}, and the same command continues", flush=True)
            return False
    return True


def _maker(trainer: TrainerOf) -> TrainerMaker:
    def make(
        lanes: Sequence[Lane],
        data: DeviceData,
        *,
        round_number: int,
        states: Sequence[LaneState] | None,
        profile: Profile,
    ) -> RemoteEngine:
        if len(lanes) > 1:
            raise FedGAError(
                "the runs of this folder were begun together by the built-in engine: let it finish them, or give "
                "another folder with --out"
            )
        engine = trainer(lanes[0], data)
        return replace(engine, round=round_number, state=states[0] if states else None)

    return make


def _spoken() -> Observer:
    """Progress as lines, which `flwr run --stream` shows."""

    def say(text: str) -> None:
        print(text, flush=True)

    def started(specs: Sequence[RunSpec], done: int) -> None:
        for spec in specs:
            after = f", continued after round {done}" if done else ""
            say(f"{spec.algorithm}, seed {spec.seed}: {spec.rounds} rounds{after}")

    def advanced(specs: Sequence[RunSpec], rounds: Sequence[LaneRound]) -> None:
        for spec, result in zip(specs, rounds, strict=True):
            told = {name: value for name, value in (result.metrics or {}).items() if name in ("accuracy", "loss")}
            scores = ", ".join(f"{name} {value:.3f}" for name, value in told.items())
            state = "diverged" if result.diverged else scores or "done"
            say(f"{spec.algorithm}, round {result.round} of {spec.rounds}: {state}")

    return Observer(started, advanced, say)
