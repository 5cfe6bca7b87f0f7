"""A metric that fedga.toml names is measured, kept and shown wherever the built-in ones are."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
import torch

from fedga import FedGAError, simulate
from fedga.data import load_dataset, make_federation
from fedga.engine.evaluation.evaluate import Evaluation
from fedga.measures import scores
from fedga.measures.columns import COLUMNS
from fedga.report.curves import read_curves
from fedga.store.records import METRICS
from tests.cli.program import SMALL, fedga

# The same number as a built-in one, so that every place it arrives at can be checked.
TWIN = """
from fedga.measures import scores

def twin(evaluation):
    return scores.accuracy(evaluation.confusion.double())
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "fedga.toml").write_text('[metrics]\ntwin = "twin.py:twin"\n')
    (tmp_path / "twin.py").write_text(TWIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDGA_PROJECT", "")  # so that what the program puts there is gone afterwards
    return tmp_path


def rows(folder: Path) -> list[dict[str, str]]:
    outcome = fedga("results --format csv", folder)
    assert outcome.code == 0, outcome
    return list(csv.DictReader(io.StringIO(outcome.out)))


def test_it_stands_beside_the_built_in_ones_everywhere(project: Path) -> None:
    outcome = fedga(f"run {SMALL} --algorithm fedavg,fedga --server-average 0.1 --out results")
    assert outcome.code == 0, outcome
    assert "twin" in outcome.out
    found = rows(Path("results"))
    assert len(found) == 6
    assert all(row["twin"] == row["accuracy"] for row in found)
    assert all(row["averaged_twin"] == row["averaged_accuracy"] for row in found)
    for curve in read_curves("results"):
        assert curve.metric("twin").tolist() == curve.metric("accuracy").tolist()
    assert fedga("archive results small").code == 0
    assert [row["twin"] for row in rows(Path("small"))] == [row["accuracy"] for row in rows(Path("small"))]
    assert fedga("report results").code == 0
    assert "twin" in Path("results/report.html").read_text()


def test_a_folder_from_before_the_metric_gets_a_column_with_gaps(project: Path) -> None:
    (project / "fedga.toml").rename(project / "later.toml")
    assert fedga(f"run {SMALL} --algorithm fedavg --out results").code == 0
    assert "twin" not in rows(Path("results"))[0]
    (project / "later.toml").rename(project / "fedga.toml")
    assert fedga(f"run {SMALL} --algorithm fedavg,fedga --out results").code == 0
    by_algorithm = {row["algorithm"]: row["twin"] for row in rows(Path("results"))}
    assert by_algorithm["fedavg"] == ""
    assert by_algorithm["fedga"] != ""


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("return evaluation.loss.mean()", "metric twin gave shape [] for 2 models: return a tensor with one number"),
        ("return evaluation.confusion", "metric twin gave shape [2, 2, 2] for 2 models"),
        ("return 0.5", "metric twin gave a float for 2 models"),
        ("return evaluation.accuracy", "metric twin failed (AttributeError: 'Evaluation' object has no attribute"),
    ],
)
def test_a_wrong_metric_is_refused_before_anything_is_trained(project: Path, body: str, complaint: str) -> None:
    (project / "twin.py").write_text(f"def twin(evaluation):\n    {body}\n")
    assert fedga(f"run {SMALL} --out results").complaint.startswith(complaint)
    assert not Path("results").exists()


def test_the_names_that_cannot_be_had_are_those_that_are_recorded() -> None:
    assert set(COLUMNS) == {*METRICS, "client_accuracy"}


def test_a_built_in_name_is_refused(project: Path) -> None:
    (project / "fedga.toml").write_text('[metrics]\naccuracy = "twin.py:twin"\n')
    assert "accuracy is the name of a built-in metric" in fedga(f"run {SMALL} --out results").complaint


def test_a_name_of_the_averaged_model_is_refused(project: Path) -> None:
    """`averaged_twin` is where twin of the averaged model is recorded."""
    (project / "fedga.toml").write_text('[metrics]\ntwin = "twin.py:twin"\naveraged_twin = "twin.py:twin"\n')
    complaint = fedga(f"run {SMALL} --server-average 0.1 --out results").complaint
    assert complaint.startswith("metric averaged_twin: averaged_ begins the names of")
    assert not Path("results").exists()


def test_simulate_takes_functions(project: Path) -> None:
    federation = make_federation(load_dataset("digits"), clients=5, seed=0, alpha=0.5)

    def worst_recall(evaluation: Evaluation) -> torch.Tensor:
        return scores.recall(evaluation.confusion).amin(-1)

    result = simulate(federation, rounds=2, active=2, metrics={"worst-recall": worst_recall})
    assert all(0 <= row["worst-recall"] <= row["balanced_accuracy"] for row in result.rounds)
    with pytest.raises(FedGAError, match="one number per model"):
        simulate(federation, rounds=1, active=2, metrics={"worst": lambda evaluation: evaluation.loss.sum()})
