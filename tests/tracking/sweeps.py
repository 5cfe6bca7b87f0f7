"""A small real sweep to be tracked, and ways to stop it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from fedga.engine.server import LaneRound
from fedga.spec.settings import RunSpec
from fedga.store.store import Store
from fedga.study.prepare import Preparation
from fedga.study.sweep import Observer, run_sweep
from fedga.tracking.follower import follow

ROUNDS = 4
AXES = ("lr", "rounds", "evaluate_every", "server_average")


def make_spec(**values: object) -> RunSpec:
    defaults = {"dataset": "digits", "alpha": 0.1, "clients": 10, "active": 2, "batch_size": 16, "rounds": ROUNDS}
    return RunSpec(**{**defaults, "diagnose_every": 2, **values})  # type: ignore[arg-type]


# Two algorithms and seeds, one that diverges, one that ends early, rounds without evaluation, averaged models.
SPECS = [
    *(make_spec(algorithm=algorithm, seed=seed) for algorithm in ("fedavg", "fedprox:mu=0.01") for seed in (0, 1)),
    make_spec(algorithm="fedavg", lr=1e30),
    make_spec(algorithm="fedavg", rounds=2, preset="paper"),
    make_spec(algorithm="fedga", evaluate_every=3, server_average=0.2),
]


@cache
def preparation() -> Preparation:
    return Preparation(SPECS)


def register(folder: Path) -> None:
    with Store(folder) as store:
        store.register(SPECS, preparation().fingerprints(SPECS), AXES)


def train(folder: Path, limit: int | None = None) -> None:
    """All of it, or until ``limit`` rounds are trained."""
    done: list[int] = []

    def count(specs: Sequence[RunSpec], rounds: Sequence[LaneRound]) -> None:
        done.append(rounds[0].round)

    observer = Observer(advanced=count, should_stop=lambda: limit is not None and len(done) >= limit)
    with Store(folder) as store:
        run_sweep(SPECS, store, torch.device("cpu"), axes=AXES, preparation=preparation(), observer=observer)


def deliver(service: str, folder: Path) -> list[str]:
    """What there is by now, as a process does that is told to stop; returns the notices."""
    stop, notices = threading.Event(), []
    stop.set()
    follow(service, folder, stop, notices.append)
    return notices
