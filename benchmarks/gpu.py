"""The engine on a GPU against what bounds it from both sides: ordinary central training, and a plain federated loop.

    PYTHONPATH=src:. python benchmarks/gpu.py           # measures; writes gpu.json, gpu.md, gpu.png and gpu.svg
    PYTHONPATH=src:. python benchmarks/gpu.py --check   # compares numbers instead, see gpu_check.py
    PYTHONPATH=src:. python benchmarks/gpu.py --device cpu --quick   # tiny: shows that it runs

The paper's setting: SGD 0.1, no momentum, clip 5, batches of 64; clients of 640 samples, so that an epoch is ten full
batches; ten active clients a run. 10, 100 and 1,000 stacked clients are 1, 10 and 100 runs (lanes) of other seeds. The
three contenders take turns, since the speed of a machine drifts:

- fedga: rounds without evaluation. A client step is a round's time over its clients and steps, all overhead included.
- the central floor: one ordinary module trained on batches of 6,400 samples, per 64 of them; the fastest of eager or
  CUDA graph, NCHW or channels last, with the precision given. A federation cannot do less arithmetic than this.
- the plain loop: one client after another with module, optimiser and clip, samples already on the device.

Studies, measured apart: the paper's round (two epochs; 600 samples a client of MNIST's shape, 500 of CIFAR-10's) in
lanes, evaluated on 10,000 samples after every round, per run and round.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from gpu_picture import draw
from torch import nn

from fedga.algorithms import make_algorithm
from fedga.data.federation import Dataset, Federation
from fedga.engine.device_data import DeviceData
from fedga.engine.engine import Engine
from fedga.engine.stack.lanes import Lane
from fedga.models import build_model
from fedga.spec.settings import RunSpec

LR, CLIP, CLASSES = 0.1, 5.0, 10
NEVER = 1_000_000
GIB = 2**30
SHAPES = {"mlp": (1, 28, 28), "lenet": (3, 32, 32), "resnet20": (3, 32, 32)}
STUDY_SAMPLES = {"mlp": 600, "lenet": 500, "resnet20": 500}  # of a client: MNIST and CIFAR-10 over 100 clients
NAMES = {"mlp": "MLP", "lenet": "LeNet", "resnet20": "ResNet-20"}
HAS_PRECISION = any(each.name == "precision" for each in fields(RunSpec))


@dataclass(frozen=True)
class Scale:
    """How large everything is."""

    clients: int = 100
    samples: int = 640  # of a client
    active: int = 10
    batch: int = 64
    epochs: int = 1
    test: int = 10_000
    central: int = 6_400  # samples of a central step
    plain_clients: int = 2
    lanes_of_study: int = 100
    lanes_of_heavy_study: int = 10  # ResNet-20: a hundred lanes would take a minute a round
    seconds: float = 6.0  # timed repetitions go on for this long, within the numbers below
    least: int = 3
    most: int = 20


QUICK = Scale(
    **{"clients": 12, "samples": 32, "active": 5, "batch": 16, "test": 100, "central": 64, "plain_clients": 1},
    **{"lanes_of_study": 2, "lanes_of_heavy_study": 1, "seconds": 0.0, "least": 2},
)


@dataclass(frozen=True)
class Bench:
    """What all contenders of one network share."""

    model: str
    data: DeviceData
    scale: Scale
    momentum: float
    algorithm: str

    @property
    def device(self) -> torch.device:
        return self.data.device

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def network(self, seed: int = 0) -> nn.Module:
        return build_model(self.model, SHAPES[self.model], CLASSES, seed=seed)

    def seconds(self, work: Callable[[], Any]) -> float:
        self.wait()
        start = time.perf_counter()
        work()
        self.wait()
        return time.perf_counter() - start

    def wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def clean(self) -> None:
        gc.collect()
        if self.on_gpu:
            torch.cuda.empty_cache()


def made_up(model: str, scale: Scale) -> Dataset:
    """Noise around one template per class, in uint8 throughout: 64,000 pictures take a second to make."""
    generator, shape = np.random.default_rng(0), SHAPES[model]
    templates = generator.integers(0, 128, (CLASSES, *shape), dtype=np.uint8)

    def split(samples: int) -> tuple[np.ndarray, np.ndarray]:
        targets = generator.integers(0, CLASSES, samples)
        return templates[targets] + generator.integers(0, 128, (samples, *shape), dtype=np.uint8), targets

    return Dataset("made up", *split(scale.clients * scale.samples), *split(scale.test), tuple("0123456789"))


# --- the engine ------------------------------------------------------------------------------------------------------


def make_lanes(bench: Bench, count: int, precision: str, samples: int, **settings: Any) -> list[Lane]:
    """Runs of one federation with equal clients that differ in their seed."""
    scale, algorithm = bench.scale, make_algorithm(bench.algorithm)
    offsets = np.arange(scale.clients + 1) * samples
    federation = Federation(bench.data.dataset, np.arange(offsets[-1]), offsets)
    common = {
        **{"dataset": "made up", "partition": "iid", "clients": scale.clients, "active": scale.active},
        **{"model": bench.model, "algorithm": bench.algorithm, "rounds": NEVER, "local_epochs": scale.epochs},
        **{"batch_size": scale.batch, "lr": LR, "momentum": bench.momentum, "clip": CLIP},
        **{"evaluate_every": NEVER, "diagnose_every": 0},
        **({"precision": precision} if HAS_PRECISION else {}),
    }
    return [
        Lane(RunSpec(**common | settings | {"seed": seed}), federation, algorithm, bench.network(seed))
        for seed in range(count)
    ]


class Warmed:
    """An engine after its first rounds, with what these cost."""

    def __init__(self, bench: Bench, lanes: list[Lane]) -> None:
        self.bench, self.lanes = bench, lanes
        bench.clean()
        self._watch_memory()
        self.build = bench.seconds(self._build)
        self.first = self.build + bench.seconds(self.round)
        self.second = bench.seconds(self.round)  # records the CUDA graph
        bench.seconds(self.round)  # the first replay: only now everything stands where it will stay
        self.memory = self._memory()

    def _build(self) -> None:
        self.engine = Engine(self.lanes, self.bench.data)

    def round(self) -> None:
        results = self.engine.run_round()
        if any(result.diverged for result in results):
            raise SystemExit(f"a run of {self.bench.model} diverged: its times mean nothing")

    def _watch_memory(self) -> None:
        if self.bench.on_gpu:
            torch.cuda.reset_peak_memory_stats(self.bench.device)
            self._held = torch.cuda.memory_allocated(self.bench.device), torch.cuda.memory_reserved(self.bench.device)

    def _memory(self) -> dict[str, float]:
        """Peak of the tensors in use, and of what PyTorch took from the device for them, without other contenders."""
        if not self.bench.on_gpu:
            return {}
        data = self.bench.data
        stored = sum(each.nbytes for each in (data.train_inputs, data.test_inputs, data.train_targets))
        peaks = torch.cuda.max_memory_allocated(data.device), torch.cuda.max_memory_reserved(data.device)
        allocated, reserved = ((peak - held + stored) / GIB for peak, held in zip(peaks, self._held, strict=True))
        return {"peak_gib": allocated, "peak_reserved_gib": reserved}


# --- central training ------------------------------------------------------------------------------------------------


@contextmanager
def arithmetic(tf32: bool) -> Iterator[None]:
    """The fastest that PyTorch has in the precision."""
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=tf32):
            yield
    finally:
        torch.set_float32_matmul_precision("highest")


class Central:
    """Ordinary training of one module in large batches."""

    def __init__(self, bench: Bench, precision: str, layout: str, graph: bool) -> None:
        self.bench, self.precision, self.layout, self.graphed = bench, precision, layout, graph
        self._format = torch.channels_last if layout == "channels last" else torch.contiguous_format
        self._model = bench.network().to(bench.device, memory_format=self._format).train()
        self._optimizer = torch.optim.SGD(self._model.parameters(), LR, bench.momentum, fused=bench.on_gpu)
        order = torch.randperm(len(bench.data.train_targets), device=bench.device)
        size = bench.scale.central
        self._orders = order[: len(order) // size * size].view(-1, size)
        self._places, self._taken = self._orders[0].clone(), 0
        self._graph = self._capture() if graph else None
        self.run(2)
        once = bench.seconds(partial(self.run, 1))
        self.steps = max(2, min(50, int(0.05 / once)))  # timed together: a single step of the MLP is too short

    def _step(self) -> None:
        data = self.bench.data
        inputs = data.gather(self._places).to(torch.float32, memory_format=self._format).mul_(1 / 255)
        self._optimizer.zero_grad()
        F.cross_entropy(self._model(inputs), data.train_targets[self._places]).backward()
        nn.utils.clip_grad_norm_(self._model.parameters(), CLIP)
        self._optimizer.step()

    def _capture(self) -> torch.cuda.CUDAGraph:
        graph, aside = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with arithmetic(self.precision == "tf32"):
            with torch.cuda.stream(aside):  # where capture wants its rehearsal
                for _ in range(3):
                    self._step()
            torch.cuda.current_stream().wait_stream(aside)
            self._optimizer.zero_grad()
            with torch.cuda.graph(graph):
                self._step()
        return graph

    def run(self, steps: int) -> None:
        with arithmetic(self.precision == "tf32"):
            for _ in range(steps):
                self._places.copy_(self._orders[self._taken % len(self._orders)])
                self._taken += 1
                if self._graph is None:
                    self._step()
                else:
                    self._graph.replay()

    def microseconds(self) -> float:
        """Of one batch's share in a step."""
        scale = self.bench.scale
        seconds = self.bench.seconds(partial(self.run, self.steps)) / self.steps
        return 1e6 * seconds * scale.batch / scale.central


def find_floors(bench: Bench) -> tuple[dict[str, Central], list[dict[str, Any]]]:
    """The fastest way of central training in each precision, and what every way takes."""
    precisions = ("float32", "tf32") if bench.on_gpu else ("float32",)
    layouts = ("NCHW",) if bench.model == "mlp" else ("NCHW", "channels last")
    best: dict[str, tuple[float, Central]] = {}
    rows = []
    for precision, layout, graph in product(precisions, layouts, (False, True) if bench.on_gpu else (False,)):
        way = Central(bench, precision, layout, graph)
        measured = float(np.median([way.microseconds() for _ in range(bench.scale.least)]))
        how = "CUDA graph" if graph else "eager"
        rows.append({"model": bench.model, "precision": precision, "layout": layout, "how": how, "us": measured})
        say(f"{bench.model}: central, {precision}, {layout}, {how}: {measured:.1f} µs per {bench.scale.batch} samples")
        if precision not in best or measured < best[precision][0]:
            best[precision] = measured, way
        del way
        bench.clean()
    return {precision: way for precision, (_, way) in best.items()}, rows


# --- the plain loop --------------------------------------------------------------------------------------------------


class PlainLoop:
    """What a user would write, with PyTorch's own defaults (TF32 in convolutions, not in matrix products)."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._model = bench.network().to(bench.device)
        self.steps = bench.scale.plain_clients * bench.scale.epochs * -(-bench.scale.samples // bench.scale.batch)
        self.run()  # warms up

    def run(self) -> None:
        trained = [self._train(client) for client in range(self.bench.scale.plain_clients)]
        with torch.no_grad():
            for parameter, *parts in zip(
                self._model.parameters(), *(local.parameters() for local in trained), strict=True
            ):
                parameter.copy_(torch.stack(parts).mean(0))

    def _train(self, client: int) -> nn.Module:
        scale, data = self.bench.scale, self.bench.data
        local = copy.deepcopy(self._model)
        optimizer = torch.optim.SGD(local.parameters(), LR, self.bench.momentum)
        own = slice(client * scale.samples, (client + 1) * scale.samples)
        inputs, targets = data.train_inputs[own].float() / 255, data.train_targets[own]
        for _ in range(scale.epochs):
            for part in torch.randperm(scale.samples, device=self.bench.device).split(scale.batch):
                optimizer.zero_grad()
                F.cross_entropy(local(inputs[part]), targets[part]).backward()
                nn.utils.clip_grad_norm_(local.parameters(), CLIP)
                optimizer.step()
        return local

    def microseconds(self) -> float:
        """Of one client step."""
        return 1e6 * self.bench.seconds(self.run) / self.steps


# --- measuring -------------------------------------------------------------------------------------------------------


def take_turns(scale: Scale, contenders: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Every contender's measurements; one after the other, for as long as the scale says."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    start = time.perf_counter()
    for repetition in range(scale.most):
        if repetition >= scale.least and time.perf_counter() - start > scale.seconds:
            break
        for name, measure in contenders.items():
            found[name].append(measure())
    return found


def spread(values: Sequence[float]) -> dict[str, Any]:
    low, middle, high = np.percentile(values, (25, 50, 75))
    return {"median": float(middle), "quartiles": [float(low), float(high)], "all": list(values)}


def measure_stack(
    bench: Bench, stacked: int, precision: str, floors: dict[str, Central], plain: PlainLoop
) -> dict[str, Any]:
    """One row: the engine with so many stacked clients, beside the floors and the plain loop."""
    scale = bench.scale
    warmed = Warmed(bench, make_lanes(bench, stacked // scale.active, precision, scale.samples))
    steps = stacked * scale.epochs * -(-scale.samples // scale.batch)
    contenders: dict[str, Callable[[], float]] = {"fedga": lambda: 1e6 * bench.seconds(warmed.round) / steps}
    contenders |= {f"central {name}": floor.microseconds for name, floor in floors.items()}
    contenders["plain"] = plain.microseconds
    microseconds = take_turns(scale, contenders)
    row = {
        **{"model": bench.model, "clients": stacked, "precision": precision, "client_steps_per_round": steps},
        "us_per_client_step": {name: spread(values) for name, values in microseconds.items()},
        **{"build_s": warmed.build, "first_round_s": warmed.first, "second_round_s": warmed.second},
        "round_s": float(np.median(microseconds["fedga"])) * steps / 1e6,
        "clients_at_once": min(stacked, warmed.engine.budget.slots),
        **warmed.memory,
    }
    say(f"{bench.model}: {stacked:,} clients, {precision}: {middle(row, 'fedga'):.1f} µs per client step")
    return row


def measure_study(bench: Bench, precision: str) -> dict[str, Any]:
    """The paper's round with and without evaluation, in lanes."""
    scale = bench.scale
    count = scale.lanes_of_heavy_study if bench.model == "resnet20" else scale.lanes_of_study
    samples = min(STUDY_SAMPLES[bench.model], scale.samples)
    lanes = partial(make_lanes, bench, count, precision, samples, local_epochs=2)
    evaluated, trained = Warmed(bench, lanes(evaluate_every=1)), Warmed(bench, lanes())
    rounds = {"evaluated": evaluated, "trained": trained}
    seconds = take_turns(scale, {name: partial(bench.seconds, each.round) for name, each in rounds.items()})
    last = [result.metrics for result in evaluated.engine.run_round()]
    accuracy = float(np.mean([metrics["accuracy"] for metrics in last if metrics]))
    per_run = {name: spread([1e3 * value / count for value in values]) for name, values in seconds.items()}
    share = 1 - per_run["trained"]["median"] / per_run["evaluated"]["median"]
    say(f"{bench.model}: study in {count} lanes, {precision}: {per_run['evaluated']['median']:.2f} ms per run-round")
    return {
        **{"model": bench.model, "lanes": count, "precision": precision, "samples_per_client": samples},
        **{"test_samples": scale.test, "ms_per_run_round": per_run, "share_of_evaluation": share},
        **{"first_round_s": evaluated.first, "accuracy": accuracy},
    }


def measure_model(bench: Bench, stacks: Sequence[int], precisions: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    # Before anything else has run, for what a first round takes where libraries are to be loaded, kernels compiled.
    cold = Warmed(bench, make_lanes(bench, 1, precisions[0], bench.scale.samples)).first
    plain = PlainLoop(bench)
    floors, central = find_floors(bench)
    cases = list(product(stacks, precisions))
    rows = [measure_stack(bench, stacked, precision, floors, plain) for stacked, precision in cases]
    del floors
    studies = [measure_study(bench, precision) for precision in precisions]
    cold_row = {"model": bench.model, "clients": bench.scale.active, "first_round_s": cold}
    return {"cases": rows, "central": central, "studies": studies, "cold": [cold_row]}


def middle(row: dict[str, Any], contender: str) -> float:
    return row["us_per_client_step"][contender]["median"]


def floor_of(row: dict[str, Any]) -> float:
    """Central training in the row's own precision."""
    return middle(row, f"central {row['precision']}")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# --- reporting -------------------------------------------------------------------------------------------------------

Table = list[list[str]]  # the first row is the heading


def case_table(rows: Sequence[dict[str, Any]]) -> Table:
    heading = ["model", "precision", "clients", "fedga µs", "central floor µs", "× floor", "plain loop µs"]
    table = [[*heading, "faster than plain", "peak GiB", "first round s"]]
    for row in rows:
        fedga, floor, plain = middle(row, "fedga"), floor_of(row), middle(row, "plain")
        peak = f"{row['peak_gib']:.2f}" if "peak_gib" in row else "-"
        times = [digits(fedga), digits(floor), f"{fedga / floor:.2f}", digits(plain), f"{plain / fedga:.1f}"]
        named = [NAMES[row["model"]], row["precision"], f"{row['clients']:,}"]
        table.append([*named, *times, peak, f"{row['first_round_s']:.2f}"])
    return table


def study_table(rows: Sequence[dict[str, Any]]) -> Table:
    table = [["model", "precision", "runs at once", "ms per run-round", "of it evaluation", "first round s"]]
    for row in rows:
        time_, share = row["ms_per_run_round"]["evaluated"]["median"], row["share_of_evaluation"]
        named = [NAMES[row["model"]], row["precision"], f"{row['lanes']:,}"]
        table.append([*named, f"{time_:.2f}", f"{share:.0%}", f"{row['first_round_s']:.2f}"])
    return table


def central_table(rows: Sequence[dict[str, Any]]) -> Table:
    table = [["model", "precision", "layout", "how", "µs per client step's samples"]]
    keys = ("precision", "layout", "how")
    return table + [[NAMES[row["model"]], *(row[key] for key in keys), digits(row["us"])] for row in rows]


def cold_text(rows: Sequence[dict[str, Any]]) -> str:
    """What the column of first rounds leaves out: there, libraries are loaded and kernels compiled."""
    times = ", ".join(f"{NAMES[row['model']]} {row['first_round_s']:.2f} s" for row in rows)
    return f"First rounds of {rows[0]['clients']} clients in a cold process, one model after the other: {times}."


def digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def goals(cases: Sequence[dict[str, Any]], studies: Sequence[dict[str, Any]]) -> list[str]:
    """What an H200 has to show, and what was seen at the largest stack."""
    found = []
    largest = max((row["clients"] for row in cases), default=0)
    for row in (row for row in cases if row["clients"] == largest):
        where = f"{NAMES[row['model']]}, {largest:,} clients, {row['precision']}"
        if row["model"] == "resnet20":
            ratio = middle(row, "fedga") / floor_of(row)
            found.append(f"{met(ratio <= 1.5)}: {where}: {ratio:.2f} × the central floor, at most 1.5 wanted")
        else:
            ratio = middle(row, "plain") / middle(row, "fedga")
            found.append(f"{met(ratio >= 20)}: {where}: {ratio:.0f} × the plain loop's speed, at least 20 wanted")
    for row in (row for row in studies if row["model"] == "lenet"):
        time_ = row["ms_per_run_round"]["evaluated"]["median"]
        where = f"LeNet, {row['lanes']} lanes, {row['precision']}"
        found.append(f"{met(time_ <= 4)}: {where}: {time_:.2f} ms per evaluated run-round, at most 4 wanted")
    return found


def met(yes: bool) -> str:
    return "met" if yes else "NOT met"


def as_text(table: Table) -> str:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join("  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in table)


def as_markdown(table: Table) -> str:
    lines = [table[0], ["---"] * len(table[0]), *table[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def describe_machine(device: torch.device) -> dict[str, Any]:
    about = {"torch": torch.__version__, "python": platform.python_version(), "processor": platform.machine()}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        about |= {"gpu": properties.name, "gpu_memory_gib": round(properties.total_memory / GIB, 1)}
        about |= {"driver": driver(), "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
        about["triton"] = triton_version()
    return about


def driver() -> str:
    question = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(question, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def triton_version() -> str | None:
    try:
        import triton
    except ImportError:
        return None
    return triton.__version__


def write(report: dict[str, Any], folder: Path) -> None:
    """The report as data, as a page and as a picture."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpu.json").write_text(json.dumps(report, indent=1) + "\n")
    machine = ", ".join(f"{name} {value}" for name, value in report["machine"].items())
    page = ["# fedga on a GPU", f"Made by `benchmarks/gpu.py`: {machine}.", "![Client steps](gpu.png)"]
    batch, cold = report["scale"]["batch"], cold_text(report["cold"])
    page += [
        f"Microseconds per client step (a batch of {batch}), medians. {cold}",
        as_markdown(case_table(report["cases"])),
    ]
    page += ["The paper's round in lanes, evaluated every round.", as_markdown(study_table(report["studies"]))]
    page += ["All ways of central training.", as_markdown(central_table(report["central"]))]
    page += ["\n".join(f"- {line}" for line in report["goals"])] if report["goals"] else []
    (folder / "gpu.md").write_text("\n\n".join(page) + "\n")
    draw(report, folder / "gpu")


def show(report: dict[str, Any]) -> None:
    print("\n" + as_text(central_table(report["central"])))
    print("\n" + as_text(study_table(report["studies"])))
    if report["goals"]:
        print("\n" + "\n".join(report["goals"]))
    print("\n" + cold_text(report["cold"]))
    print("\n" + as_text(case_table(report["cases"])))


# --- the command -----------------------------------------------------------------------------------------------------


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(SHAPES))
    parser.add_argument("--stacked", help="stacked clients, a multiple of 10 each (default 10,100,1000)")
    parser.add_argument("--precision", default="float32,tf32", help="what the engine has of these is measured")
    parser.add_argument("--rounds", type=int, help="timed rounds of every case (default: 3 to 20, by their length)")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--momentum", type=float, default=0.0, help="the paper's tables are reproduced by 0")
    parser.add_argument("--algorithm", default="fedavg")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--check", action="store_true", help="compare the engine's numbers with the plain loop's")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    options.models = options.models.split(",")
    if unknown := set(options.models) - set(SHAPES):
        parser.error(f"--models {', '.join(sorted(unknown))}: choose from {', '.join(SHAPES)}")
    options.scale = replace(QUICK if options.quick else Scale(), epochs=options.epochs)
    if options.rounds:
        options.scale = replace(options.scale, least=options.rounds, most=options.rounds)
    active = options.scale.active
    default = [active, 2 * active, 4 * active] if options.quick else [10, 100, 1000]
    options.stacks = [int(number) for number in options.stacked.split(",")] if options.stacked else default
    if any(number < active or number % active for number in options.stacks):
        parser.error(f"--stacked must be multiples of {active}, the active clients of a run")
    return options


def engine_precisions(wanted: str, device: torch.device) -> list[str]:
    offered = ["float32", "tf32"] if HAS_PRECISION and device.type == "cuda" else ["float32"]
    return [precision for precision in wanted.split(",") if precision in offered]


def measure(options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    scale, start = options.scale, time.perf_counter()
    precisions = engine_precisions(options.precision, device)
    report: dict[str, Any] = {"machine": describe_machine(device), "scale": asdict(scale)}
    report |= {"momentum": options.momentum, "algorithm": options.algorithm}
    report |= {"cases": [], "central": [], "studies": [], "cold": []}
    for model in options.models:
        data = DeviceData(made_up(model, scale), device)
        bench = Bench(model, data, scale, options.momentum, options.algorithm)
        bench.wait()
        for part, rows in measure_model(bench, options.stacks, precisions).items():
            report[part] += rows
        report["goals"] = goals(report["cases"], report["studies"]) if device.type == "cuda" else []
        report["seconds"] = time.perf_counter() - start
        write(report, options.out)  # whole after every model: a time limit takes nothing that was measured
        say(f"{model} done after {report['seconds']:.0f} s")
    return report


def main() -> int:
    options = read_options()
    device = torch.device(options.device)
    if device.type == "cpu":
        torch.set_num_threads(1)  # it only has to run there, and threads wait for each other on a shared machine
    if options.check:
        from gpu_check import check  # imports the tests' helpers, which a measurement does not need

        return check(device, options.models, options.quick)
    show(measure(options, device))
    return 0


if __name__ == "__main__":
    sys.exit(main())
