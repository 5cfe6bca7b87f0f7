"""wandb with a login: runs go to the server, and are continued there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedga.study.sweep import Interrupted
from tests.tracking.readers import in_results
from tests.tracking.sweeps import deliver, train
from tests.tracking.wandb_server import WandbServer, serving


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    with serving() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", "0123456789" * 4)
        yield server


def logged(server: WandbServer) -> dict[str, list[tuple[int, str, float]]]:
    return {
        name.partition("-")[0]: sorted(
            (values["_step"], key, float(value))
            for values in map(json.loads, lines)
            for key, value in values.items()
            if key[0] != "_"
        )
        for name, lines in server.history.items()
    }


def test_continued_on_the_server(server: WandbServer, tmp_path: Path) -> None:
    """The server's last rounds may be lost with a killed process: they come from the results, and no others twice."""
    folder = tmp_path / "study"
    with pytest.raises(Interrupted):
        train(folder, 2)
    assert deliver("wandb", folder) == [f"{server.url}/me/fedga shows the curves"]
    assert set(server.exits.values()) == {0, 1, 255}  # ended, diverged, interrupted
    name = next(name for name, code in server.exits.items() if code == 255 and server.steps(name) == [1, 2])
    del server.history[name][-1:]
    train(folder)
    assert deliver("wandb", folder) == [f"{server.url}/me/fedga shows the curves"]
    stored = {run_id: sorted(seen.points) for run_id, seen in in_results(folder).items()}
    assert logged(server) == {run_id: points for run_id, points in stored.items() if points}
    assert sorted(server.exits.values()) == [0] * 6 + [1]


def test_server_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The results stay, and one sentence says what to do."""
    train(tmp_path / "study", None)
    with serving() as server:
        gone = server.url
    monkeypatch.setenv("WANDB_BASE_URL", gone)
    monkeypatch.setenv("WANDB_API_KEY", "0123456789" * 4)
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "1")
    [notice] = deliver("wandb", tmp_path / "study")
    assert notice.startswith("tracking with wandb stopped (")
    assert notice.endswith("and the same command delivers to wandb what it lacks")
