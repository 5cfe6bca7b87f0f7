"""`fedga diagnose` on a million predictions × 100 classes at 50 sites, beside what one would write with pandas.

    python benchmarks/diagnose.py                                     # minutes, and 5 GB of disk for a while
    python benchmarks/diagnose.py --rows 20000 --repeat 1 --out /tmp  # small: shows that it runs

Both get the same file and compute the mean prediction of every site and true class, error asymmetry, and accuracy of
each class. fedga is the whole command, from starting Python to the page on disk, and checks every row; the pandas
script reads, groups, takes the most probable class and calls scikit-learn's confusion matrix, and writes nothing. Each
run is a process of its own, files in the disk cache; fedga and pandas take turns, and ratios are of neighbours.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import machine
import numpy as np
import pyarrow as arrow
import pyarrow.csv as arrow_csv
import pyarrow.parquet as parquet

PEER = """
import sys
import numpy as np, pandas as pd
from sklearn.metrics import confusion_matrix

path = sys.argv[1]
if path.endswith(".npz"):
    file = np.load(path)
    probs, label, site = file["probs"], file["labels"], file["sites"]
    frame = pd.DataFrame(probs)
    columns = list(frame.columns)
    frame["label"], frame["site"] = label, site
else:
    frame = pd.read_csv(path) if path.endswith(".csv") else pd.read_parquet(path)
    columns = [name for name in frame.columns if name.startswith("p_")]
    codes = {name.removeprefix("p_"): at for at, name in enumerate(columns)}
    frame["label"] = frame["label"].map(codes)
    probs = frame[columns].to_numpy()
means = frame.groupby(["site", "label"])[columns].mean()

def asymmetry(table):
    values = table.reindex(range(len(columns))).to_numpy()
    missed = 1 - values.diagonal()
    return missed / (np.nansum(values, 0) - np.nan_to_num(values.diagonal()))

everywhere = asymmetry(frame.groupby("label")[columns].mean())
sites = {site: asymmetry(table.droplevel("site")) for site, table in means.groupby("site")}
confusion = confusion_matrix(frame["label"], probs.argmax(1), labels=range(len(columns)))
accuracy = confusion.diagonal() / confusion.sum(1)
print(np.nanmax(everywhere) / np.nanmin(everywhere))
"""


@dataclass(frozen=True)
class Taken:
    """What one process took."""

    seconds: float
    processor_seconds: float
    peak_mib: float
    ratio: float  # the EA ratio it found


def make_files(folder: Path, rows: int, classes: int, sites: int) -> dict[str, Path]:
    """The same made-up predictions in every form."""
    draws = np.random.default_rng(0)
    shares = 1 / np.arange(1, classes + 1) ** 0.7
    labels = draws.choice(classes, rows, p=shares / shares.sum())
    places = draws.integers(0, sites, rows)
    probs = draws.standard_normal((rows, classes), dtype=np.float32) * 1.5 + 0.5 * np.log(shares).astype(np.float32)
    probs[np.arange(rows), labels] += 4
    probs = np.exp(probs - probs.max(1, keepdims=True))
    probs /= probs.sum(1, keepdims=True)
    names = [f"c{number:02d}" for number in range(classes)]
    table = arrow.table(
        {
            "site": arrow.array([f"site {number}" for number in range(sites)]).take(arrow.array(places)),
            "label": arrow.array(names).take(arrow.array(labels)),
            **{f"p_{name}": probs[:, at] for at, name in enumerate(names)},
        }
    )
    files = {kind: folder / f"some{number}.{kind.split(',')[0]}" for number, kind in enumerate(KINDS)}
    parquet.write_table(table, files["parquet"])
    arrow_csv.write_csv(table, files["csv"])
    np.savez(files["npz"], probs=probs, labels=labels, sites=places)
    np.savez(files["npz, float64"], probs=probs.astype(np.float64), labels=labels, sites=places)
    np.savez_compressed(files["npz, compressed"], probs=probs, labels=labels, sites=places)
    return files


KINDS = ("parquet", "npz", "npz, float64", "npz, compressed", "csv")


def run(command: Sequence[str], folder: Path) -> tuple[str, float, float, float]:
    """What a command prints, its seconds, its processor's seconds and its peak of memory in MiB."""
    printed = folder / "printed.txt"
    begin = time.perf_counter()
    with printed.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, cwd=folder)
        assert process.stderr is not None
        complaint = process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    process.stderr.close()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {complaint.decode()}")
    return printed.read_text(), seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def of_fedga(path: Path, folder: Path) -> Taken:
    command = [sys.executable, "-m", "fedga", "diagnose", str(path), "--format", "json", "--out", "page.html"]
    printed, *taken = run(command, folder)
    return Taken(*taken, json.loads(printed)["ea_ratio"])


def of_pandas(path: Path, folder: Path) -> Taken:
    printed, *taken = run([sys.executable, "-c", PEER, str(path)], folder)
    return Taken(*taken, float(printed))


def measure(path: Path, folder: Path, repeat: int) -> dict[str, list[Taken]]:
    """Both, in turns."""
    found: dict[str, list[Taken]] = {"fedga": [], "pandas": []}
    for turn in range(repeat):
        pair = [("fedga", of_fedga), ("pandas", of_pandas)]
        for name, measured in pair if turn % 2 == 0 else reversed(pair):
            found[name].append(measured(path, folder))
        ours, theirs = found["fedga"][-1].ratio, found["pandas"][-1].ratio
        assert abs(ours / theirs - 1) < 1e-3, f"{path}: fedga says {ours}, pandas {theirs}"
    return found


def row_of(kind: str, size: int, found: dict[str, list[Taken]]) -> list[str]:
    ours, theirs = found["fedga"], found["pandas"]
    times = median(b.seconds / a.seconds for a, b in zip(ours, theirs, strict=True))
    cores = median(b.processor_seconds / a.processor_seconds for a, b in zip(ours, theirs, strict=True))
    cells = [kind, f"{size / 1e6:,.0f}"]
    for takes in (ours, theirs):
        cells += [f"{median(take.seconds for take in takes):.1f}"]
        cells += [f"{median(take.processor_seconds for take in takes):.1f}"]
        cells += [f"{max(take.peak_mib for take in takes):,.0f}"]
    return [*cells, f"{times:.1f}", f"{cores:.1f}"]


def page(record: dict[str, Any], rows: list[list[str]]) -> str:
    head = ["file", "MB", "fedga s", "core s", "peak MiB", "pandas s", "core s", "peak MiB", "× s", "× core s"]
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)]
    size = f"{record['rows']:,} predictions × {record['classes']} classes at {record['sites']} sites"
    return (
        f"# `fedga diagnose` on {size}\n\n"
        f"Made by `benchmarks/diagnose.py --repeat {record['repeat']}`: {machine.in_words(record['machine'])}. Medians "
        "of runs that took turns, peaks of memory the largest; the load was "
        f"{record['load']:.1f} when it began (1 is one busy core). *×* is the median of pandas over fedga among "
        "neighbours. fedga is the whole command, checks and page included; the pandas script reads, groups and "
        "counts.\n\n" + "\n".join(lines) + "\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--sites", type=int, default=50)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--kinds", default=";".join(KINDS), help="separated by semicolons")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    record: dict[str, Any] = {name: getattr(options, name) for name in ("rows", "classes", "sites", "repeat")}
    record |= {"machine": machine.describe(), "load": os.getloadavg()[0], "taken": {}}
    rows = []
    with tempfile.TemporaryDirectory() as place:
        # In a process of its own: a child's peak of memory begins with what its parent had when it was forked.
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            size = (options.rows, options.classes, options.sites)
            files = pool.submit(make_files, Path(place), *size).result()
        for kind in options.kinds.split(";"):
            found = measure(files[kind], Path(place), options.repeat)
            record["taken"][kind] = {name: [asdict(take) for take in takes] for name, takes in found.items()}
            rows.append(row_of(kind, files[kind].stat().st_size, found))
            print(*rows[-1], flush=True)
    (options.out / "diagnose.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    (options.out / "diagnose.md").write_text(page(record, rows))


if __name__ == "__main__":
    main()
