"""`fedga run --engine flower` in processes of its own: on Ray, stopped, killed, and continued."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedga.algorithms import ALGORITHMS
from fedga.errors import FedGAError
from fedga.store.store import Store
from tests.cli.program import done, fedga
from tests.engine.runs import TELLING
from tests.flower.runs import assert_equal_results
from tests.patience import PATIENCE_S

RUNS = "run --dataset digits --clients 6 --active 2 --no-pictures --evaluate-every 1 --diagnose-every 1 --threads 1"
MARK = "FEDGA_TEST"  # inherited by everything the program starts


@contextmanager
def flower(command: str, folder: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """The program on Flower, in a process that may be killed; what it says goes to ``said.txt`` beside its folder."""
    words = [sys.executable, "-m", "fedga", *command.split(), "--engine", "flower", "--out", str(folder)]
    with folder.with_name("said.txt").open("a") as said:
        process = subprocess.Popen(
            words, env=os.environ | environment | {MARK: str(folder)}, stdout=said, stderr=said, text=True
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def said(folder: Path) -> str:
    return folder.with_name("said.txt").read_text()


def finish(command: str, folder: Path, **environment: str) -> None:
    with flower(command, folder, **environment) as process:
        assert process.wait(PATIENCE_S) == 0, said(folder)


def wait_for_rounds(process: subprocess.Popen[str], folder: Path, rounds: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while rounds_done(folder) < rounds:
        assert process.poll() is None, said(folder)
        assert time.monotonic() < deadline, said(folder)
        time.sleep(0.05)


def rounds_done(folder: Path) -> int:
    if not (folder / "results.sqlite").exists():
        return 0
    try:
        with Store(folder) as store:
            return sum(run.rounds_done for run in store.runs())
    except FedGAError as error:
        if "results.sqlite is empty" in str(error):  # as it is for a moment
            return 0
        raise


def assert_nothing_runs(folder: Path) -> None:
    """No process is left of those that the program in this folder started."""
    deadline = time.monotonic() + PATIENCE_S
    while left := [process.name for process in Path("/proc").iterdir() if is_marked(process, folder)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def is_marked(process: Path, folder: Path) -> bool:
    if not process.name.isdigit():
        return False
    try:
        return f"{MARK}={folder}".encode() in (process / "environ").read_bytes().split(b"\0")
    except OSError:  # gone meanwhile
        return False


def assert_equal_to_engine(command: str, folder: Path) -> None:
    done(f"{command} --out", folder.with_name("engine"))
    with Store(folder) as store:
        specs = [run.spec for run in store.runs()]
        assert {run.status for run in store.runs()} == {"done"}
    assert_equal_results(folder.with_name("engine"), folder, specs)


# On Ray, some that keep, survey and send; all others go through the same messages in test_equals_engine.
SOME = ("fedavg", "climb", "scaffold", "fednh")


@pytest.mark.parametrize("names", [SOME, pytest.param(tuple(ALGORITHMS), marks=pytest.mark.long)], ids=["some", "all"])
def test_algorithms_equal_the_engine(names: tuple[str, ...], tmp_path: Path) -> None:
    command = f"{RUNS} --rounds 2 --algorithm {','.join(TELLING[name] for name in names)}"
    folder = tmp_path / "flower"
    finish(command, folder)
    assert_equal_to_engine(command, folder)
    assert not (folder / "checkpoints" / "clients").exists()
    assert_nothing_runs(folder)


@pytest.mark.long
def test_killed_and_interrupted_and_continued(tmp_path: Path) -> None:
    """kill -9 leaves nothing running and Ctrl-C ends in peace; what clients keep is where it was."""
    command, folder = f"{RUNS} --rounds 20 --algorithm scaffold --server momentum", tmp_path / "flower"
    with flower(command, folder) as process:
        wait_for_rounds(process, folder, 2)
        process.kill()
        process.wait()
    assert_nothing_runs(folder)
    killed_after = rounds_done(folder)
    with flower(command, folder) as process:
        wait_for_rounds(process, folder, killed_after + 2)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130, said(folder)
    assert "the same command continues" in said(folder)
    assert_nothing_runs(folder)
    interrupted_after = rounds_done(folder)
    assert killed_after + 2 <= interrupted_after < 20
    finish(command, folder)
    assert f"after round {interrupted_after}" in said(folder)
    assert_equal_to_engine(command, folder)


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr("fedga.flower.find_spec", lambda name: None if name in ("flwr", "ray") else found(name))
    complaint = fedga(f"{RUNS} --engine flower --out", tmp_path / "nothing").complaint
    assert complaint == "running on Flower needs flwr, which is not installed: pip install 'fedga[flower]'"
    assert not (tmp_path / "nothing").exists()


def test_importing_fedga_does_not_import_flower() -> None:
    program = (
        "import sys; sys.modules['flwr'] = sys.modules['ray'] = None\n"
        "import fedga, fedga.cli, fedga.flower; fedga.simulate\n"
        "try:\n    fedga.flower.server_app\nexcept Exception as error:\n    print(error)"
    )
    outcome = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "fedga[flower]" in outcome.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--engine flour", "unknown engine 'flour': did you mean 'flower'"),
        ("--engine flower --profile", "--profile looks into the built-in engine"),
    ],
)
def test_bad_engines_are_refused(words: str, sentence: str) -> None:
    assert sentence in fedga(f"{RUNS} {words}").complaint
