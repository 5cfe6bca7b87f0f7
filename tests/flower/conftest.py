"""Nothing on Flower waits in real time: who sleeps between two looks at the replies moves a clock of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedga.flower.server import exchange, remote, roster
from tests.flower.three_sites import Federation, write_files


class Clock:
    """Seconds that were slept."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(exchange, "now", clock.now)
    monkeypatch.setattr(exchange, "sleep", clock.sleep)
    return clock


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "TRY_AGAIN_AFTER_S", 0.0)
    monkeypatch.setattr(roster, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(roster, "ASK_AGAIN_AFTER_S", 0.05)


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    write_files(folder)
    return folder


@pytest.fixture
def federation(files: Path, tmp_path: Path) -> Federation:
    return Federation(files, tmp_path)
