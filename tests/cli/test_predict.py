"""`fedga predict` and `fedga export`: files of new samples in, files that `fedga diagnose` reads out."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import fedga as library
from fedga.data import load_dataset
from fedga.diagnosis import diagnose
from tests.cli.program import SMALL, done, fedga

HEADER = ("age", "pressure", "sugar")


def write_table(path: Path, rows: int, columns: tuple[str, ...] = (*HEADER, "illness", "ward")) -> np.ndarray:
    """Rows whose age says the class; the features in the order of HEADER."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(rows, 3)).round(3) + np.arange(rows)[:, None] % 2 * [3, 0, 0]
    cells = dict(zip(HEADER, features.T.tolist(), strict=True))
    cells |= {"illness": ["well", "ill"] * (rows // 2), "ward": list("aab" * rows)[:rows], "id": list(range(rows))}
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([columns, *zip(*(cells[name] for name in columns), strict=True)])
    return features


@pytest.fixture
def model() -> Path:
    write_table(Path("train.csv"), 60)
    data = "--dataset train.csv --label-column illness --client-column ward --partition natural"
    done(
        f"run {data} --model mlp --algorithm fedga --active 2 --rounds 2 --seeds 0 --threads 1 --no-pictures --out out"
    )
    [path] = Path("out/models").glob("*.safetensors")
    return path


@pytest.fixture
def digits() -> Path:
    done(f"run {SMALL} --alpha 0.1 --seeds 0 --algorithm fedavg --model mlp --lr 0.1 --out digits")
    [path] = Path("digits/models").glob("*.safetensors")
    return path


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def probabilities(rows: list[dict[str, str]]) -> np.ndarray:
    return np.array([[float(value) for name, value in row.items() if name.startswith("p_")] for row in rows])


def test_a_table_is_read_by_the_names_of_its_columns(model: Path) -> None:
    features = write_table(Path("new.csv"), 8, ("sugar", "id", "age", "pressure"))
    outcome = done("predict", model, "new.csv")
    rows, trained = rows_of(outcome.out), library.load_model(model)
    assert list(rows[0]) == ["predicted", "p_ill", "p_well"]
    expected = trained.predict_proba(features)
    np.testing.assert_allclose(probabilities(rows), expected, rtol=1e-6, atol=1e-9)
    assert [row["predicted"] for row in rows] == trained.predict(features).tolist()
    assert "not used" in outcome.err
    assert "id" in outcome.err


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
def test_diagnose_reads_what_predict_writes(kind: str, model: Path) -> None:
    features = write_table(Path("new.csv"), 20)
    done("predict", model, "new.csv", "--out", f"predictions.{kind}")
    found = json.loads(done(f"diagnose predictions.{kind} --no-page --format json").out)
    trained = library.load_model(model)
    labels, wards = ["well", "ill"] * 10, list("aab" * 7)[:20]
    expected = diagnose(trained.predict_proba(features), labels, wards, trained.class_names).to_dict()
    for part in ("classes", "sites"):
        assert len(found[part]) == len(expected[part]) == 2
    assert (
        [each["samples"] for each in found["classes"]] == [each["samples"] for each in expected["classes"]] == [10, 10]
    )
    assert found["ea_ratio"] == pytest.approx(expected["ea_ratio"], rel=1e-6)


def test_labels_that_are_not_filled_in_are_left_out(model: Path) -> None:
    Path("new.csv").write_text("age,pressure,sugar,illness\n1,2,3,ill\n1,2,3,\n", encoding="utf-8")
    rows = rows_of(done("predict", model, "new.csv").out)
    assert len(rows) == 2
    assert list(rows[0]) == ["predicted", "p_ill", "p_well"]


def test_thresholds_move_as_in_evaluate(digits: Path) -> None:
    dataset = load_dataset("digits")
    np.savez("new.npz", x=dataset.test_inputs, y=dataset.test_targets)
    rows = rows_of(done("predict", digits, "new.npz", "--adjust", "1").out)
    right = np.mean([row["predicted"] == row["label"] for row in rows])
    measured = json.loads(done("evaluate --adjust 1 --format json", digits).out)["adjusted"]["accuracy"]
    assert right == pytest.approx(measured, abs=1e-9)


def test_pictures_have_the_names_of_their_files(digits: Path) -> None:
    images = pytest.importorskip("PIL.Image")
    dataset = load_dataset("digits")
    for at, label in enumerate(dataset.test_targets[:6].tolist()):
        path = Path(f"pictures/{label}/{at}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        images.fromarray(dataset.test_inputs[at, 0]).save(path)
    rows = rows_of(done("predict", digits, "pictures").out)
    expected = library.load_model(digits).predict_proba(dataset.test_inputs[:6])
    order = [int(Path(row["file"]).stem) for row in rows]
    assert sorted(order) == list(range(6))
    np.testing.assert_allclose(probabilities(rows), expected[order], rtol=1e-6, atol=1e-9)
    assert [row["label"] for row in rows] == [str(dataset.test_targets[at]) for at in order]


def test_bad_files_get_a_sentence(model: Path) -> None:
    Path("renamed.csv").write_text("age,pressure,glucose\n1,2,3\n", encoding="utf-8")
    assert "sugar (columns it has" in fedga("predict", model, "renamed.csv").complaint
    Path("hole.csv").write_text("age,pressure,sugar\n1,,3\n", encoding="utf-8")
    assert "'pressure'" in fedga("predict", model, "hole.csv").complaint
    np.savez("wide.npz", x=np.zeros((2, 5)))
    assert "[samples, 3]" in fedga("predict", model, "wide.npz").complaint
    assert "does not exist" in fedga("predict", model, "nowhere.csv").complaint
    assert "ends in none of" in fedga("predict", model, "train.csv", "--out", "p.txt").complaint
    assert "unknown format" in fedga("export", model, "--format", "torchscript").complaint


def test_export_gives_the_probabilities_of_predict(model: Path) -> None:
    features = write_table(Path("new.csv"), 8, HEADER)
    done("export", model, "--out", "model.pt2")
    program = torch.export.load("model.pt2").module()
    expected = probabilities(rows_of(done("predict", model, "new.csv").out))
    found = program(torch.from_numpy(features).float()).numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert json.loads(Path("model.json").read_text(encoding="utf-8"))["feature_names"] == list(HEADER)
