"""`fedga run --profile`: what is said and written, and that nothing else changes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedga.cli import progress
from fedga.engine.profile import PHASES
from tests.cli.program import SMALL, done, fedga

STAGES = ("outside_rounds", "warm_up_rounds", "steady_rounds")
GRID = f"run {SMALL} --algorithm fedavg,climb,fedrl --server-average 0.2 --diagnose-every 2"


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """Leave the number of threads as it was: the program sets it for its whole process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def written(folder: str) -> dict[str, Any]:
    found = json.loads(Path(folder, "profile.json").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def test_table_and_file() -> None:
    outcome = done(f"{GRID} --profile --out out")
    table = outcome.err.partition("Where the time went")[2].splitlines()
    for phase in (*PHASES, "all"):
        assert sum(line.startswith(phase + " ") for line in table) == 1, phase
    assert "2 steady rounds of 3 runs at once, on cpu, 1 thread" in outcome.err
    assert "1 warm-up round" in outcome.err
    assert "MiB resident" in outcome.err
    assert "the same as numbers: out/profile.json" in outcome.err
    found = written("out")
    for name in STAGES:
        stage = found[name]
        assert list(stage["phases"]) == [phase.replace(" ", "_") for phase in PHASES]
        assert sum(each["seconds"] for each in stage["phases"].values()) == pytest.approx(stage["seconds"])
        assert sum(each["share"] for each in stage["phases"].values()) == pytest.approx(1)
    assert [found[name]["rounds"] for name in STAGES] == [0, 1, 2]
    assert [found[name]["run_rounds"] for name in STAGES] == [0, 3, 6]
    assert found["steady_rounds"]["client_steps"] > 0
    assert all(each["seconds"] > 0 for each in found["steady_rounds"]["phases"].values())
    assert found["outside_rounds"]["phases"]["data"]["seconds"] > 0
    assert (found["device"], found["threads"], found["peak_cuda_memory_bytes"]) == ("cpu", 1, None)
    assert found["peak_memory_bytes"] > 10**6


@pytest.mark.parametrize("threads", [1, 2])
def test_results_are_the_same_to_the_bit(threads: int) -> None:
    plain = done(f"{GRID} --threads {threads} --out plain")
    profiled = done(f"{GRID} --threads {threads} --profile --out profiled")
    assert profiled.out == plain.out
    assert "Where the time went" not in plain.err
    assert done("results plain --format csv").out == done("results profiled --format csv").out
    models = [load_file(path) for path in sorted(Path("plain/models").glob("*.safetensors"))]
    others = [load_file(path) for path in sorted(Path("profiled/models").glob("*.safetensors"))]
    assert len(models) == 2 * 3
    for one, other in zip(models, others, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert not Path("plain/profile.json").exists()


def test_groups_add_up() -> None:
    done(f"run {SMALL} --algorithm fedga --batch-size 8,16 --profile --out out")  # these cannot be stacked
    found = written("out")
    assert [found[name]["rounds"] for name in STAGES] == [0, 2, 4]
    assert [found[name]["run_rounds"] for name in STAGES] == [0, 2, 4]


def test_single_round() -> None:
    outcome = done(f"run {SMALL} --rounds 1 --algorithm fedga --profile --out out")
    assert "1 warm-up round of 1 run, on cpu" in outcome.err


@pytest.mark.parametrize("how", ["after the round", "at once"])
def test_interrupted_run_still_tells(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def call() -> bool:
        calls.append(1)
        if len(calls) > 3 and how == "at once":
            raise KeyboardInterrupt
        return len(calls) > 3

    monkeypatch.setattr(progress, "stop_request", lambda: nullcontext(call))
    monkeypatch.setattr(threading, "active_count", lambda: 1)  # else an interrupt ends the whole process
    stopped = fedga(f"run {SMALL} --rounds 9 --algorithm fedga --profile --out out")
    assert stopped.code == 130
    assert stopped.out == ""
    assert "2 steady rounds of 1 run, on cpu" in stopped.err
    assert written("out")["steady_rounds"]["rounds"] == 2


def test_nothing_trained_keeps_the_profile_there_is() -> None:
    command = f"run {SMALL} --algorithm fedga --profile --out out"
    done(command)
    before = written("out")
    assert "nothing was trained, so there is no profile" in done(command).err
    assert written("out") == before
