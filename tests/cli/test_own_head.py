"""Runs whose clients keep their own head have no global accuracy: the clients' own is shown, and called so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.program import SMALL, done, fedga

OWN_HEAD = '''"""FedPer."""
from dataclasses import dataclass
from fedga.algorithms import Algorithm

@dataclass(frozen=True)
class OwnHead(Algorithm):
    """FedPer: every client keeps its head."""
    def travels(self, parameters):
        return [name for name in parameters.shapes if name not in parameters.head]
'''


@pytest.fixture(autouse=True)
def _project(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("fedga.toml").write_text('[algorithms]\nown = "own.py:OwnHead"\n')
    Path("own.py").write_text(OWN_HEAD)
    monkeypatch.setenv("FEDGA_PROJECT", "")


@pytest.mark.parametrize("beside", ["", ",fedavg"])
def test_client_accuracy_is_shown_where_there_is_no_global_one(beside: str) -> None:
    small = SMALL.replace("--no-pictures", "")
    outcome = fedga(f"run {small} --algorithm own{beside} --out results --track tensorboard")
    assert outcome.code == 0, outcome
    assert "client accuracy" in outcome.out
    assert "no pictures" not in outcome.err
    drawn = {path.stem for path in Path("results/figures").glob("*.png")}
    assert {"overview", "client-accuracy"} <= drawn
    assert ("accuracy" in drawn) == bool(beside)
    done("report results --out page.html --files")
    page = Path("page.html").read_text()
    assert ("ccuracy of clients&#39; own models after the last round" in page) == (not beside)
    assert "client accuracy" in page
    assert "client accuracy" in done("results results --summary").out
    for how in ("table", "csv", "json"):
        assert "client_accuracy" in done(f"results results --format {how}").out
