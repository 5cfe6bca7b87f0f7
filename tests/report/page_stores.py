"""Small results folders with made-up numbers, written as a run writes them, and what SQLite itself says of them."""

from __future__ import annotations

import sqlite3
import statistics
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from fedga.spec.grid import build_sweep
from fedga.spec.settings import RunSpec
from fedga.store.store import ClientRound, PartitionRecord, RoundMetrics, Store

CLASSES = tuple("0123456789")
HOSTILE = '"><img src=x onerror=window.hacked=1><script>window.hacked=2</script>'
LEVELS = {"fedavg": 0.7, "fedntd": 0.75, "fedga": 0.8}


def grid(**lists: Any) -> list[RunSpec]:
    """The runs of `fedga run` with these flags."""
    return list(
        build_sweep({name: values if isinstance(values, list) else [values] for name, values in lists.items()}).runs
    )


def small_grid() -> list[RunSpec]:
    """Three algorithms in two presets at two α, three seeds each."""
    return grid(
        dataset="digits",
        alpha=[0.1, 1.0],
        algorithm=list(LEVELS),
        preset=["paper", "strong"],
        seed=[0, 1, 2],
        rounds=20,
        evaluate_every=1,
        diagnose_every=10,
    )


def made_up(spec: RunSpec, number: int) -> RoundMetrics:
    """One round of a run that rises to a level of its own."""
    noise = np.random.default_rng([int(spec.run_id[:8], 16), number])
    level = LEVELS.get(spec.algorithm_name, 0.6) + 0.05 * (spec.preset == "strong") + 0.02 * (spec.alpha or 0.0)
    accuracy = level * (1 - np.exp(-(number + 1) / 6)) + noise.normal(0, 0.01)
    values: dict[str, float] = {
        "accuracy": accuracy,
        "macro_f1": accuracy - 0.01,
        "balanced_accuracy": accuracy - 0.02,
        "ea_ratio": float(np.exp(noise.normal(2, 0.5))),
        "loss": 2.3 - 2 * accuracy,
    }
    if spec.server_average:
        values |= {f"averaged_{name}": value + 0.01 for name, value in values.items()}
    if spec.diagnose_every and number and number % spec.diagnose_every == 0:
        values |= {"client_ea_ratio": 50.0, "forgetting_rare": 0.1, "forgetting_missing": 1 - level}
    return RoundMetrics(spec.run_id, number, **values)


def look(spec: RunSpec, number: int, classes: int = len(CLASSES)) -> ClientRound:
    """Three clients, each without a sample of half of the classes."""
    noise = np.random.default_rng(number)
    counts = noise.integers(1, 40, (3, classes)) * (np.arange(classes) % 2 == np.arange(3)[:, None] % 2)
    before = noise.uniform(0.4, 0.9, (3, classes))
    before[0, 0] = np.nan
    arrays = {
        "client": np.array([4, 8, 15]),
        "class_counts": counts,
        "accuracy_before": before,
        "accuracy_after": np.where(counts > 0, before + 0.05, before - 0.3),
    }
    return ClientRound(spec.run_id, number, arrays)


def partition(dataset: str, alpha: float | None, classes: Sequence[str] = CLASSES) -> PartitionRecord:
    noise = np.random.default_rng(int(100 * (alpha or 0)))
    counts = noise.integers(0, 30, (20, len(classes))) * noise.integers(0, 2, (20, len(classes)))
    return PartitionRecord(dataset, "dirichlet", alpha, 20, 0, tuple(classes), counts)


def write_store(
    folder: Path,
    specs: Sequence[RunSpec],
    rows: Iterable[RoundMetrics] | None = None,
    *,
    diverged: Sequence[RunSpec] = (),
    unfinished: Sequence[RunSpec] = (),
    looks: bool = True,
    classes: Sequence[str] = CLASSES,
) -> Path:
    """A folder with these runs; made-up rounds 0 to the last one unless rows are given.

    Diverged runs end after 8 rounds, unfinished ones after 12.
    """
    ends = {spec.run_id: 8 for spec in diverged} | {spec.run_id: 12 for spec in unfinished}
    if rows is None:
        rows = [
            made_up(spec, number)
            for spec in specs
            for number in range(0, ends.get(spec.run_id, spec.rounds) + 1, spec.evaluate_every)
        ]
    finished = {spec.run_id: "diverged" if spec in diverged else "done" for spec in specs if spec not in unfinished}
    seen = [look(spec, number, len(classes)) for spec in specs if spec.seed == 0 for number in (10, 20)]
    places = {(spec.dataset, spec.alpha) for spec in specs}
    with Store(folder) as store:
        axes = tuple(RunSpec.__dataclass_fields__)
        store.register(specs, {spec.run_id: f"hash of {spec.dataset}" for spec in specs}, axes)
        [group] = store.create_groups([[spec.run_id for spec in specs]])
        store.claim(group.id)
        store.commit(group.id, 20, list(rows), seen if looks else (), finished=finished)
        if looks:
            store.keep_partitions([partition(dataset, alpha, classes) for dataset, alpha in sorted(places, key=str)])
    return folder


def small_store(folder: Path) -> Path:
    """The small grid with one run that diverged, one that is unfinished and one that never left chance."""
    specs = small_grid()
    paper = [spec for spec in specs if (spec.preset, spec.alpha, spec.seed) == ("paper", 0.1, 2)]
    [diverged] = [spec for spec in paper if spec.algorithm == "fedntd"]
    [unfinished] = [
        spec for spec in specs if (spec.preset, spec.alpha, spec.seed, spec.algorithm) == ("strong", 1.0, 1, "fedga")
    ]
    [stuck] = [
        spec for spec in specs if (spec.preset, spec.alpha, spec.seed, spec.algorithm) == ("paper", 1.0, 0, "fedavg")
    ]
    ends = {diverged.run_id: 8, unfinished.run_id: 12}
    rows = []
    for spec in specs:
        for number in range(ends.get(spec.run_id, 20) + 1):
            chance = RoundMetrics(spec.run_id, number, 0.1, 0.02, 0.1, 1e9, 2.3)
            rows.append(chance if spec is stuck else made_up(spec, number))
    return write_store(folder, specs, rows, diverged=[diverged], unfinished=[unfinished])


def hostile_store(folder: Path) -> Path:
    """A folder in which everything that has a name is called like an attack on the page."""
    specs = [
        RunSpec(f"{HOSTILE}.csv", alpha=0.1, algorithm=f"fedprox:mu={name}", preset=HOSTILE, rounds=20)
        for name in ("<b>1</b>", HOSTILE.replace("=", "&#61;"))
    ]
    return write_store(folder, specs, classes=[HOSTILE, "</script><script>window.hacked=3</script>", "<!--"])


def asked(folder: Path, query: str, *values: Any) -> list[tuple[Any, ...]]:
    """What SQLite says, past all of our code."""
    with closing(sqlite3.connect(folder / "results.sqlite")) as connection:
        return connection.execute(query, values).fetchall()


def last_values(folder: Path, metric: str, **settings: Any) -> list[float]:
    """The metric after round 20 of the runs with these settings that are done."""
    where = " AND ".join(f"{name} = ?" for name in settings)
    query = f"SELECT {metric} FROM metrics JOIN runs ON runs.key = run WHERE round = 20 AND status = 'done' AND {where}"
    return [value for (value,) in asked(folder, query, *settings.values())]


def mean_text(values: Sequence[float]) -> str:
    """Mean ± deviation as the page prints it."""
    return f"{statistics.mean(values):.3f}\u00a0±\u00a0{statistics.stdev(values):.3f}"
