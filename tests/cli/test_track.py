"""`--track` of the commands that train."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.program import SMALL, done, fedga


@pytest.mark.parametrize("command", [f"run {SMALL}", "paper table-80 --scale quick", "tune --rounds 1"])
def test_an_unknown_service_is_refused_before_anything_is_loaded(command: str, tmp_path: Path) -> None:
    assert "unknown tracker 'tensorbord'" in fedga(f"{command} --track tensorbord --out", tmp_path / "out").complaint
    assert not (tmp_path / "out").exists()


def test_a_run_is_followed_and_a_file_can_say_so(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text('track = "tensorboard"\n')
    done(f"run {SMALL} --algorithm fedavg --config {tmp_path / 'study.toml'} --out", tmp_path / "out")
    [run] = [path for path in (tmp_path / "out" / "tensorboard").iterdir() if path.is_dir()]
    assert run.name.startswith("digits α=0.1 fedavg seed 0")
    assert any(run.glob("events*"))
