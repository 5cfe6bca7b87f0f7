"""Services that see nothing of the user's own set-up, and leave nothing behind."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedga.tracking import SERVICES
from tests.tracking.sweeps import train


@pytest.fixture(autouse=True)
def alone(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A home of its own, no login, no server; wandb's helper process ends with the test."""
    home = tmp_path_factory.mktemp("home")
    for name in [name for name in os.environ if name.startswith(("WANDB_", "MLFLOW_"))]:
        monkeypatch.delenv(name)
    for name in ("HOME", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(home))
    monkeypatch.setenv("NETRC", str(home / "netrc"))
    monkeypatch.setenv(
        "MLFLOW_DISABLE_TELEMETRY", "true"
    )  # the services set these themselves, and would leave them set
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("WANDB_SILENT", "true")
    yield
    if "wandb" in sys.modules:
        sys.modules["wandb"].teardown()


@pytest.fixture(params=SERVICES)
def service(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "study"
    train(folder)
    return folder


@pytest.fixture
def study(trained: Path, tmp_path: Path) -> Path:
    """The results of a whole sweep, to be tracked."""
    return Path(shutil.copytree(trained, tmp_path / "study"))
