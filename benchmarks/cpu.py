"""fedga on a CPU against what one would pick instead: the same work, side by side, round by round.

    python benchmarks/cpu.py [--models mlp,lenet] [--contenders pfl,fedjax] [--repeat 9] [--out DIR]

Every contender is a process of its own in an environment of its own, which does a round when told to and is idle
otherwise. Each of its rounds stands next to one of fedga's, since the speed of a shared machine drifts within minutes:
what counts is the ratio of neighbours. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import machine
import picture
import summary
import work
from environments import FOLDER, LOGS, ROOT, InstallError, interpreter
from processes import ContenderFailedError, Process
from summary import MODEL_NAMES, Row

CORES = str(os.cpu_count() or 1)
REPEAT = {"mlp": 15, "lenet": 5, "resnet20": 2}
WARM_UP = {"mlp": 4, "lenet": 3, "resnet20": 1}  # rounds before the first that counts
TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node", CORES, "-m")


@dataclass(frozen=True)
class Way:
    """One way to run a contender: what follows the model on its command line, and how to say it."""

    words: str
    arguments: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()


ONE_THREAD, ALL_THREADS = Way("1 thread", ("1",)), Way(f"{CORES} threads", (CORES,))


@dataclass(frozen=True)
class Contender:
    """Where there are several ways to run it, warm-up finds the fastest and that one is measured."""

    name: str
    label: str
    ways: tuple[Way, ...] = (ONE_THREAD, ALL_THREADS)
    models: tuple[str, ...] = ("mlp", "lenet")
    module: str = ""  # its file under contenders/ and its environment, where they are not called by its name


def plain(way: str, label: str, threads: Way) -> Contender:
    fixed = Way(threads.words, (*threads.arguments, way))
    models = ("mlp", "lenet", "resnet20") if way == "sliced" else ("mlp", "lenet")
    return Contender(f"{way}-{threads.arguments[0]}", f"PyTorch loop, {label}", (fixed,), models, "plain")


FEDGA = Contender("fedga", "fedga", (ALL_THREADS,), ("mlp", "lenet", "resnet20"))
PEERS = (
    *(plain("sliced", "sliced tensors", threads) for threads in (ONE_THREAD, ALL_THREADS)),
    *(plain("loader", "DataLoader", threads) for threads in (ONE_THREAD, ALL_THREADS)),
    Contender("flower", "Flower simulation", (Way(f"{CORES} actors"),)),
    Contender("pfl", "pfl", (ONE_THREAD, ALL_THREADS, Way(f"{CORES} processes", ("1",), TORCHRUN))),
    Contender("fedjax", "FedJAX", (Way("jit", ("1",)), Way(f"pmap, {CORES} devices", (CORES,)))),
    Contender("fluke", "fluke"),
    Contender("fedlab", "FedLab"),
)


class Running:
    """A contender under way on one model, in one of its ways."""

    def __init__(self, contender: Contender, way: Way, model: str, until_the_end: ExitStack) -> None:
        self.process = launch(contender, way, model)
        until_the_end.callback(self.process.stop)
        self.row = Row(contender.name, f"{contender.label}, {way.words}")
        self.row.start_seconds, self.row.versions = self.process.start()

    def finish(self) -> None:
        self.row.accuracy = self.process.accuracy()
        self.row.memory_mib = self.process.peak_memory_mib()


def launch(contender: Contender, way: Way, model: str) -> Process:
    name = contender.module or contender.name
    command = [str(interpreter(name)), "-m", *way.launcher, f"contenders.{name}", model, *way.arguments]
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{contender.name}-{model}-{way.words.replace(' ', '-')}.log"
    return Process(command, child_environment(), log)


@cache
def read_from_disk(contender: Contender, model: str) -> None:
    """Start it once and let it go: the first to start would be the one whose files no cache holds yet."""
    process = launch(contender, contender.ways[0], model)
    try:
        process.greeting()
    finally:
        process.stop()


def child_environment() -> dict[str, str]:
    """Ours, with the work importable and the contender's file not in the way of the library it is named after."""
    ours = {"PYTHONPATH": str(Path(__file__).parent), "PYTHONSAFEPATH": "1", work.DATA_FOLDER: str(FOLDER / "data")}
    return {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"} | ours


def start(contender: Contender, model: str, until_the_end: ExitStack) -> Running:
    """Started and warm, in the fastest of its ways; warm-up rounds of the ways alternate."""
    print(f"  starting {contender.label}", flush=True)
    read_from_disk(contender, model)
    ways = [Running(contender, way, model, until_the_end) for way in contender.ways]
    warm: list[list[float]] = [[] for _ in ways]
    for _ in range(WARM_UP[model] - 1):
        for seconds, way in zip(warm, ways, strict=True):
            seconds.append(way.process.round())
    speeds = [statistics.median(seconds) if seconds else 0.0 for seconds in warm]
    best = ways[speeds.index(min(speeds))]
    best.row.tried = {way.row.label: speed for way, speed in zip(ways, speeds, strict=True)}
    for way in ways:
        if way is not best:
            way.process.stop()
    return best


def measure(model: str, peers: Sequence[Contender], repeat: int) -> list[Row]:
    """One row per contender, fedga's first."""
    rounds = WARM_UP[model] + repeat
    with ExitStack() as until_the_end:
        fedga = start(FEDGA, model, until_the_end)
        running: list[Running] = []
        failures: list[Row] = []
        for peer in peers:
            try:
                running.append(start(peer, model, until_the_end))
            except (InstallError, ContenderFailedError) as error:
                failures.append(failure(peer.name, peer.label, error))
        for repetition in range(repeat):
            print(f"  repetition {repetition + 1} of {repeat}", flush=True)
            for peer in list(running):
                try:
                    neighbours(fedga, peer, fedga_first=repetition % 2 == 0)
                    if fedga.process.rounds == rounds:
                        fedga.finish()
                    if repetition + 1 == repeat:
                        peer.finish()
                except ContenderFailedError as error:
                    if error.log == fedga.process.log:
                        raise
                    running.remove(peer)
                    failures.append(failure(peer.row.name, peer.row.label, error))
        if fedga.row.accuracy is None:  # too few peers have lasted for it to come this far beside them
            for _ in range(fedga.process.rounds, rounds):
                alone = fedga.process.round()
                fedga.row.add(alone, alone)
            fedga.finish()
    return [fedga.row, *(peer.row for peer in running), *failures]


def neighbours(fedga: Running, peer: Running, fedga_first: bool) -> None:
    """A round of each, one right after the other; who goes first alternates, and so does who finds the caches warm."""
    if fedga_first:
        beside, own = fedga.process.round(), peer.process.round()
    else:
        own, beside = peer.process.round(), fedga.process.round()
    peer.row.add(own, beside)
    fedga.row.add(beside, beside)


def failure(name: str, label: str, error: InstallError | ContenderFailedError) -> Row:
    print(f"  {label} was not run: {error}", flush=True)
    return Row(name, label, not_run=str(error), log=str(error.log.relative_to(ROOT)))


@dataclass
class Report:
    """What is written to the results folder, anew after every model."""

    started: str
    machine: dict[str, Any]
    repeat: dict[str, int]
    rows: dict[str, list[Row]]

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cpu.json").write_text(json.dumps(self.as_json(), indent=2, ensure_ascii=False) + "\n")
        (folder / "cpu.md").write_text(self.as_markdown())
        picture.draw(self.rows, folder / "cpu")

    def as_json(self) -> dict[str, Any]:
        models = {
            model: {
                "rounds": WARM_UP[model] + self.repeat[model],
                "repetitions": self.repeat[model],
                "learning_rate": work.RATES[model],
                "contenders": [row.as_json() for row in summary.in_order(rows)],
            }
            for model, rows in self.rows.items()
        }
        return {"started": self.started, "machine": self.machine, "models": models}

    def as_markdown(self) -> str:
        load = self.machine["load_before"]
        parts = [f"{machine.in_words(self.machine)}. {self.started}; load average before: {load}."]
        for model, rows in self.rows.items():
            repeat = self.repeat[model]
            parts.append(
                f"## {MODEL_NAMES[model]}\n\n{repeat} repetitions after {WARM_UP[model]} rounds of warm-up; "
                f"accuracy after {WARM_UP[model] + repeat} rounds.\n\n{summary.table(rows)}"
            )
        return "\n\n".join(parts) + "\n"


def names(known: Sequence[str]) -> Any:
    def parse(text: str) -> list[str]:
        chosen = text.split(",")
        for name in chosen:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
        return chosen

    return parse


def parse_options() -> argparse.Namespace:
    peers = [peer.name for peer in PEERS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=names(list(REPEAT)), default=list(REPEAT), help="mlp,lenet,resnet20")
    parser.add_argument("--contenders", type=names(peers), default=peers, help=",".join(peers))
    parser.add_argument("--repeat", type=int, help=f"rounds that count ({REPEAT})")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    repeat = {model: options.repeat or REPEAT[model] for model in options.models}
    started = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    here = machine.describe() | {"load_before": round(os.getloadavg()[0], 1)}
    if here["load_before"] > 1:
        print(f"this machine is busy (load {here['load_before']}): ratios of threads to processes will be off")
    report = Report(started, here, repeat, {})
    for model in options.models:
        print(MODEL_NAMES[model], flush=True)
        work.save_data(model, FOLDER / "data")
        peers = [peer for peer in PEERS if peer.name in options.contenders and model in peer.models]
        report.rows[model] = measure(model, peers, repeat[model])
        report.write(options.out)
    print(f"\n{report.as_markdown()}\nwritten to {options.out}")


if __name__ == "__main__":
    main()
