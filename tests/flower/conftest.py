"""Nothing on Flower waits in real time: who sleeps between two looks at the replies moves a clock of its own."""

from __future__ import annotations

import pytest

from fedga.flower import exchange


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
