"""The process beside the training: it follows, outlives a killed trainer, and is gone at the end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from fedga import tracking as package
from fedga.errors import FedGAError
from fedga.study.sweep import Interrupted
from fedga.tracking import SERVICES, parse_services, tracking
from tests.patience import PATIENCE_S
from tests.tracking.readers import READERS, check_equal, counts, in_results, in_tensorboard
from tests.tracking.sweeps import deliver, register, train


def test_names() -> None:
    assert parse_services("wandb,mlflow, tensorboard") == ("wandb", "mlflow", "tensorboard")
    with pytest.raises(FedGAError, match=r"unknown tracker 'wandbb': did you mean 'wandb'\? \(known: mlflow, "):
        parse_services("mlflow,wandbb")
    with pytest.raises(FedGAError, match=r"unknown tracker ''"):
        parse_services("")


@pytest.mark.parametrize("service", SERVICES)
def test_package_is_missing(service: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sentence = rf"--track {service} needs {service}, which is not installed: pip install 'fedga\[track\]'"
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, service, None)
        with pytest.raises(FedGAError, match=sentence):
            parse_services(service)
    # A folder that an earlier run left where Python looks for packages is none.
    (tmp_path / service).mkdir()
    monkeypatch.delitem(sys.modules, service, raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(FedGAError, match=sentence):
        parse_services(service)


def test_no_service_is_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "_start", None)
    with tracking((), tmp_path, print):
        pass


def test_all_services_at_once(tmp_path: Path) -> None:
    folder, notices = tmp_path / "study", []
    register(folder)
    with tracking(SERVICES, folder, notices.append):
        train(folder)
    for service in SERVICES:
        check_equal(service, folder)
    assert sorted(notice for notice in notices if not notice.startswith("waiting")) == [
        f"MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri {folder}/mlflow shows the curves "
        "(where the whole mlflow package is installed)",
        f"tensorboard --logdir {folder}/tensorboard shows the curves",
        f"wandb is not logged in: after wandb login, wandb sync {folder}/wandb/offline-run-* uploads the runs",
    ]
    assert not (folder / package.LOG_NAME).exists()


def test_interrupt_passes_and_what_was_trained_is_delivered(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    register(folder)
    with pytest.raises(Interrupted), tracking(("tensorboard",), folder, print):
        train(folder, 2)
    assert counts(in_tensorboard(folder)) == counts(in_results(folder))


def test_process_that_dies_is_told(study: Path) -> None:
    started = []
    start = package._start

    def watched(*arguments: object) -> subprocess.Popen[str]:
        started.append(start(*arguments))  # type: ignore[arg-type]
        return started[0]

    notices: list[str] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(package, "_start", watched)
        with tracking(("tensorboard",), study, notices.append):
            started[0].kill()
    assert notices[-1] == (
        f"tracking ended early (code -9, see {study / package.LOG_NAME}): the same command delivers the rest"
    )
    deliver("tensorboard", study)
    check_equal("tensorboard", study)


def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(FedGAError, match="tracking cannot start"), tracking(("wandb",), tmp_path / "none", print):
        pass


# Commits every round, and hangs in the third, which is trained by then and not committed.
_TRAINER = """
import sys, time
from pathlib import Path
import torch
from fedga.study import sweep
from fedga.store.store import Store
from fedga.tracking import tracking
from tests.tracking.sweeps import AXES, SPECS, preparation, register

def hang(specs, rounds):
    if rounds[0].round == 3:
        print("hanging", flush=True)
        time.sleep(600)

sweep.COMMIT_EVERY_S = -1.0
folder = Path(sys.argv[1])
register(folder)
with Store(folder) as store, tracking(sys.argv[2:], folder, print):
    observer = sweep.Observer(advanced=hang)
    sweep.run_sweep(SPECS, store, torch.device("cpu"), axes=AXES, preparation=preparation(), observer=observer)
"""


@contextmanager
def hanging_trainer(folder: Path, services: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that hangs in the middle of a sweep; killed at the end, where it is there still."""
    command = [sys.executable, "-c", _TRAINER, str(folder), *services]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2], text=True)
    assert process.stdout is not None
    try:
        while process.stdout.readline() != "hanging\n":
            assert process.poll() is None
        yield process
    finally:
        process.kill()
        process.communicate()


def processes() -> list[str]:
    """Those that live in this test's home, by what they run: trainers, trackers, and what these started."""
    home, found = f"HOME={os.environ['HOME']}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if home in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_text())
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are looked up in /proc")
def test_trainer_is_killed(tmp_path: Path) -> None:
    """What it had committed is delivered without it, and its tracker ends; the next one goes on."""
    folder, services = tmp_path / "study", ("tensorboard", "wandb")
    with hanging_trainer(folder, services):
        assert any("fedga.tracking" in command for command in processes())
    deadline = time.monotonic() + PATIENCE_S
    while processes():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert max(at for seen in in_results(folder).values() for at, _, _ in seen.points) == 2
    for service in services:
        assert counts(READERS[service](folder)) == counts(in_results(folder))
    with tracking(services, folder, print):
        train(folder)
    for service in services:
        check_equal(service, folder)
    assert processes() == []


def test_second_interrupt_leaves_at_once(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the last rounds are delivered, Ctrl-C ends the tracker; the next command has them to deliver."""
    waited: list[float | None] = []

    def interrupted(self: threading.Thread, timeout: float | None = None) -> None:
        waited.append(timeout)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), monkeypatch.context() as patched, tracking(("mlflow",), study, print):
        patched.setattr(threading.Thread, "join", interrupted)
    assert waited == [package.PATIENCE_S]
    deliver("mlflow", study)
    check_equal("mlflow", study)
