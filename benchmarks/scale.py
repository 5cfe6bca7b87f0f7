"""Rounds with 10 to 10,000 active clients of a federation of 100,000: time per client, and memory over the rounds.

    PYTHONPATH=src:. python benchmarks/scale.py                        # on this CPU: two minutes on two quiet cores
    PYTHONPATH=src:. python benchmarks/scale.py --device cuda          # writes scale.json, .md, .png and .svg
    PYTHONPATH=src:. python benchmarks/scale.py --device cpu --quick --out /tmp/scale   # tiny: shows that it runs
    PYTHONPATH=src:. python benchmarks/scale.py --draw benchmarks/results/scale.json    # page and picture again

Every client is a list of 60 places among 60,000 made-up pictures of MNIST's shape; lists overlap, samples are stored
once. A client takes two steps a round (two epochs, one batch each) of plain SGD, and no round is evaluated. Every
number of active clients has a process of its own, so that none sees the memory another one left behind. One more
process draws 10 clients out of 1,000: what it saves is what a federation of 100,000 costs where few take part.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import machine
import numpy as np
import torch
from gpu import as_markdown, as_text, describe_machine, digits
from gpu_picture import readable, whole_decades

from fedga.algorithms import make_algorithm
from fedga.data.federation import Dataset, Federation
from fedga.drawing.canvas import LineEnd, PanelSize, compose, label_ends
from fedga.drawing.style import MUTED, SMALL, drawing, save
from fedga.engine.device_data import DeviceData
from fedga.engine.engine import Engine
from fedga.engine.stack.budget import CUDA_SHARE
from fedga.engine.stack.lanes import Lane
from fedga.models import build_model
from fedga.spec.settings import RunSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHAPE, CLASSES, NEVER, MIB = (1, 28, 28), 10, 1_000_000, 2**20
NAMES = {"mlp": "MLP 784-128-10", "lenet": "LeNet, 1×28×28"}
WARM_ROUNDS = {"cpu": 1, "cuda": 3}  # on CUDA the second records a graph, and the third is the first to replay it
COLORS = ("#56b4e9", "#009e73", "#e69f00", "#d55e00")
# What still counts as flat: from one size to the next, from the first timed round to the last, from size to size.
FLAT_TIME, FLAT_MEMORY, MORE_MEMORY = 1.1, 1.02, 1.1


@dataclass(frozen=True)
class Scale:
    """How large everything is."""

    clients: int = 100_000
    few_clients: int = 1_000  # of the federation to compare with
    active: tuple[int, ...] = (10, 100, 1_000, 10_000)
    train: int = 60_000
    samples: int = 60  # of a client
    timed_rounds: int = 12
    least_rounds: int = 2  # timed, where the time below is over before
    seconds: float = 12.0  # of a size


QUICK = Scale(clients=2_000, few_clients=100, active=(2, 10, 50), train=1_000, timed_rounds=3, seconds=2.0)
ON_GPU = {"timed_rounds": 20, "seconds": 60.0}


# --- one size, in a process of its own -------------------------------------------------------------------------------


def made_up(samples: int) -> Dataset:
    """Noise around one template per class."""
    generator = np.random.default_rng(0)
    templates = generator.integers(0, 128, (CLASSES, *SHAPE), dtype=np.uint8)

    def split(samples: int) -> tuple[np.ndarray, np.ndarray]:
        targets = generator.integers(0, CLASSES, samples)
        return templates[targets] + generator.integers(0, 128, (samples, *SHAPE), dtype=np.uint8), targets

    return Dataset("made up", *split(samples), *split(CLASSES), tuple("0123456789"))


def deal(dataset: Dataset, clients: int, samples: int) -> Federation:
    """Lists drawn independently of each other: no sample is copied, whoever holds it."""
    places = np.random.default_rng(1).integers(0, len(dataset.train_targets), clients * samples)
    return Federation(dataset, places, np.arange(clients + 1) * samples)


def make_lane(federation: Federation, model: str, active: int) -> Lane:
    spec = RunSpec(
        **{"dataset": "made up", "partition": "iid", "clients": federation.num_clients, "active": active},
        **{"model": model, "algorithm": "fedavg", "rounds": NEVER, "local_epochs": 2, "batch_size": 64, "lr": 0.1},
        **{"evaluate_every": NEVER, "diagnose_every": 0},
    )
    return Lane(spec, federation, make_algorithm("fedavg"), build_model(model, SHAPE, CLASSES, seed=0))


def measure_size(scale: Scale, model: str, device: torch.device, clients: int, active: int) -> dict[str, Any]:
    federation = deal(made_up(scale.train), clients, scale.samples)
    data = DeviceData(federation.dataset, device)
    before, start = resident_mib(), time.perf_counter()
    engine = Engine([make_lane(federation, model, active)], data)
    build = time.perf_counter() - start
    row = {"clients": clients, "active": active, "build_s": build, "mib_before_engine": before}
    row |= {"parameters": engine.model.params.total, "list_mib": federation.indices.nbytes / MIB}
    row |= {"at_once_allowed": engine.budget.slots, "threads": engine.workers.count, "chunks": len(engine._chunks())}
    row["rounds"] = measure_rounds(engine, scale)
    return row | {"halved": list(engine.budget.notices)}


def measure_rounds(engine: Engine, scale: Scale) -> list[dict[str, float]]:
    """Warm rounds, then timed ones for as long as the scale says."""
    warm, start = WARM_ROUNDS[engine.device.type], time.perf_counter()
    rounds: list[dict[str, float]] = []
    while len(rounds) < warm + scale.timed_rounds:
        if len(rounds) >= warm + scale.least_rounds and time.perf_counter() - start > scale.seconds:
            break
        rounds.append(measure_round(engine))
    return rounds


def measure_round(engine: Engine) -> dict[str, float]:
    on_gpu = engine.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(engine.device)
        torch.cuda.synchronize(engine.device)
    start, busy = time.perf_counter(), time.process_time()
    if engine.run_round()[0].diverged:
        raise SystemExit("the run diverged: its times mean nothing")
    if on_gpu:
        torch.cuda.synchronize(engine.device)
    found = {"seconds": time.perf_counter() - start, "core_seconds": time.process_time() - busy}
    found["resident_mib"] = resident_mib()
    if on_gpu:
        # What a replayed graph uses inside does not count as allocated, but it is held: this is what others lack.
        found["cuda_peak_mib"] = torch.cuda.max_memory_allocated(engine.device) / MIB
        found["cuda_held_mib"] = torch.cuda.memory_reserved(engine.device) / MIB
    return found


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


# --- all sizes -------------------------------------------------------------------------------------------------------


def measure(options: argparse.Namespace) -> dict[str, Any]:
    scale, device, start = options.scale, torch.device(options.device), time.perf_counter()
    load = os.getloadavg()[0]  # before the processes below add to it
    report: dict[str, Any] = {"machine": describe_machine(device) | machine.describe(), "load_before": load}
    report |= {"model": options.model, "device": device.type, "scale": asdict(scale)}
    report |= {"warm_rounds": WARM_ROUNDS[device.type], "budget_mib": budget_mib(device)}
    report["few"] = in_own_process(options, scale.few_clients, scale.active[0])
    report["sizes"] = [in_own_process(options, scale.clients, active) for active in scale.active]
    return report | {"seconds": time.perf_counter() - start}


def budget_mib(device: torch.device) -> float | None:
    """What clients that train together may take of a GPU; on a CPU a stack is bounded by the cache instead."""
    if device.type == "cpu":
        return None
    return CUDA_SHARE * torch.cuda.get_device_properties(device).total_memory / MIB


def in_own_process(options: argparse.Namespace, clients: int, active: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", f"{clients},{active}", "--model", options.model]
    command += ["--device", options.device, *(["--quick"] if options.quick else [])]
    row = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    row |= summary(row, WARM_ROUNDS[torch.device(options.device).type])
    print(f"{active:,} of {clients:,} clients: {digits(row['us_per_client'])} µs each", file=sys.stderr, flush=True)
    return row


def summary(row: dict[str, Any], warm: int) -> dict[str, Any]:
    timed = row["rounds"][warm:]

    def middle(name: str) -> float:
        return float(np.median([each[name] for each in timed]))

    memory = memory_of(row)
    return {
        **{"round_s": middle("seconds"), "timed_rounds": len(timed)},
        "us_per_client": 1e6 * middle("seconds") / row["active"],
        "core_us_per_client": 1e6 * middle("core_seconds") / row["active"],
        **{"memory_mib": max(memory), "memory_growth_mib": memory[-1] - memory[warm]},
    }


def memory_of(row: dict[str, Any]) -> list[float]:
    """MiB after every round: of the device where there is one, else of the process."""
    return [each.get("cuda_held_mib", each["resident_mib"]) for each in row["rounds"]]


# --- reporting -------------------------------------------------------------------------------------------------------


def table(report: dict[str, Any]) -> list[list[str]]:
    on_gpu = report["device"] == "cuda"
    memory = ["GPU MiB in use, peak", "GPU MiB held"] if on_gpu else ["resident MiB"]
    heading = ["active", "of clients", "s per round", "µs per client", "core µs per client", "timed rounds"]
    lines = [[*heading, *memory, "grown by, MiB", "chunks"]]
    for row in [report["few"], *report["sizes"]]:
        times = [f"{row['round_s']:.3g}", digits(row["us_per_client"]), digits(row["core_us_per_client"])]
        peaks = [max(each["cuda_peak_mib"] for each in row["rounds"])] if on_gpu else []
        held = [f"{value:,.0f}" for value in [*peaks, row["memory_mib"]]]
        last = [f"{row['timed_rounds']}", *held, f"{row['memory_growth_mib']:.1f}", f"{row['chunks']:,}"]
        lines.append([f"{row['active']:,}", f"{row['clients']:,}", *times, *last])
    return lines


def findings(report: dict[str, Any]) -> list[str]:
    """What is asked of the engine, and whether it was seen."""
    sizes, on_gpu = report["sizes"], report["device"] == "cuda"
    # Cores are shared with others: there, the time they worked for us says more than the time that went by.
    name = "us_per_client" if on_gpu else "core_us_per_client"
    times = [row[name] for row in sizes]
    steps = [after / before for before, after in pairwise(times)]
    growth = [memory_of(row)[-1] / memory_of(row)[report["warm_rounds"]] for row in sizes]
    few, many = report["few"]["round_s"], sizes[0]["round_s"]
    said = [
        f"{met(max(steps) <= FLAT_TIME)}: {'time' if on_gpu else 'processor time'} per client flat or falling: "
        f"{', '.join(digits(value) for value in times)} µs",
        f"{met(max(growth) <= FLAT_MEMORY)}: memory flat over the rounds: after warming up it grew by at most "
        f"{100 * (max(growth) - 1):.1f} %",
        f"{met(is_bounded(report))}: memory bounded: {budget_in_words(report)}",
    ]
    first = f"a round of {sizes[0]['active']} clients took {1e3 * many:.1f} ms out of {sizes[0]['clients']:,} clients"
    return [*said, f"{first}, {1e3 * few:.1f} ms out of {report['few']['clients']:,}"]


def is_bounded(report: dict[str, Any]) -> bool:
    """Within the budget; where none is counted in bytes, as much for many active clients as for few."""
    held = [row["memory_mib"] for row in report["sizes"]]
    bound = report["budget_mib"] or MORE_MEMORY * min(held)
    return max(held) <= bound and not any(row["halved"] for row in report["sizes"])


def budget_in_words(report: dict[str, Any]) -> str:
    rows = report["sizes"]
    allowed, largest = rows[0]["at_once_allowed"], max(row["memory_mib"] for row in rows)
    lists = f"lists of {rows[0]['list_mib']:.0f} MiB"
    if report["budget_mib"] is None:
        each = rows[0]["parameters"] * 4 / MIB
        smallest = min(row["memory_mib"] for row in rows)
        return (
            f"at most {allowed} clients ({each:.2f} MiB of parameters each) train together on each of "
            f"{rows[0]['threads']} threads; with {lists}, {rows[-1]['active']:,} active clients took "
            f"{largest:,.0f} MiB, {largest - smallest:.0f} MiB more than the least"
        )
    return (
        f"at most {allowed:,} clients train together, within {report['budget_mib']:,.0f} MiB; "
        f"with {lists}, at most {largest:,.0f} MiB were held"
    )


def met(yes: bool) -> str:
    return "met" if yes else "NOT met"


def warm_ones(report: dict[str, Any]) -> str:
    count = report["warm_rounds"]
    return "a warm one" if count == 1 else f"{count} warm ones"


def where(report: dict[str, Any]) -> str:
    about = report["machine"]
    return f"{about['gpu']}; {machine.in_words(about)}" if "gpu" in about else machine.in_words(about)


def write(report: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scale.json").write_text(json.dumps(report, indent=1) + "\n")
    rounds = f"Medians of the rounds after {warm_ones(report)}; before it began, the load was "
    page = [
        f"# Rounds of a federation of {report['scale']['clients']:,} clients: {NAMES[report['model']]}",
        f"Made by `benchmarks/scale.py --device {report['device']} --model {report['model']}`: {where(report)}; "
        f"torch {report['machine']['torch']}. {rounds}{report['load_before']:.1f}.",
        "![Time per client and memory over the rounds](scale.png)",
        as_markdown(table(report)),
        "\n".join(f"- {line}" for line in findings(report)),
    ]
    (folder / "scale.md").write_text("\n\n".join(page) + "\n")
    draw(report, folder / "scale")


def draw(report: dict[str, Any], path: Path) -> None:
    on_gpu = report["device"] == "cuda"
    place = f"one {report['machine']['gpu']}" if on_gpu else f"{report['sizes'][0]['threads']} CPU threads"
    dashed = "" if on_gpu else " Dashed: the cores' time, which other programs disturb less."
    with drawing():
        figure, (times, memory) = compose(
            1,
            2,
            [PanelSize(3.4, 2.9, left=0.75), PanelSize(3.6, 2.9, left=0.85, right=1.15)],
            title=f"Rounds of a federation of {report['scale']['clients']:,} clients on {place}",
            subtitle=f"{NAMES[report['model']]}, two local steps of a client, by the number of active clients",
            caption=f"Medians and quartiles over the rounds after {warm_ones(report)}.{dashed}",
        )
        draw_times(times, report)
        draw_memory(memory, report)
    save(figure, path)


def draw_times(axes: Axes, report: dict[str, Any]) -> None:
    sizes, active = report["sizes"], [row["active"] for row in report["sizes"]]
    per_client = [
        [1e6 * each["seconds"] / row["active"] for each in row["rounds"][report["warm_rounds"] :]] for row in sizes
    ]
    low, middle, high = np.array([np.percentile(values, (25, 50, 75)) for values in per_client]).T
    axes.errorbar(active, middle, (middle - low, high - middle), color=COLORS[-1], marker="o", linewidth=1.8)
    if report["device"] == "cpu":
        busy = [row["core_us_per_client"] for row in sizes]
        axes.plot(active, busy, color=MUTED, linestyle=(0, (4, 2)), marker="v", linewidth=1.2)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(*whole_decades(axes.get_ylim()))
    axes.set_xlim(active[0] / 1.8, active[-1] * 1.8)
    for x, y, value in zip(active, high, middle, strict=True):
        axes.annotate(readable(value), (x, y), (5, 5), textcoords="offset points", ha="center", size=SMALL)
    axes.set_xticks(active, [f"{number:,}" for number in active])
    axes.yaxis.set_major_formatter(lambda value, _: readable(value))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(lambda *_: "")
    axes.set_xlabel("active clients of a round", color=MUTED)
    axes.set_title("Time per client")


def draw_memory(axes: Axes, report: dict[str, Any]) -> None:
    lines = {row["active"]: memory_of(row) for row in report["sizes"]}
    ends = []
    for (active, values), color in zip(lines.items(), COLORS[-len(lines) :], strict=True):
        axes.plot(range(1, len(values) + 1), values, color=color, marker="o", markersize=3.5, linewidth=1.6)
        ends.append(LineEnd(len(values), values[-1], f"{active:,} active", color))
    every = [value for values in lines.values() for value in values]
    budget, longest = report["budget_mib"], max(map(len, lines.values()))
    if budget is not None:
        axes.axhline(budget, color=MUTED, linestyle=(0, (4, 2)), linewidth=1.2)
        ends.append(LineEnd(longest + 0.4, budget, "budget", MUTED))
    axes.set_xlim(0.6, longest + 0.4)
    if max(every) > 4 * min(every):
        axes.set_yscale("log")
        axes.set_ylim(*whole_decades(axes.get_ylim()))
        axes.yaxis.set_minor_formatter(lambda *_: "")
    else:
        axes.set_ylim(0, 1.25 * max(every))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f} MiB")
    label_ends(axes, ends)
    axes.set_xlabel("round", color=MUTED)
    axes.set_title("GPU memory held" if report["device"] == "cuda" else "Resident memory of the process")


# --- the command -----------------------------------------------------------------------------------------------------


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="mlp", choices=NAMES)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--draw", type=Path, metavar="JSON", help="write page and picture of an earlier run, beside it")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # "clients,active": measured in this process, as JSON
    options = parser.parse_args(arguments)
    on_gpu = torch.device(options.device).type == "cuda"
    options.scale = QUICK if options.quick else Scale(**ON_GPU) if on_gpu else Scale()
    return options


def main() -> int:
    options = read_options()
    if options.one:
        clients, active = map(int, options.one.split(","))
        print(json.dumps(measure_size(options.scale, options.model, torch.device(options.device), clients, active)))
        return 0
    report = json.loads(options.draw.read_text()) if options.draw else measure(options)
    write(report, options.draw.parent if options.draw else options.out)
    print("\n".join(["", as_text(table(report)), "", *findings(report)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
