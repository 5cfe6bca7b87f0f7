"""`fedga diagnose` on files of predictions and on saved models."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedga.cli.console import out
from tests.cli.program import done, fedga, files
from tests.diagnosis.made_up import made_up, rows_of, write_csv, write_npz

SKEWED = made_up(3000, skew=1.5)


@pytest.fixture
def predictions() -> Path:
    return write_csv(Path("some.csv"), rows_of(SKEWED))


def refused(command: str, *arguments: str | os.PathLike[str]) -> str:
    before = files(Path())
    complaint = fedga(command, *arguments).complaint
    assert files(Path()) == before
    return complaint


def test_files_of_predictions_need_no_torch(predictions: Path) -> None:
    """Which takes longer to import than most of them to read."""
    program = "import sys; sys.modules['torch'] = None; from fedga.cli import main; main()"
    command = [sys.executable, "-c", program, "diagnose", str(predictions)]
    assert b"the page: some-diagnosis.html" in subprocess.run(command, check=True, capture_output=True).stderr


def test_page_table_and_files(predictions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out, "width", 400)
    outcome = done(f"diagnose {predictions}")
    assert outcome.out.startswith("Yes: this model forgets the rare class “melanoma”, missed ")
    assert "EA ratio" in outcome.out
    assert "the page: some-diagnosis.html" in outcome.err
    assert sorted(path.name for path in Path().glob("some-diagnosis*")) == [
        "some-diagnosis-cells.csv",
        "some-diagnosis-classes.csv",
        "some-diagnosis-numbers.json",
        "some-diagnosis-sites.csv",
        "some-diagnosis.html",
    ]


def test_json_is_what_is_beside_the_page(predictions: Path) -> None:
    printed = json.loads(done(f"diagnose {predictions} --format json --out here/page.html").out)
    assert printed == json.loads(Path("here/page-numbers.json").read_text(encoding="utf-8"))
    assert printed["format"] == "fedga-diagnosis-1"
    assert printed["verdict"] == "forgotten"


def test_without_a_page_nothing_is_written(predictions: Path) -> None:
    before = files(Path())
    done(f"diagnose {predictions} --no-page")
    assert files(Path()) == before


def test_fails_above_a_ratio(predictions: Path) -> None:
    ratio = json.loads(done(f"diagnose {predictions} --no-page --format json").out)["ea_ratio"]
    assert fedga(f"diagnose {predictions} --no-page --fail-above {ratio + 1}").code == 0
    outcome = fedga(f"diagnose {predictions} --no-page --fail-above {ratio - 1}")
    assert outcome.code == 1
    assert "is above --fail-above" in outcome.err


@pytest.mark.parametrize("form", ["text", "csv", "json", "sites"])
def test_class_counts_in_every_form(predictions: Path, form: str) -> None:
    given = {"nevus": 900, "keratosis": 90, "melanoma": 9}
    counts = ",".join(f"{name}={count}" for name, count in given.items())
    if form == "csv":
        counts = str(write_csv(Path("counts.csv"), [["class", "count"], *map(list, given.items())]))
    elif form == "json":
        Path(counts := "counts.json").write_text(json.dumps(given), encoding="utf-8")
    elif form == "sites":
        rows = [[f"site {site}", name, count / 3] for site in range(3) for name, count in given.items()]
        counts = str(write_csv(Path("counts.csv"), [["site", "class", "count"], *rows]))
    printed = json.loads(done(f"diagnose {predictions} --no-page --format json --class-counts {counts}").out)
    assert [row["trained_on"] for row in printed["classes"]] == [900, 90, 9]
    assert [row["bound_high"] for row in printed["classes"]] == pytest.approx([0.1, 10, 100])


def test_class_counts_that_name_something_twice(predictions: Path) -> None:
    counts = "nevus=1,keratosis=2,melanoma=3"
    assert "names 'nevus' twice" in refused(f"diagnose {predictions} --class-counts {counts},nevus=5")
    rows = [["class", "count"], ["nevus", 1], ["keratosis", 2], ["melanoma", 3], ["nevus", 5]]
    write_csv(Path("counts.csv"), rows)
    assert "counts.csv names 'nevus' twice" in refused(f"diagnose {predictions} --class-counts counts.csv")
    write_csv(Path("counts.csv"), [["site", " class", " count"], *(["site 1", *row] for row in rows[1:])])
    assert "counts.csv at site 1 names 'nevus' twice" in refused(f"diagnose {predictions} --class-counts counts.csv")
    Path("counts.json").write_text('{"nevus": 1, "keratosis": 2, "melanoma": 3, "nevus": 5}', encoding="utf-8")
    assert "counts.json names 'nevus' twice" in refused(f"diagnose {predictions} --class-counts counts.json")


def test_logits_and_columns() -> None:
    shifted = write_npz(Path("some.npz"), made_up(500))
    arrays = dict(np.load(shifted))
    np.savez("logits.npz", **arrays | {"probs": np.log(arrays["probs"]) - 7})
    command = "diagnose {} --no-page --format json"
    plain = json.loads(done(command.format("some.npz")).out)
    found = json.loads(done(command.format("logits.npz") + " --logits").out)
    assert found["ea_ratio"] == pytest.approx(plain["ea_ratio"])
    assert json.loads(done(command.format("some.npz") + " --site-column none").out)["sites"] == []


def test_no_errors_at_all_are_said_without_a_table() -> None:
    np.savez("perfect.npz", probs=np.eye(3)[[0, 1, 2] * 30], labels=[0, 1, 2] * 30)
    outcome = done("diagnose perfect.npz --no-page")
    assert outcome.out == "No: this model makes no errors at all here, so that none can be uneven.\n"


def test_a_reader_that_has_seen_enough(predictions: Path) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    command = [sys.executable, "-m", "fedga", "diagnose", predictions, "--no-page"]
    ended = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, check=False)
    os.close(theirs)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_bad_options(predictions: Path) -> None:
    assert "unknown format 'jsn'" in refused(f"diagnose {predictions} --format jsn")
    assert "--fail-above must be" in refused(f"diagnose {predictions} --fail-above 0.5")
    assert "to which --dataset means nothing" in refused(f"diagnose {predictions} --dataset digits")
    assert "to which --device means nothing" in refused(f"diagnose {predictions} --device foo")
    assert "is neither a .csv or .json file nor a list" in refused(f"diagnose {predictions} --class-counts 3,x")
    assert "counts.json does not exist" in refused(f"diagnose {predictions} --class-counts counts.json")
    assert "leave out 'melanoma'" in refused(f"diagnose {predictions} --class-counts nevus=3,keratosis=1")
    assert "must end in .html" in refused(f"diagnose {predictions} --out page.pdf")
    assert "which is a folder" in refused(f"diagnose {predictions} --out .")
    assert "does not exist" in refused("diagnose nowhere.csv")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (["site 1", "nevus", 0.5, 0.5, 0.5], "sum to 1.5, not to 1"),
        (["site 1", "nevus", 1.5, -0.5, 0.0], "the probability -0.5"),
        (["site 1", "nevus", "nan", 0.5, 0.5], "has no number"),
        (["site 1", "wart", 0.5, 0.5, 0.0], "has label 'wart', which is no class"),
        (["site 1", 3, 0.5, 0.5, 0.0], "has label '3', which is no class"),
    ],
)
def test_malformed_predictions_write_nothing(row: list[object], said: str) -> None:
    path = write_csv(Path("some.csv"), [*rows_of(SKEWED), row])
    complaint = refused(f"diagnose {path}")
    assert said in complaint
    assert "row 3,001 of some.csv" in complaint


def test_a_folder_that_may_not_be_written_to_is_refused_before_reading(
    predictions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("locked").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "locked")
    assert "no folder that may be written to" in refused(f"diagnose {predictions} --out locked/page.html")


# Saved models

SMALL = "--rounds 2 --threads 1 --algorithm fedavg --no-pictures --out run"


def patients(path: Path, seed: int = 0) -> Path:
    draws = np.random.default_rng(seed)
    rows: list[list[object]] = [["age", "size", "diagnosis", "hospital"]]
    for hospital, shares in (("Aarhus", [0.9, 0.1]), ("Basel", [1.0, 0.0]), ("Cork", [0.5, 0.5])):
        chosen = draws.choice(2, 200, p=shares)
        rows += [[*(draws.normal(size=2) + ill).round(3), ("healthy", "ill")[ill], hospital] for ill in chosen]
    return write_csv(path, rows)


@pytest.fixture
def own_model() -> Path:
    patients(Path("patients.csv"))
    columns = "--label-column diagnosis --client-column hospital --partition natural"
    done(f"run --dataset patients.csv {columns} {SMALL}")
    [path] = Path("run/models").glob("*.safetensors")
    return path


def test_a_model_on_the_data_it_was_trained_on(own_model: Path) -> None:
    printed = json.loads(done("diagnose --format json --out page.html --dataset patients.csv", own_model).out)
    evaluated = json.loads(done("evaluate --format json --dataset patients.csv", own_model).out)
    assert printed["ea_ratio"] == pytest.approx(evaluated["ea_ratio"], rel=1e-4)
    assert printed["accuracy"] == pytest.approx(evaluated["accuracy"])
    assert [row["site"] for row in printed["sites"]] == ["Aarhus", "Basel", "Cork"]
    with open("patients.csv", encoding="utf-8") as file:
        ill = [row["hospital"] for row in csv.DictReader(file) if row["diagnosis"] == "ill"]
    trained = {row["class"]: row["trained_on"] for row in printed["classes"]}
    assert trained["ill"] == len(ill) - len(ill) // 5  # every fifth is held out
    cells = Path("page-cells.csv").read_text(encoding="utf-8")
    assert "Basel,healthy" in cells
    assert "Basel,ill" not in cells
    for spelling in ("patients.csv", "./patients.csv"):
        again = done(f"diagnose --format json --no-page --dataset {spelling} --label-column diagnosis", own_model)
        assert json.loads(again.out)["ea_ratio"] == printed["ea_ratio"]


def test_a_model_on_other_data(own_model: Path) -> None:
    """Those it was trained on lie at a path that its file names, which is not opened."""
    patients(Path("others.csv"), seed=1)
    command = "diagnose --format json --no-page --dataset others.csv --label-column diagnosis --client-column hospital"
    printed = json.loads(done(command, own_model).out)
    assert printed["samples"] == sum(row["trained_on"] for row in printed["classes"]) == 600
    assert printed["training_counts"] == "counted among the labels of others"
    assert any("a path that a file names is not opened." in note for note in printed["notes"])
    assert not any("training samples" in note for note in printed["notes"])
    assert [row["site"] for row in printed["sites"]] == ["Aarhus", "Basel", "Cork"]


@pytest.mark.parametrize(
    "damage",
    [lambda path: path.write_text("\n"), lambda path: path.write_text(path.read_text().replace("ill", "sick"))],
)
def test_named_data_that_changed_are_not_said_to_be_trained_on(damage: Callable[[Path], object]) -> None:
    """A data set of the project file may be named by a model's file; its code is the user's own."""
    patients(Path("patients.csv"))
    code = "from fedga.data import load_dataset\ndef load(folder):\n    return load_dataset('patients.csv', "
    Path("wards.py").write_text(f"{code}label_column='diagnosis', client_column='hospital')\n", encoding="utf-8")
    Path("fedga.toml").write_text('[datasets]\nwards = "wards.py:load"\n', encoding="utf-8")
    done(f"run --dataset wards --partition natural {SMALL}")
    [path] = Path("run/models").glob("*.safetensors")
    patients(Path("others.csv"), seed=1)
    command = "diagnose --format json --no-page --dataset others.csv --label-column diagnosis --client-column hospital"
    assert "held by the clients of the run" in json.loads(done(command, path).out)["training_counts"]
    damage(Path("patients.csv"))
    printed = json.loads(done(command, path).out)
    assert printed["training_counts"] == "counted among the labels of others"
    assert any("in place of those it was trained on" in note for note in printed["notes"])


def test_a_model_on_columns_in_another_order_or_of_other_names(own_model: Path) -> None:
    with open("patients.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    places = [at for at, name in enumerate(rows[0]) if name not in ("diagnosis", "hospital")]
    swapped = [*range(len(rows[0]))]
    swapped[places[0]], swapped[places[1]] = places[1], places[0]
    write_csv(Path("swapped.csv"), [[row[at] for at in swapped] for row in rows])
    write_csv(
        Path("renamed.csv"),
        [[f"new {name}" if at == places[1] else name for at, name in enumerate(rows[0])], *rows[1:]],
    )
    for command in ("diagnose", "evaluate"):
        for other in ("swapped.csv", "renamed.csv"):
            complaint = refused(
                f"{command} --label-column diagnosis --client-column hospital --dataset {other}", own_model
            )
            assert "give the same columns in the same order" in complaint


def test_data_that_only_have_the_name_of_those_it_was_trained_on(own_model: Path) -> None:
    patients(Path("patients.csv"), seed=1)
    for command in ("diagnose", "evaluate"):
        assert "it was trained on 'patients.csv', and a path that a file names is not opened" in refused(
            command, own_model
        )
    command = (
        "diagnose --format json --no-page --dataset patients.csv --label-column diagnosis --client-column hospital"
    )
    assert "the run on patients" not in json.loads(done(command, own_model).out)["training_counts"]


def test_a_model_of_simulated_clients() -> None:
    done(f"run --dataset digits --clients 5 --active 2 --alpha 0.1 {SMALL}")
    [path] = Path("run/models").glob("*.safetensors")
    printed = json.loads(done("diagnose --format json --out page.html", path).out)
    assert [row["site"] for row in printed["sites"]] == [f"client {number}" for number in range(5)]
    evaluated = json.loads(done("evaluate --format json", path).out)
    assert printed["ea_ratio"] == pytest.approx(evaluated["ea_ratio"], rel=1e-4)


def test_bad_models(own_model: Path) -> None:
    assert "there is no model file" in refused("diagnose nowhere.safetensors")
    assert "to which --logits means nothing" in refused("diagnose --logits", own_model)
    assert "to which --class-counts means nothing" in refused("diagnose --class-counts a=1,b=2", own_model)
    assert "give the data set it was trained for" in refused("diagnose --dataset digits", own_model)
    assert "does not exist" in refused("diagnose --dataset nowhere.csv", own_model)
    Path("bad.safetensors").write_bytes(own_model.read_bytes()[:200])
    assert "is not a whole safetensors file" in refused("diagnose bad.safetensors")
