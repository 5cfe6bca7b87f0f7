"""`--adjust` of `fedga evaluate` and `fedga diagnose`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedga.data import load_dataset, make_federation
from tests.cli.program import SMALL, done, fedga


def read(command: str, *paths: Path) -> dict[str, Any]:
    return json.loads(done(f"{command} --format json", *paths).out, parse_constant=pytest.fail)


@pytest.fixture
def model() -> Path:
    done(f"run {SMALL} --alpha 0.1 --rounds 10 --seeds 0 --algorithm fedavg --model mlp --lr 0.1 --out out")
    [path] = Path("out/models").glob("*.safetensors")
    return path


def test_a_saved_model_is_adjusted_by_what_its_clients_hold(model: Path) -> None:
    plain, found = read("evaluate", model), read("evaluate --adjust", model)
    adjusted = found.pop("adjusted")
    assert found == plain
    held = make_federation(load_dataset("digits"), "dirichlet", clients=10, alpha=0.1, seed=0).class_counts.sum(0)
    assert list(adjusted["class_counts"].values()) == held.tolist()
    assert adjusted["class_accuracy"] != plain["class_accuracy"]
    diagnosed = read("diagnose --adjust --no-page", model)  # another way to the same numbers
    for result, scores in ((diagnosed, adjusted), (diagnosed["before"], plain)):
        recalls = [row["accuracy"] for row in result["classes"]]
        np.testing.assert_allclose(recalls, list(scores["class_accuracy"].values()), rtol=1e-6)
    half = read(f"evaluate --adjust 0.5 --prior {','.join(map(str, held))}", model)["adjusted"]
    assert half == read("evaluate --adjust .5", model)["adjusted"]
    for nothing in ("--adjust 0", f"--adjust --class-counts {','.join('9' * 10)}"):
        same = read(f"evaluate {nothing}", model)["adjusted"]
        assert same == {**same, **{name: value for name, value in plain.items() if name in same}}
    table = done("evaluate --adjust", model).out
    assert "adjusted, τ = 1" in table
    assert "as it is" in table
    assert "fedga: there are 2 class counts for 10 classes" in fedga("evaluate --adjust --class-counts 1,2", model).err
    assert "give --adjust too" in fedga("evaluate --class-counts 1,2", model).complaint


def test_predictions_are_adjusted_and_compared_side_by_side() -> None:
    rows = ["cat,0.8,0.2", "cat,0.95,0.05", "dog,0.7,0.3", "dog,0.92,0.08"]
    Path("p.csv").write_text("\n".join(["label,cat,dog", *rows]) + "\n", encoding="utf-8")
    found = read("diagnose --adjust p.csv --class-counts cat=900,dog=100")
    # p of dog above a tenth is more than its share: the threshold of Elkan
    assert [row["accuracy"] for row in found["classes"]] == [0.5, 0.5]
    assert [row["accuracy"] for row in found["before"]["classes"]] == [1.0, 0.0]
    assert "Before and after the adjustment" in Path("p-diagnosis.html").read_text(encoding="utf-8")
    table = done("diagnose p.csv --adjust --prior 900,100 --no-page").out
    assert [line.split() for line in table.splitlines() if "recognised of dog" in line] == [
        ["recognised", "of", "dog", "100", "0.0", "%", "50.0", "%"]
    ]
    for text in ("-1", "x", "nan", "1e9"):
        assert "--adjust must be a number of at least 0" in fedga(f"diagnose p.csv --adjust {text}").complaint
    assert "give them with --class-counts" in fedga("diagnose p.csv --adjust").complaint
