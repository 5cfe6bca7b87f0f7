"""fedga on Flower's simulation engine against a Flower app without it: the same work, round by round, in turn.

    python benchmarks/flower.py [--repeat 40] [--out DIR]

All are Flower apps that the same code starts: `flower-superlink --simulation`, then `flwr run`, a Ray actor per core.
The bare one is that of `contenders/flower.py`. All are there at once and do a round when it is their turn, as in
`cpu.py`, since the speed of a shared machine drifts. Flower's engine looks for messages every 0.1 s and its server for
replies, so that rounds come in steps of that, and a median may jump by one where the mean hardly moves.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import machine
import work
from environments import FOLDER, ROOT
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from turns import Stop

from fedga.common.files import write_whole
from fedga.flower.app_template import PACKAGE, write_app
from fedga.flower.processes.superlink import superlink
from fedga.flower.processes.words import tail

MODEL, WARM_UP = "mlp", 3
DATA = FOLDER / "data"
RESOURCES = {"num-supernodes": work.CLIENTS, "client-resources-num-cpus": 1}
LOOK_EVERY_S = 0.005

Average = Callable[[Sequence[float]], float]

# --- the servers, in processes of Flower's ---------------------------------------------------------------------------


class FileTurns:
    """A contender's side of `turns.py` through files: Flower leaves no pipes to the processes it starts."""

    def __init__(self, folder: str, rounds: int) -> None:
        self.folder, self.rounds, self.round, self.began = Path(folder), rounds, 0, 0.0

    def wait(self, accuracy: Callable[[], float]) -> None:
        """Answer for the round that just ended and return when the next one may begin."""
        seconds, last = time.perf_counter() - self.began, self.round == self.rounds
        if self.round:
            answer = {"seconds": seconds, "accuracy": accuracy() if last else None}
            write_whole(self.folder / f"{self.round}.json", json.dumps(answer))
        if last:
            raise Stop
        self.round += 1
        while not (self.folder / f"{self.round}.go").exists():
            time.sleep(LOOK_EVERY_S)
        self.began = time.perf_counter()


def make_server_app(algorithm: str, turns: FileTurns) -> ServerApp:
    """What `fedga run --engine flower` has Flower do, with an observer that waits for its turn."""
    from fedga.engine.server import LaneRound
    from fedga.flower.server.app import _simulate
    from fedga.spec.settings import RunSpec
    from fedga.study.sweep import Observer

    spec = RunSpec(
        **{"dataset": str(DATA / work._file_name(MODEL)), "partition": "iid", "model": MODEL, "clip": None},
        **{"clients": work.CLIENTS, "active": work.ACTIVE, "rounds": turns.rounds, "local_epochs": work.EPOCHS},
        **{"batch_size": work.BATCH, "lr": work.RATES[MODEL], "momentum": work.MOMENTUM},
        **{"algorithm": algorithm, "evaluate_every": turns.rounds, "diagnose_every": 0},
    )

    def started(specs: Sequence[RunSpec], done: int) -> None:
        turns.wait(lambda: 0.0)

    def advanced(specs: Sequence[RunSpec], rounds: Sequence[LaneRound]) -> None:
        turns.wait(lambda: (rounds[0].metrics or {})["accuracy"])

    app = ServerApp()

    @app.main()
    def run(grid: Grid, context: Context) -> None:
        try:
            _simulate(grid, [spec], [], f"{turns.folder}/out", "", "cpu", Observer(started, advanced))
        except Stop:
            return

    return app


# --- the driver ------------------------------------------------------------------------------------------------------


@dataclass
class Contender:
    """A Flower app, and what was measured of it; ``server`` and ``client`` are the code that makes its two sides."""

    label: str
    server: str
    client: str
    start_seconds: float = 0.0  # from starting Flower to the end of the first round
    seconds: list[float] = field(default_factory=list)  # of every round after the warm-up but the last, which evaluates
    accuracy: float = 0.0  # after the last one
    said: str = "it did not start"

    def start(self, folder: Path, rounds: int) -> None:
        """Start it, and wait for the first round."""
        self.folder, began = folder, time.perf_counter()
        app = folder / "app"
        write_app(app, "bench", self.label, {}, "")
        server = self.server.format(turns=f"flower.FileTurns({str(folder)!r}, {rounds})")
        for side, code in (("server", server), ("client", self.client)):
            imports = "import contenders.flower\nimport fedga.flower\nimport flower\n"
            (app / PACKAGE / f"{side}_app.py").write_text(f"{imports}\napp = {code}\n")
        self.thread = threading.Thread(target=self._run, args=(app,), daemon=True)  # if we die, so does what it started
        self.thread.start()
        self.round(1)
        self.start_seconds = time.perf_counter() - began

    def _run(self, app: Path) -> None:
        with superlink(self.folder / "flower", ["--insecure", "--simulation"], self.folder / "log") as link:
            outcome = link.run(app, lambda line: None, RESOURCES)
        self.said = f"{outcome.status} {outcome.details}"

    def round(self, number: int) -> float:
        """Have it do its next round; the seconds that took."""
        (self.folder / f"{number}.go").touch()
        answer = self.folder / f"{number}.json"
        while not answer.exists():
            if not self.thread.is_alive():
                raise SystemExit(f"{tail(self.folder / 'log')}\n{self.label} did not do round {number}: {self.said}")
            time.sleep(LOOK_EVERY_S)
        told = json.loads(answer.read_text())
        self.accuracy = told["accuracy"]
        return told["seconds"]


CONTENDERS = (
    Contender(
        "bare Flower app, FedAvg",
        f"contenders.flower.make_server_app({MODEL!r}, {{turns}})",
        f"contenders.flower.make_client_app({MODEL!r})",
    ),
    Contender("fedga, FedAvg", "flower.make_server_app('fedavg', {turns})", "fedga.flower.client_app"),
    Contender("fedga, FedGA", "flower.make_server_app('fedga', {turns})", "fedga.flower.client_app"),
)


def measure(contenders: Sequence[Contender], repeat: int) -> None:
    rounds = WARM_UP + repeat + 1
    with tempfile.TemporaryDirectory(prefix="fedga-bench-", ignore_cleanup_errors=True) as home:
        for place, contender in enumerate(contenders):
            print(f"starting {contender.label}", flush=True)
            (folder := Path(home) / str(place)).mkdir()
            contender.start(folder, rounds)
        print(f"{rounds} rounds of each", flush=True)
        for number in range(2, rounds + 1):
            for contender in contenders if number % 2 else reversed(contenders):
                seconds = contender.round(number)
                if WARM_UP < number < rounds:
                    contender.seconds.append(seconds)
        for contender in contenders:
            contender.thread.join()


def compare(own: Sequence[float], bare: Sequence[float], average: Average) -> str:
    """The ratio of averages, and where it lies in 9 of 10 draws from the pairs of neighbours (bootstrap)."""
    draw, pairs = random.Random(0), list(zip(own, bare, strict=True))
    samples = (zip(*draw.choices(pairs, k=len(pairs)), strict=True) for _ in range(1000))
    ratios = statistics.quantiles((average(some) / average(others) for some, others in samples), n=20)
    return f"{average(own) / average(bare):.2f} ({ratios[0]:.2f}–{ratios[-1]:.2f})"


def table(contenders: Sequence[Contender]) -> str:
    lines = [
        "| | s/round, median | mean | × bare, medians | × bare, means | accuracy | start, s |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for each in contenders:
        averages = [statistics.median, statistics.fmean]
        cells = [each.label, *(f"{average(each.seconds):.3f}" for average in averages)]
        cells += [compare(each.seconds, contenders[0].seconds, average) for average in averages]
        lines.append(f"| {' | '.join(cells)} | {each.accuracy:.3f} | {each.start_seconds:.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=40, help="rounds that count")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ |= {"PYTHONPATH": path, work.DATA_FOLDER: str(DATA), "FEDGA_CACHE": str(FOLDER / "cache")}
    work.save_data(MODEL, DATA)
    versions = ", ".join(f"{package} {version(package)}" for package in ("flwr", "ray", "torch"))
    started, load = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), round(os.getloadavg()[0], 1)
    measure(CONTENDERS, options.repeat)
    text = (
        f"{machine.in_words(machine.describe())}; {versions}. {started}; load average before: {load}.\n\n"
        f"{options.repeat} rounds of each after {WARM_UP} of warm-up, in turn; in brackets, 90 % of ratios of "
        f"rounds drawn anew from these.\n\n{table(CONTENDERS)}\n"
    )
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "flower.md").write_text(text)
    names = ("label", "start_seconds", "seconds", "accuracy")
    rows = [{name: getattr(each, name) for name in names} for each in CONTENDERS]
    content = {"started": started, "machine": machine.describe(), "load_before": load, "contenders": rows}
    (options.out / "flower.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    print(f"\n{text}\nwritten to {options.out}")


if __name__ == "__main__":
    main()
