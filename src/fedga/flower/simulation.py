"""`fedga run --engine flower`: the runs of a command on Flower's simulation engine, which trains clients with Ray.

Ray is started here, unless ``RAY_ADDRESS`` names a cluster, which must know data and results by the same paths.
"""

import json
import os
import re
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import torch

from fedga.errors import FedGAError
from fedga.flower import require_flower
from fedga.flower.app_template import write_app
from fedga.flower.processes.superlink import Outcome, SuperLink, superlink
from fedga.flower.server.events import EventReader
from fedga.spec.settings import RunSpec
from fedga.study.sweep import Interrupted, Observer

LOOK_EVERY_S = 0.2
LOG = "flower.log"


def run_on_flower(
    specs: Sequence[RunSpec],
    folder: Path,
    num_clients: int,
    *,
    axes: Sequence[str] = (),
    data_dir: Path | None = None,
    device: torch.device,
    observer: Observer,
) -> None:
    """Train what the folder does not have yet; raises `Interrupted` when the observer asks to stop."""
    require_flower()
    folder.mkdir(parents=True, exist_ok=True)
    log = folder.resolve() / LOG
    with tempfile.TemporaryDirectory(prefix="fedga-") as name:
        home = Path(name)
        events, stop = home / "events.jsonl", home / "stop"
        plan = {
            "specs": [spec.to_json() for spec in specs],
            "axes": list(axes),
            "out": str(folder.resolve()),
            "data_dir": str(Path(data_dir).expanduser().resolve()) if data_dir else os.environ.get("FEDGA_DATA", ""),
            "device": device.type if device.index is None else "cuda",
            "events": str(events),
            "stop": str(stop),
        }
        (home / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
        app = home / "app"
        sections = {"The runs of a command that waits for them.": {"plan": str(home / "plan.json")}}
        write_app(app, "fedga-run", "fedga run --engine flower", sections, "")
        reader = EventReader(events, specs, observer)
        with superlink(home / "flower", ["--insecure", "--simulation"], log) as link:
            outcome = _wait(link, app, _resources(num_clients, device), reader, stop, log)
        if stop.exists():
            raise Interrupted
        if not outcome.completed:
            raise FedGAError(f"{_sentence(outcome)} (Flower's log: {log})")


def _resources(num_clients: int, device: torch.device) -> dict[str, float]:
    """A core for every client that trains; on a GPU they share it, one per core."""
    resources: dict[str, float] = {"num-supernodes": num_clients, "client-resources-num-cpus": 1}
    if device.type == "cuda":
        share = torch.cuda.device_count() / max(1, os.cpu_count() or 1)
        resources["client-resources-num-gpus"] = min(1.0, round(share, 3))
    return resources


def _wait(
    link: SuperLink, app: Path, resources: dict[str, float], reader: EventReader, stop: Path, log: Path
) -> Outcome:
    """The end of the run, while its events are handed on; the thread ends with Flower, whoever interrupts us here."""

    def run() -> Outcome:
        with log.open("a", encoding="utf-8", buffering=1) as out:
            return link.run(app, lambda line: print(line, file=out), resources)

    ended = ThreadPoolExecutor(1).submit(run)
    while not wait([ended], timeout=LOOK_EVERY_S).done:
        reader.look()
        if reader.observer.should_stop():
            stop.touch()
    reader.look()
    return ended.result()


def _sentence(outcome: Outcome) -> str:
    """The run's own error, without Flower's introduction."""
    if found := re.search("(?:Simulation|ServerApp) failed with exception: (.*)", outcome.details, re.DOTALL):
        return found[1].strip()
    return f"the run on Flower ended as {outcome.status}: {outcome.details or 'it said no more'}"
