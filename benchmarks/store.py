"""How fast a results folder of 1,000 runs × 500 rounds answers, beside the same numbers in CSV files read by pandas.

    python benchmarks/store.py [--runs 1000] [--rounds 500]

What a user would have instead is a CSV file per run. Each question is asked in a process that has everything imported,
the best of three; the first answer after the folder was written is printed beside it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedga.report.curves import read_curves
from fedga.report.summary import summary_rows
from fedga.spec.settings import RunSpec
from fedga.store.database import open_for_reading
from fedga.store.records import METRICS, RoundMetrics
from fedga.store.store import Store

ALGORITHMS = ("fedavg", "fedprox", "fedrl", "climb", "fedntd", "fedga", "fedga-batch", "scaffold")


def make(folder: Path, runs: int, rounds: int) -> None:
    """A folder of made-up curves with every metric filled."""
    draws = np.random.default_rng(0)
    specs = [
        RunSpec(dataset="mnist", alpha=alpha, algorithm=algorithm, seed=seed, rounds=rounds)
        for seed in range(-(-runs // (5 * len(ALGORITHMS))))
        for alpha in (0.05, 0.1, 0.5, 1.0, 10.0)
        for algorithm in ALGORITHMS
    ][:runs]
    with Store(folder) as store:
        store.register(specs, dict.fromkeys((spec.run_id for spec in specs), "made up"))
        for spec in specs:
            [group] = store.create_groups([[spec.run_id]])
            store.claim(group.id)
            table = draws.random((rounds, len(METRICS)))
            rows = [RoundMetrics(spec.run_id, at + 1, *values) for at, values in enumerate(table.tolist())]
            store.commit(group.id, rounds, rows, finished={spec.run_id: "done"})
            store.release(group.id)


def means_at_the_end(folder: Path) -> list[Any]:
    """Accuracy of every algorithm and α in its last round, by SQL, as anyone with SQLite would ask."""
    query = (
        "SELECT algorithm, alpha, avg(accuracy) FROM results WHERE round = "
        "(SELECT max(round) FROM metrics) GROUP BY algorithm, alpha"
    )
    connection = open_for_reading(folder)
    found = connection.execute(query).fetchall()
    connection.close()
    return found


def summaries(folder: Path) -> list[Any]:
    with Store(folder) as store:
        return list(store.summaries())


def csv_files(folder: Path, out: Path) -> None:
    """The same numbers as a user's own scripts keep them: a file per run."""
    import csv

    out.mkdir()
    for number, curve in enumerate(read_curves(folder)):
        with (out / f"{number}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["algorithm", "alpha", "seed", "round", *METRICS])
            head = (curve.settings["algorithm"], curve.settings["alpha"], curve.seed)
            table = np.stack([curve.metric(name) for name in METRICS], axis=1).tolist()
            writer.writerows([*head, at, *row] for at, row in zip(curve.rounds.tolist(), table, strict=True))


def pandas_means(out: Path) -> Any:
    import pandas

    table = pandas.concat([pandas.read_csv(path) for path in sorted(out.glob("*.csv"))])
    return table[table["round"] == table["round"].max()].groupby(["algorithm", "alpha"])["accuracy"].mean()


def timed(question: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of the first answer, and of the fastest of three more."""
    taken = []
    for _ in range(4):
        start = time.perf_counter()
        question()
        taken.append(time.perf_counter() - start)
    return taken[0], min(taken[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "store.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder, files = Path(place) / "results", Path(place) / "csv"
        make(folder, options.runs, options.rounds)
        csv_files(folder, files)
        questions: dict[str, Callable[[], Any]] = {
            "accuracy per algorithm and α at the end (SQL)": lambda: means_at_the_end(folder),
            "last, mean and best of every run (Store.summaries)": lambda: summaries(folder),
            "every curve as arrays (read_curves)": lambda: read_curves(folder),
            "the table of `fedga results --summary`": lambda: summary_rows(read_curves(folder)),
            "a CSV per run, pandas: accuracy per algorithm and α": lambda: pandas_means(files),
        }
        found = {name: timed(question) for name, question in questions.items()}
        size = (folder / "results.sqlite").stat().st_size
    print(f"{options.runs} runs × {options.rounds} rounds × {len(METRICS)} metrics, {size / 1e6:.0f} MB")
    for name, (first, best) in found.items():
        print(f"{name:55s} first {first:6.2f} s, then {best:6.2f} s")
    record = {"runs": options.runs, "rounds": options.rounds, "bytes": size, "seconds": found}
    options.out.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
