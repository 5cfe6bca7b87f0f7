"""`fedga algorithms` and `fedga data`."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

from fedga.algorithms import ALGORITHMS, make_algorithm
from fedga.cli.commands.run import NAMES
from fedga.data import SOURCES
from fedga.errors import needs_extra
from fedga.models import MODELS
from fedga.report import figures
from tests.cli.program import done, fedga


def test_algorithms_say_what_they_cost() -> None:
    table = done("algorithms").out
    for name in ALGORITHMS:
        assert name in table
    rows = json.loads(done("algorithms --format json").out)
    assert {row["algorithm"] for row in rows} == set(ALGORITHMS)
    by_name = {row["algorithm"]: row for row in rows}
    parameters = 784 * 128 + 128 + 128 * 10 + 10
    assert by_name["scaffold"]["extra_up_bytes"] == 4 * parameters
    assert by_name["fedga"]["extra_up_bytes"] == 0
    text = done("algorithms --format csv").out
    assert "\r" not in text
    assert [row["algorithm"] for row in csv.DictReader(io.StringIO(text))] == [row["algorithm"] for row in rows]
    assert next(csv.DictReader(io.StringIO(text)))["options"] == ""


def test_a_rule_that_is_named_shows_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDGA_PROJECT", "")
    rule = (
        '"""A rule of mine. Slow."""\nprint("ran")\nfrom fedga.selection import Selection\nclass Mine(Selection): ...\n'
    )
    Path("rule.py").write_text(rule)
    Path("fedga.toml").write_text('[selections]\nmine = "rule.py:Mine"\n')
    listed = done("algorithms").out
    assert "--select mine" in listed
    assert "rule.py" in listed
    assert "ran" not in listed.split()
    named = done("algorithms select:mine,bandit").out
    assert "What each algorithm adds" not in named
    assert "A rule of mine" in " ".join(named.split())
    assert "explore=0.8" in named
    [row] = json.loads(done("algorithms bandit --format json").out)
    assert row["setting"] == "--select bandit"


def test_algorithms_are_filtered_by_what_they_ask_for() -> None:
    rows = {row["algorithm"]: row for row in json.loads(done("algorithms --format json").out)}
    secure = {row["algorithm"] for row in json.loads(done("algorithms --secure-aggregation --format json").out)}
    assert secure == {name for name, row in rows.items() if row["sums_suffice"]} < rows.keys()
    silent = {row["algorithm"] for row in json.loads(done("algorithms --sends nothing --format json").out)}
    sizes = ("extra_up_bytes", "extra_down_bytes", "survey_down_bytes", "final_up_bytes")
    assert silent == {name for name, row in rows.items() if not any(row[size] for size in sizes)}
    assert "fedga" in silent & secure
    assert "--select bandit" not in (table := done("algorithms --secure-aggregation").out)
    assert "--select in-turn" in table
    assert " no " not in "".join(line for line in table.splitlines() if line.split()[:1] == ["scaffold"])
    nobody = done("algorithms climb --secure-aggregation")
    assert (nobody.out, nobody.err.count("none of them is as you ask")) == ("", 1)
    assert json.loads(done("algorithms climb --sends nothing --format json").out) == []
    assert "did you mean 'nothing'" in fedga("algorithms --sends noting").complaint


def test_algorithms_are_checked_with_options(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[object] = []
    monkeypatch.setattr("fedga.testing.check_algorithm", lambda algorithm: checked.append(algorithm) or ["good"])
    assert done("algorithms --check fedprox:mu=0.1").out == "good\n"
    done("algorithms --check fedprox")
    assert checked == [make_algorithm("fedprox", mu=0.1), "fedprox"]
    assert "unknown option of fedprox 'nu'" in fedga("algorithms --check fedprox:nu=1").complaint


def test_evaluate_prints_json_for_a_class_without_test_samples() -> None:
    random = np.random.default_rng(0)
    labels = np.arange(40) % 3
    splits = {"y_train": labels, "y_test": labels[labels < 2]}
    splits |= {f"x_{split}": random.normal(size=(len(splits[f"y_{split}"]), 4)) for split in ("train", "test")}
    np.savez(
        "own.npz",
        **{name: values.astype(np.float32 if name[0] == "x" else np.int64) for name, values in splits.items()},
    )
    done("run --dataset own.npz --rounds 1 --clients 2 --active 2 --algorithm fedavg --no-pictures --out results")
    [model] = Path("results/models").glob("*.safetensors")
    found = json.loads(done("evaluate --format json --dataset own.npz", model).out, parse_constant=pytest.fail)
    assert found["class_accuracy"]["2"] is None
    assert found["accuracy"] is not None


def test_algorithms_of_another_network() -> None:
    rows = json.loads(done("algorithms --format json --model lenet --shape 3x32x32 --classes 100").out)
    scaffold = next(row for row in rows if row["algorithm"] == "scaffold")
    assert scaffold["extra_up_bytes"] > 4 * 60_000
    assert "lenet" in done("algorithms --model lenet --shape 3x32x32 --classes 100").out


def test_data_list_says_what_is_here() -> None:
    lines = done("data list").out.splitlines()
    for name in SOURCES:
        [line] = [line for line in lines if line.split()[:1] == [name]]
        assert ("yes" in line.split()) == (name == "digits")


def test_data_get_of_what_is_here() -> None:
    assert done("data get digits").err == "digits is here: 1,438 training and 359 test samples\n"


def test_data_show_draws_who_holds_what() -> None:
    outcome = done("data show digits --alpha 0.1 --clients 5")
    assert outcome.out.startswith("digits: 5 clients, dirichlet, α = 0.1, seed 0\n")
    assert "a client lacks" in outcome.err
    assert sorted(path.name for path in Path().iterdir()) == [
        f"digits-dirichlet-alpha0.1.{kind}" for kind in ("png", "svg")
    ]
    done("data show digits --alpha 0.5 --clients 5 --seed 3")  # another α is another picture
    done("data show digits --partition shards --clients 5 --out shown/by.shards.png")
    names = {str(path) for path in Path().rglob("*.png")}
    assert names == {"digits-dirichlet-alpha0.1.png", "digits-dirichlet-alpha0.5.png", "shown/by.shards.png"}


def test_data_show_knows_the_clients_of_a_table() -> None:
    lines = [f"{place},{place % 2},{('north', 'south', 'west')[place % 3]}" for place in range(60)]
    Path("table.csv").write_text("\n".join(["x,label,hospital", *lines]) + "\n", encoding="utf-8")
    outcome = done("data show table.csv --client-column hospital")
    assert outcome.out.startswith("table: 3 clients, natural, seed 0\n")
    assert "south" in outcome.out


def test_data_show_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "label_heatmap", _no_matplotlib)
    outcome = done("data show digits --clients 5")
    assert "digits: 5 clients" in outcome.out
    assert "no picture: drawing needs matplotlib" in outcome.err


def _no_matplotlib(*_: object, **__: object) -> None:
    raise needs_extra("matplotlib", "report", "drawing")


def test_data_folder_by_flag_file_and_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    shape = SOURCES["mnist"].shape[1:]
    for prefix, count in (("train", 60), ("t10k", 20)):
        images = np.random.default_rng(count).integers(0, 256, (count, *shape), np.uint8)
        for kind, array in (("images-idx3", images), ("labels-idx1", (np.arange(count) % 10).astype(np.uint8))):
            header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
            (data / f"{prefix}-{kind}-ubyte").write_bytes(header + array.tobytes())
    command = "run --dataset mnist --rounds 1 --clients 4 --active 2 --algorithm fedga --no-pictures"
    done(f"{command} --data-dir {data} --out flag")
    Path("study.toml").write_text(f'data_dir = "{data}"\n', encoding="utf-8")
    with monkeypatch.context() as patched:
        patched.setenv("FEDGA_DATA", str(tmp_path / "nowhere"))  # the file wins over the variable
        done(f"{command} --config study.toml --out file")
    monkeypatch.setenv("FEDGA_DATA", str(data))
    done(f"{command} --out variable")
    assert "yes" in next(line for line in done("data list").out.splitlines() if line.startswith("mnist")).split()
    found = {done(f"results {folder} --format csv").out for folder in ("flag", "file", "variable")}
    assert len(found) == 1


def test_names_in_the_help_are_the_registered_ones() -> None:
    """They are written out there because importing the registries means importing torch."""
    assert set(NAMES["algorithm"]) == set(ALGORITHMS)
    assert set(NAMES["model"]) - {"package.module:Class"} == set(MODELS)
