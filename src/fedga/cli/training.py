"""Training from the command line, the same for `fedga run`, `fedga paper` and `fedga tune`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedga.cli.console import err, fail, say
from fedga.cli.usage import check_data_dir, check_data_variable
from fedga.errors import FedGAError, check_known
from fedga.spec.catalog import find_source
from fedga.spec.grid import Provenance
from fedga.spec.kinds import Number
from fedga.spec.settings import RunSpec
from fedga.tracking import parse_services, tracking

if TYPE_CHECKING:
    import torch

    from fedga.engine.profile import Profile
    from fedga.study.prepare import Preparation
    from fedga.study.sweep import Pool

ENGINES = ("built-in", "flower")
THREADS = Number(whole=True, least=1, largest=4096)  # each has a copy of the network


def own_option(flag: str, text: str, metavar: str | None = None, panel: str | None = "Program") -> Any:
    """An option that takes one value; those of the panel "Program" change no number."""
    return typer.Option(flag, help=text, metavar=metavar, rich_help_panel=panel)


DataDir = Annotated[Path | None, own_option("--data-dir", "Folder with data files, else FEDGA_DATA.")]
Device = Annotated[str | None, own_option("--device", "auto, cpu, cuda or cuda:1.", "NAME")]
Devices = Annotated[str | None, own_option("--devices", "Several, side by side: cuda:0,cuda:1 or cpu,cpu.", "LIST")]
Cluster = Annotated[
    str | None, own_option("--cluster", "All devices of a Ray cluster: ray, or ray://HOST:PORT.", "NAME")
]
Threads = Annotated[str | None, own_option("--threads", "CPU threads (of each device), else all cores.", "NUMBER")]
Engines = Annotated[str | None, own_option("--engine", "built-in, or flower: Flower's simulation on Ray.", "NAME")]
Track = Annotated[str | None, own_option("--track", "Log every round to wandb, mlflow or tensorboard.", "LIST")]


def names_clients(dataset: str) -> bool:
    """Whether a file or folder says whose sample each one is, so that it needs no partition."""
    if find_source(dataset) is not None or not Path(dataset).expanduser().exists():
        return False
    from fedga.data import sources  # where a path is looked at, and nowhere else

    return sources.names_clients(dataset)


@dataclass(frozen=True)
class Program:
    """Options that change no number of any run."""

    data_dir: Path | None = None
    device: str | None = None
    out: Path | None = None
    threads: str | None = None
    profile: bool = False
    track: str | None = None
    engine: str | None = None
    devices: str | None = None
    cluster: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "data_dir", check_data_dir(self.data_dir))

    def completed(self, written: Mapping[str, str]) -> Program:
        """With what a TOML file says where no flag does."""
        paths = {name: Path(text).expanduser() for name, text in written.items() if name in ("data_dir", "out")}
        given: dict[str, Any] = {**written, **paths}
        return replace(self, **{name: value for name, value in given.items() if getattr(self, name) is None})

    @property
    def on_flower(self) -> bool:
        """Whether clients are trained by Flower; refused where that is not installed."""
        engine = self.engine or ENGINES[0]
        check_known("engine", engine, ENGINES)
        if engine == "flower":
            from fedga.flower import require_flower

            require_flower()
            if self.profile:
                raise FedGAError("--profile looks into the built-in engine: leave it out with --engine flower")
        return engine == "flower"

    @property
    def side_by_side(self) -> str:
        """The flag by which several devices are asked for, if any; refused beside what contradicts it."""
        given = [name for name in ("devices", "cluster") if getattr(self, name) is not None]
        if not given:
            return ""
        flag = f"--{given[0]}"
        both = [f"--{name}" for name in ("device", "devices", "cluster") if getattr(self, name) is not None]
        if len(both) > 1:
            raise FedGAError(f"{both[0]} and {both[1]} are both given: each says where to train, so give one of them")
        if self.on_flower:
            raise FedGAError(f"--engine flower places its clients by itself: leave {flag} out")
        if self.profile:
            raise FedGAError(f"--profile looks into one engine in this process: leave it out with {flag}")
        from fedga.study.cluster import check_cluster, parse_devices, require_ray

        if self.cluster is not None:
            check_cluster(self.cluster)
        elif len(parse_devices(self.devices or "")) == 1:
            return ""
        require_ray()
        return flag

    @property
    def trackers(self) -> tuple[str, ...]:
        return parse_services(self.track) if self.track else ()


@dataclass(frozen=True)
class Prepared:
    """Runs whose names, data and networks have been checked, and where they are to train."""

    specs: Sequence[RunSpec]
    preparation: Preparation
    device: torch.device
    watch: Profile
    threads: int | None = None


def prepare(runs: Sequence[RunSpec], program: Program, *, active_chosen: bool = True) -> Prepared:
    """Load and partition the data of these runs; ``active_chosen``: the user gave the number of active clients."""
    cores = None if program.threads is None else THREADS.parse("--threads", program.threads)
    if program.data_dir is None:
        check_data_variable(spec.dataset for spec in runs)
    _ = (
        program.trackers,
        program.on_flower,
        program.side_by_side,
    )  # what is unknown or not installed is refused before anything is loaded

    import torch

    from fedga.cli.progress import decoding
    from fedga.engine.profile import DATA, NO_PROFILE, Stopwatch
    from fedga.study.prepare import Preparation

    device = _device(program)
    watch = Stopwatch(device) if program.profile else NO_PROFILE
    with watch.span(DATA):
        with decoding() as progress:
            preparation = Preparation(runs, program.data_dir, progress)
        specs = preparation.fit_active(runs, chosen=active_chosen)
    if cores is not None:
        torch.set_num_threads(int(cores))
    return Prepared(specs, preparation, device, watch, None if cores is None else int(cores))


def _device(program: Program) -> torch.device:
    """The one that is asked for; of several the first, which is of their kind."""
    from fedga.study.cluster import parse_devices
    from fedga.study.prepare import choose_device

    return parse_devices(program.devices)[0] if program.devices else choose_device(program.device or "auto")


def train(
    prepared: Prepared, folder: Path, program: Program, *, axes: Sequence[str], provenance: Sequence[Provenance] = ()
) -> None:
    """Train what the folder does not have yet, with a bar; Ctrl-C ends the program after the round it is in."""
    from fedga.cli.progress import SweepProgress, stop_request
    from fedga.report.tables import settings_table
    from fedga.store.archive import is_archive
    from fedga.store.store import Store
    from fedga.study.sweep import ExecutionConfig, Interrupted, Observer, run_sweep

    specs, preparation, device, on_flower = prepared.specs, prepared.preparation, prepared.device, program.on_flower
    if is_archive(folder):
        raise FedGAError(f"{str(folder)!r} is an archive of results, for reports only: give another --out to train")
    with Store(folder) as store, stop_request() as stop:
        runs = store.register(specs, preparation.fingerprints(specs), axes)  # refuses before anything is said
        if provenance:
            err.print(settings_table(provenance, width=err.width))
        finished = [run for run in runs if run.finished]
        already = f", {'which has' if len(specs) == 1 else f'{len(finished)} of them'} finished already"
        where = f"Flower, {device}" if on_flower else _several(program) or str(device)
        count = f"{len(specs)} run{'s' * (len(specs) != 1)}"
        say(f"{count} on {where}{already if finished else ''}; results go to {folder}")
        for hint in (*preparation.holdings(specs), *preparation.hints(specs)):
            say(hint)
        shown = SweepProgress(specs, axes, sum(run.spec.rounds for run in finished))
        common: dict[str, Any] = {"axes": axes, "observer": Observer(shown.started, shown.advanced, say, stop)}
        try:
            with tracking(program.trackers, folder, say), _profiling(prepared.watch, folder), shown.bar:
                if on_flower:
                    from fedga.flower.simulation import run_on_flower

                    clients = max(preparation.federation(spec).num_clients for spec in specs)
                    say(f"starting Flower's simulation engine with {clients} clients, which takes some 20 seconds")
                    run_on_flower(specs, folder, clients, data_dir=program.data_dir, device=device, **common)
                else:
                    with _pool(program, len(runs) - len(finished), prepared.threads) as pool:
                        common |= {"profile": prepared.watch, "execution": ExecutionConfig(pool=pool)}
                        run_sweep(specs, store, device, preparation=preparation, **common)
        except Interrupted:
            fail(f"stopped; everything so far is in {folder}, and the same command continues", code=130)


def _several(program: Program) -> str:
    """The devices of a command in words; empty where it is one."""
    names = (program.devices or "").split(",")
    several = f"{len(names)} devices ({', '.join(names)})" if len(names) > 1 else ""
    return "a Ray cluster" if program.cluster else several


@contextmanager
def _pool(program: Program, left: int, threads: int | None) -> Iterator[Pool | None]:
    """The engines of several devices for the runs that are left; None where one in this process is asked for."""
    if not program.side_by_side or not left:
        yield None
        return
    from fedga.study.cluster import on_cluster, on_devices, parse_devices

    say("starting Ray, which takes some seconds")
    if program.cluster is not None:
        opened = on_cluster(program.cluster, left, threads, program.data_dir)
    else:
        opened = on_devices(parse_devices(program.devices or ""), threads, program.data_dir)
    with opened as engines:
        say(f"Ray has room for {engines}")
        yield engines


@contextmanager
def _profiling(profile: Profile, folder: Path) -> Iterator[None]:
    """At the end, also where the user stops the run, print what ``profile`` measured, and write it as JSON."""
    from fedga.engine.profile import Stopwatch
    from fedga.report.profile import profile_table
    from fedga.store.database import explained
    from fedga.study.sweep import Interrupted

    stopped: BaseException | None = None
    try:
        yield
    except (Interrupted, KeyboardInterrupt) as error:
        stopped = error
    if isinstance(profile, Stopwatch) and not profile.shown.rounds:
        say("nothing was trained, so there is no profile")
    elif isinstance(profile, Stopwatch):
        err.print(profile_table(profile, width=err.width))
        path = folder / "profile.json"
        with explained(folder):
            path.write_text(json.dumps(profile.as_json(), indent=2) + "\n", encoding="utf-8")
        say(f"the same as numbers: {path}")
    if stopped is not None:
        raise stopped
