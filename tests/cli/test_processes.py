"""Processes that are killed, interrupted, or work side by side: the results are those of one left in peace."""

from __future__ import annotations

import csv
import io
import os
import pty
import random
import re
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

from fedga.errors import FedGAError
from fedga.spec.settings import RunSpec
from fedga.store.store import RoundMetrics, Store
from fedga.study.model_files import load_model
from tests.cli.program import SMALL, done, split, start, trained
from tests.patience import PATIENCE_S

# Two lengths, a rate that diverges, state on the server and at the clients, averaged models, class-wise looks.
VARIED = (
    "run --dataset digits --clients 10 --active 2 --threads 1 --no-pictures --algorithm fedga,scaffold "
    "--rounds 12,25 --lr 0.1,1e30 --server momentum --server-average 0.1 --diagnose-every 5"
)


def rounds_done(folder: str) -> int:
    """The last round that is safe in the folder."""
    try:
        with Store(folder) as store:
            return max((run.rounds_done for run in store.runs()), default=0)
    except FedGAError:  # nothing is there yet
        return 0


def check_models_equal(folder: str, other: str) -> None:
    """The same models to the last bit, under the same names."""
    paths = sorted(Path(folder, "models").iterdir())
    assert [path.name for path in paths] == sorted(path.name for path in Path(other, "models").iterdir())
    for path in paths:
        if path.suffix == ".safetensors":
            model, twin = load_model(path), load_model(Path(other, "models", path.name))
            assert model.spec == twin.spec
            for name, tensor in model.model.state_dict().items():
                assert torch.equal(tensor, twin.model.state_dict()[name])


@pytest.mark.parametrize("rounds", [(13,), pytest.param((1, 5, 13, 20), marks=pytest.mark.long)], ids=len)
def test_killed_again_and_again(rounds: tuple[int, ...], tmp_path: Path) -> None:
    done(f"{VARIED} --out whole")
    log, pause = tmp_path / "log.txt", random.Random(time.time_ns())
    for target in rounds:
        process = start(f"{VARIED} --out out", log)
        process.until(lambda target=target: rounds_done("out") >= target)  # type: ignore[misc]
        time.sleep(pause.uniform(0, 0.02))  # anywhere in the rounds and commits that follow
        process.kill()
    assert start(f"{VARIED} --out out", log).wait() == 0
    assert "continuing" in log.read_text(encoding="utf-8")
    assert done("results out --format csv").out == done("results whole --format csv").out
    check_models_equal("out", "whole")
    assert list(Path("out/checkpoints").iterdir()) == []
    assert done("results out").out == done("results whole").out


def test_ctrl_c_saves_and_the_same_command_continues(tmp_path: Path) -> None:
    command, log = f"run {SMALL} --algorithm fedga --rounds 1000000 --out out", tmp_path / "log.txt"
    first = start(command, log)
    first.until(lambda: rounds_done("out") >= 3)
    first.signal(signal.SIGINT)
    assert first.wait() == 130
    assert log.read_text(encoding="utf-8").splitlines()[-2:] == [
        "stopping after this round; press Ctrl-C again to stop at once",
        "fedga: stopped; everything so far is in out, and the same command continues",
    ]
    reached = rounds_done("out")
    second = start(command, log)
    second.until(lambda: rounds_done("out") > reached)
    assert f"continuing 1 run after round {reached}" in second.err
    second.signal(signal.SIGTERM)
    assert second.wait() == 130
    seen = trained(log)
    assert len(seen) == len(set(seen)) == rounds_done("out")  # no round was lost, none was trained twice
    with Store("out") as store:
        assert [run.status for run in store.runs()] == ["pending"]


def test_two_processes_share_a_folder(tmp_path: Path) -> None:
    command = f"run {SMALL} --algorithm fedga,fedavg --batch-size 8,16,32 --seeds 0-1 --rounds 8"
    done(f"{command} --out whole")
    log = tmp_path / "log.txt"
    both = [start(f"{command} --out out", log) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0], both[0].err
    assert done("results out --format csv").out == done("results whole --format csv").out
    check_models_equal("out", "whole")
    counts = Counter(trained(log))
    assert len(counts) == 12 * 8
    assert set(counts.values()) == {1}


def test_work_of_a_killed_process_is_taken_over_by_one_that_waits(tmp_path: Path) -> None:
    command, log = f"run {SMALL} --algorithm fedga --rounds 60 --out out", tmp_path / "log.txt"
    first = start(command, log)
    first.until(lambda: rounds_done("out") >= 2)
    second = start(command, log)
    second.until(lambda: "another process is training" in second.err or rounds_done("out") == 60)
    first.kill()
    assert second.wait() == 0
    assert rounds_done("out") == 60
    assert len(list(csv.reader(io.StringIO(done("results out --format csv").out)))) == 61


# The installed program, from its first import to its last word


@pytest.fixture
def program() -> list[str]:
    return [sys.executable, "-m", "fedga"]


def test_reader_that_has_seen_enough(program: list[str]) -> None:
    spec = RunSpec(dataset="digits", alpha=0.1, rounds=9000)
    with Store("out") as store:  # far more than a pipe holds
        store.register([spec], {spec.run_id: "data"})
        [group] = store.create_groups([[spec.run_id]])
        store.claim(group.id)
        store.commit(group.id, 9000, [RoundMetrics(spec.run_id, at, accuracy=at / 9000) for at in range(1, 9001)])
    process = subprocess.Popen(
        [*program, "results", "out", "--format", "csv"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"dataset,alpha")
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait() == 141


def test_stream_without_greek_letters(program: list[str]) -> None:
    done(f"run {SMALL} --algorithm fedga --out out")
    plain = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    command = [*program, "results", "out", "--summary"]
    shown = subprocess.run(command, env=plain, capture_output=True, check=True, text=True)
    assert shown.stdout.startswith("digits, ? = 0.1")
    assert shown.stderr == ""


def test_terminal_shows_live_accuracy(program: list[str]) -> None:
    """Progress is drawn where standard error is a terminal; standard output gets the table alone."""
    ours, theirs = pty.openpty()
    command = [*program, *split(f"run {SMALL} --algorithm fedga,fedavg --rounds 150 --out out")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=theirs, stdin=theirs, env={**os.environ, "TERM": "xterm"}
    ) as process:
        os.close(theirs)
        drawn = _read_terminal(ours)
        assert process.stdout is not None
        table = process.stdout.read().decode()
    os.close(ours)
    assert process.returncode == 0, drawn
    assert re.search(r"training.*\d+/300.*rounds", drawn)
    assert re.search(r"fedga 0\.\d{3}  fedavg 0\.\d{3}|fedavg 0\.\d{3}  fedga 0\.\d{3}", drawn)
    assert "results go to out" in drawn
    assert table == done("results out --summary").out


def _read_terminal(descriptor: int) -> str:
    """All that is written to a terminal until its last writer is gone, without control sequences."""
    parts, deadline = [], time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if not select.select([descriptor], [], [], 1)[0]:
            continue
        try:
            part = os.read(descriptor, 65_536)
        except OSError:  # Linux says so when the other end is closed
            break
        if not part:
            break
        parts.append(part)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", b"".join(parts).decode("utf-8", "replace"))
