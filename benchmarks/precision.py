"""What TF32 costs in accuracy and gains in time: the same runs in both precisions, on a GPU.

    python benchmarks/precision.py [--device cuda] [--rounds 100] [--seeds 0-4] [--out DIR]

Needs MNIST where `fedga run` finds it (`fedga data get mnist`, or FEDGA_DATA).
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

MODELS, ALGORITHMS, PRECISIONS = ("mlp", "lenet"), ("fedavg", "fedga"), ("float32", "tf32")


def fedga(*arguments: str) -> str:
    """What the program prints."""
    command = [sys.executable, "-m", "fedga", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def train(folder: str, model: str, precision: str, options: argparse.Namespace) -> float:
    """Train all runs of one cell; seconds of a steady round of one run."""
    fedga(
        *("run", "--dataset", "mnist", "--preset", "paper", "--algorithm", ",".join(ALGORITHMS), "--alpha", "0.1"),
        *("--seeds", options.seeds, "--rounds", options.rounds, "--model", model, "--precision", precision),
        *("--device", options.device, "--diagnose-every", "0", "--no-pictures", "--profile", "--out", folder),
    )
    steady = json.loads((Path(folder) / "profile.json").read_text())["steady_rounds"]
    return float(steady["phases"]["local_training"]["seconds"]) / steady["run_rounds"]


def last_accuracies(folder: str) -> dict[str, list[float]]:
    """By algorithm, of every seed's last round."""
    last: dict[tuple[str, str], float] = {}
    for row in csv.DictReader(io.StringIO(fedga("results", folder, "--format", "csv"))):
        last[row["algorithm"], row["seed"]] = float(row["accuracy"])  # rounds come in order
    found = defaultdict(list)
    for (algorithm, _), value in last.items():
        found[algorithm].append(value)
    return found


def table(cells: list[dict[str, object]]) -> str:
    lines = [
        "| network | algorithm | precision | accuracy | ms of local training per run and round |",
        "|---|---|---|---:|---:|",
    ]
    for cell in cells:
        mean, deviation = statistics.mean(cell["accuracies"]), statistics.stdev(cell["accuracies"])  # type: ignore[arg-type]
        lines.append(
            f"| {cell['model']} | {cell['algorithm']} | {cell['precision']} | {mean:.4f} ± {deviation:.4f} | "
            f"{1000 * float(str(cell['seconds'])):.2f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", default="100")
    parser.add_argument("--seeds", default="0-4")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    cells: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as base:
        for model in MODELS:
            for precision in PRECISIONS:
                folder = f"{base}/{model}-{precision}"
                seconds = train(folder, model, precision, options)
                for algorithm, accuracies in last_accuracies(folder).items():
                    cell = {"model": model, "algorithm": algorithm, "precision": precision}
                    cells.append({**cell, "accuracies": accuracies, "seconds": seconds})
    title = f"# MNIST, α = 0.1, round {options.rounds}: float32 against TF32 on {options.device}\n\n"
    text = title + table(sorted(cells, key=lambda cell: (str(cell["model"]), str(cell["algorithm"]))))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "precision.md").write_text(text)
    (options.out / "precision.json").write_text(json.dumps(cells, indent=2) + "\n")
    print(text)


if __name__ == "__main__":
    main()
