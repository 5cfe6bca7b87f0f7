"""`fedga run`: a grid of settings in, a table and a folder out."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedga.cli import _program, console, progress
from fedga.engine.engine import Engine
from fedga.engine.server import LaneRound
from fedga.store.store import Store
from fedga.study import sweep
from tests.cli.program import SMALL, done, fedga

METRICS = ["accuracy", "macro_f1", "balanced_accuracy", "ea_ratio", "loss"]
COLUMNS = ["dataset", "alpha", "algorithm", "preset", "server", "seed", "round", *METRICS]
AVERAGED = [f"averaged_{name}" for name in METRICS]


def read_csv(folder: str | Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(done("results --format csv", folder).out)))


def read_json(folder: str | Path) -> list[dict[str, Any]]:
    rows = json.loads(done("results --format json", folder).out)
    assert isinstance(rows, list)
    return rows


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Algorithm, seed and round of everything that is trained from here on."""
    seen: list[tuple[str, int, int]] = []
    run_round = Engine.run_round

    def noted(self: Engine) -> list[LaneRound]:
        result = run_round(self)
        seen.extend((lane.spec.algorithm, lane.spec.seed, self.round) for lane in self.lanes)
        return result

    monkeypatch.setattr(Engine, "run_round", noted)
    return seen


# Results


def test_grid_and_its_results() -> None:
    outcome = done(f"run {SMALL} --algorithm fedavg,fedga --alpha 0.1,1 --seeds 0-1 --out out")
    table = done("results out --summary").out
    assert outcome.out == table  # the run ends with the table that `fedga results` prints
    for text in ("α", "algorithm", "accuracy", "macro F1", "balanced accuracy", "EA ratio", "fedavg", "fedga"):
        assert text in table
    rows = read_json("out")
    assert list(rows[0]) == COLUMNS
    assert len(rows) == 2 * 2 * 2 * 3
    wanted = [
        (alpha, name, seed, at)
        for alpha in (0.1, 1)
        for name in ("fedavg", "fedga")
        for seed in (0, 1)
        for at in (1, 2, 3)
    ]
    assert [(row["alpha"], row["algorithm"], row["seed"], row["round"]) for row in rows] == wanted
    assert {(row["dataset"], row["preset"], row["server"]) for row in rows} == {("digits", "", "sgd")}
    assert all(0 <= row[name] <= 1 for row in rows for name in METRICS[:3])
    as_text = read_csv("out")
    assert list(as_text[0]) == COLUMNS
    assert [[float(row[name]) for name in METRICS] for row in as_text] == [
        [row[name] for name in METRICS] for row in rows
    ]


def test_averaged_columns_where_the_server_averages() -> None:
    done(f"run {SMALL} --algorithm fedga --server-average 0,0.2 --out out")
    rows = read_json("out")
    assert list(rows[0]) == [*COLUMNS, *AVERAGED, "server_average"]
    assert all(row["averaged_accuracy"] is None for row in rows if not row["server_average"])
    assert all(0 <= row["averaged_accuracy"] <= 1 for row in rows if row["server_average"])
    done(f"run {SMALL} --algorithm fedga --server-average 0.2 --out averaged")
    assert list(read_csv("averaged")[0]) == [*COLUMNS, *AVERAGED]


def test_what_tells_runs_apart_is_a_column() -> None:
    done(f"run {SMALL} --algorithm fedga --lr 0.05,0.1 --out out")
    rows = read_csv("out")
    assert list(rows[0]) == [*COLUMNS, "lr"]
    assert sorted({row["lr"] for row in rows}) == ["0.05", "0.1"]


def test_evaluating_now_and_then() -> None:
    done(f"run {SMALL} --algorithm fedga --rounds 5 --evaluate-every 2 --out out")
    assert [row["round"] for row in read_json("out")] == [2, 4, 5]


def test_summary_shows_forgetting_and_pictures_are_drawn() -> None:
    command = "run --dataset digits --rounds 4 --clients 10 --active 4 --threads 1 --diagnose-every 2 --out out"
    outcome = done(command)
    assert "lost on missing" in outcome.out
    assert "pictures: out/figures" in outcome.err
    names = {path.name for path in Path("out/figures").iterdir()}
    drawn = ("overview", "accuracy", "ea-ratio", "forgetting", "clients-fedavg", "clients-fedga")
    assert names == {f"{name}.{kind}" for name in drawn for kind in ("png", "svg")}
    assert all(path.stat().st_size > 1000 for path in Path("out/figures").iterdir())


# Settings and where they come from


def table_lines(err: str) -> dict[str, tuple[str, str]]:
    """Setting -> value and source, of the table at the start."""
    lines = (line.rstrip() for line in err.splitlines())
    cells = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]
    return {row[0]: (row[1], row[2]) for row in cells if len(row) == 3}


def test_table_says_where_values_came_from() -> None:
    Path("study.toml").write_text('dataset = "digits"\nrounds = 2\nlr = 0.3\nalgorithm = "fedga"\n', encoding="utf-8")
    outcome = done("run --config study.toml --preset strong --lr 0.2 --active 2 --no-pictures --out out")
    lines = table_lines(outcome.err)
    assert lines["lr"] == ("0.2", "--lr")  # a flag wins over the file
    assert lines["rounds"] == ("2", "study.toml")  # the file wins over the preset
    assert lines["algorithm"] == ("fedga", "study.toml")
    assert lines["server"] == ("momentum", "preset strong")
    assert lines["server_average"] == ("0.05", "preset strong")
    assert lines["standardize"] == ("true", "preset strong")
    assert lines["clients"] == ("20", "preset strong (digits)")
    assert lines["active"] == ("2", "--active")
    assert lines["partition"] == ("dirichlet", "default")
    assert lines["alpha"] == ("0.1", "default")
    assert outcome.err.index("setting") < outcome.err.index("1 run on cpu; results go to out")


def test_settings_file_says_the_same_as_flags() -> None:
    Path("study.toml").write_text(
        'dataset = "digits"\nrounds = 3\nclients = 10\nactive = 2\nalgorithm = ["fedavg", "fedprox:mu=0.1"]\n'
        'seeds = "0-1"\nlr-schedule = "cosine"\nstandardize = true\nevaluate-every = 1\nout = "from_file"\n',
        encoding="utf-8",
    )
    done("run --config study.toml --no-pictures --threads 1")
    done(
        f"run {SMALL} --algorithm fedavg,fedprox:mu=0.1 --seeds 0,1 --lr-schedule cosine --standardize --out from_flags"
    )
    assert read_csv("from_file") == read_csv("from_flags")


def test_presets_side_by_side() -> None:
    done(f"run {SMALL} --preset paper,strong --algorithm fedga --out out")
    rows = read_json("out")
    assert list(rows[0]) == [*COLUMNS, *AVERAGED]
    assert {(row["preset"], row["server"]) for row in rows} == {("paper", "sgd"), ("strong", "momentum")}
    with Store("out") as store:
        strong = next(run.spec for run in store.runs() if run.spec.preset == "strong")
    assert (strong.lr_schedule, strong.weight_decay, strong.server_average, strong.standardize) == (
        "cosine",
        0.001,
        0.05,
        True,
    )


def test_switches_need_no_value() -> None:
    done(f"run {SMALL} --preset strong --no-standardize --algorithm fedga --out off")
    done(f"run {SMALL} --standardize --algorithm fedga --out on")
    for folder, wanted in (("off", False), ("on", True)):
        with Store(folder) as store:
            assert [run.spec.standardize for run in store.runs()] == [wanted]


def test_data_set_by_another_spelling() -> None:
    done(f"run {SMALL.replace('digits', 'Digits')} --algorithm fedga --out out")
    assert {row["dataset"] for row in read_json("out")} == {"digits"}


# Doing nothing twice


def test_finished_runs_are_not_repeated(trained: list[tuple[str, int, int]]) -> None:
    command = f"run {SMALL} --algorithm fedga --seeds 0-1 --out out"
    first = done(command)
    assert sorted(set(trained)) == [("fedga", seed, at) for seed in (0, 1) for at in (1, 2, 3)]
    trained.clear()
    again = done(command)
    assert trained == []
    assert "2 runs on cpu, 2 of them finished already; results go to out" in again.err
    assert "1 run on cpu, which has finished already; results" in done(command.replace("0-1", "0")).err
    assert again.out == first.out
    before = read_csv("out")
    done(f"run {SMALL} --algorithm fedga --seeds 0-2 --out out")
    assert trained == [("fedga", 2, at) for at in (1, 2, 3)]
    assert [row for row in read_csv("out") if row["seed"] != "2"] == before


def test_default_folder_is_the_same_for_the_same_command(trained: list[tuple[str, int, int]]) -> None:
    done(f"run {SMALL} --algorithm fedga")
    [folder] = Path("runs").iterdir()
    assert folder.name.startswith("digits-")
    trained.clear()
    done(f"run --algorithm fedga {SMALL}")  # the order of flags is no setting
    assert trained == []
    assert list(Path("runs").iterdir()) == [folder]
    done(f"run {SMALL} --algorithm fedavg")
    assert len(list(Path("runs").iterdir())) == 2


# Saved models


@pytest.mark.parametrize("averaged", [False, True])
def test_saved_model_has_the_last_rounds_numbers(averaged: bool) -> None:
    command = f"run {SMALL} --algorithm fedga,fedavg --preset strong --seeds 0-1 --out out"
    done(command)
    rows = {(row["algorithm"], row["seed"]): row for row in read_json("out") if row["round"] == 3}
    paths = [path for path in Path("out/models").glob("*.safetensors") if path.stem.endswith("-averaged") == averaged]
    assert len(paths) == 4
    prefix = "averaged_" if averaged else ""
    for path in paths:
        beside = json.loads(Path(str(path).removesuffix(".safetensors") + ".json").read_text(encoding="utf-8"))
        row = rows[beside["algorithm"], beside["seed"]]
        for extra in ("", " --dataset digits"):
            found = json.loads(done(f"evaluate --format json{extra}", path).out)
            assert {name: found[name] for name in METRICS} == {name: row[prefix + name] for name in METRICS}
        assert len(found["class_accuracy"]) == 10


def test_evaluation_as_a_table() -> None:
    done(f"run {SMALL} --algorithm fedga --out out")
    [path] = Path("out/models").glob("*.safetensors")
    text = done("evaluate", path).out
    [last] = [row for row in read_json("out") if row["round"] == 3]
    assert "fedga, trained on digits for 3 rounds, on the test split of digits" in text
    assert f"{last['accuracy']:.4f}" in text
    assert "accuracy on class 9" in text
    assert path.stat().st_mode & 0o777 == Path("out/results.sqlite").stat().st_mode & 0o777  # readable by the same


def test_classes_of_other_names_are_pointed_out() -> None:
    inputs = np.random.default_rng(0).integers(0, 16, (40, 1, 8, 8), np.uint8)
    for name, classes in (("one", ["cat", "dog"]), ("two", ["pear", "plum"])):
        np.savez(f"{name}.npz", x=inputs, y=np.array(classes)[np.arange(40) % 2])
    done("run --dataset one.npz --rounds 1 --clients 4 --active 2 --algorithm fedga --no-pictures --out out")
    [path] = Path("out/models").glob("*.safetensors")
    assert done("evaluate --dataset one.npz", path).err == ""
    assert "the classes of two have other names" in done("evaluate --dataset two.npz", path).err


# Data of the user's own


@pytest.fixture
def hospitals() -> str:
    """A table with a label, features and the hospital every sample comes from."""
    random = np.random.default_rng(0)
    features = random.normal(size=(90, 3)).astype(np.float32)
    lines = [
        f"{a},{b},{c},{'ill' if place % 3 else 'well'},{('north', 'south', 'west')[place % 7 % 3]}"
        for place, (a, b, c) in enumerate(features)
    ]
    Path("table.csv").write_text("\n".join(["a,b,c,diagnosis,hospital", *lines]) + "\n", encoding="utf-8")
    return "--dataset table.csv --label-column diagnosis --client-column hospital"


def test_table_with_natural_clients(hospitals: str) -> None:
    outcome = done(f"run {hospitals} --rounds 2 --algorithm fedga --no-pictures --out out")
    lines = table_lines(outcome.err)
    assert lines["partition"] == ("natural", "--client-column")
    assert lines["active"] == ("3", "default, or all clients")
    with Store("out") as store:
        [run] = store.runs()
    assert (run.spec.partition, run.spec.active, run.spec.clients, run.spec.alpha) == ("natural", 3, None, None)
    [path] = Path("out/models").glob("*.safetensors")
    for given in ("--dataset table.csv", "--dataset ./table.csv", hospitals):
        found = json.loads(done(f"evaluate --format json {given}", path).out)
        assert found["accuracy"] == read_json("out")[-1]["accuracy"]
    assert set(found["class_accuracy"]) == {"ill", "well"}


def test_natural_clients_beside_drawn_ones(hospitals: str) -> None:
    command = f"run {hospitals} --partition natural,iid --clients 4 --rounds 1 --algorithm fedga --no-pictures"
    outcome = fedga(f"{command} --active 10")
    assert outcome.code == 2
    assert "--active" in outcome.complaint
    done(command)  # ten active clients is the default: three hospitals and four clients all take part


def test_arrays_and_picture_folders() -> None:
    random = np.random.default_rng(0)
    np.savez(
        "own.npz",
        train_x=random.normal(size=(60, 4)).astype(np.float32),
        train_y=np.arange(60) % 3,
        test_x=random.normal(size=(12, 4)).astype(np.float32),
        test_y=np.arange(12) % 3,
    )
    for place in range(40):
        path = Path("pictures", "cat" if place % 2 else "dog", f"{place}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (8, 8, 3), np.uint8)).save(path)
    command = "--rounds 2 --clients 4 --active 2 --algorithm fedga,fedavg --no-pictures --out out"
    done(f"run --dataset own.npz,pictures {command}")
    assert {row["dataset"] for row in read_json("out")} == {"own.npz", "pictures"}
    for path in Path("out/models").glob("*.safetensors"):
        name = "own.npz" if path.name.startswith("own") else "pictures"
        assert "accuracy" in json.loads(done(f"evaluate --format json --dataset {name}", path).out)


def test_network_of_the_users_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, input_shape, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(input_shape[0] * input_shape[1] * input_shape[2], num_classes))

class Short(Net):
    def __init__(self, input_shape, num_classes):
        super().__init__(input_shape, num_classes - 1)

class Broken(Net):
    def forward(self, inputs):
        raise KeyError("weights")
"""
    Path("here.py").write_text(source, encoding="utf-8")  # in the folder she works in
    package = tmp_path / "packages" / "elsewhere"
    package.mkdir(parents=True)
    (package / "nets.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setattr(sys, "path", [*sys.path])
    done(f"run {SMALL} --model here:Net,elsewhere.nets:Net --algorithm fedga --out out")
    rows = read_json("out")
    assert {row["model"] for row in rows} == {"here:Net", "elsewhere.nets:Net"}
    for path in Path("out/models").glob("*.safetensors"):
        name = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["model"]
        found = json.loads(done(f"evaluate --format json --model {name}", path).out)
        assert found["accuracy"] == rows[-1]["accuracy"]
    short = fedga(f"run {SMALL} --model here:Short").complaint
    assert "model here:Short gives outputs of shape (9,) where 10 classes are to be told apart" in short
    broken = fedga(f"run {SMALL} --model here:Broken").complaint
    assert "model here:Broken cannot read samples of shape 1×8×8 (KeyError: 'weights')" in broken
    assert "parameters" in done("algorithms --model here:Net").out


# What is said, and where


def test_results_alone_go_to_standard_output() -> None:
    outcome = done(f"run {SMALL} --algorithm fedga --out out")
    assert outcome.out.splitlines()[0].startswith("digits, α = 0.1")
    assert "setting" not in outcome.out
    assert "results go to" in outcome.err
    assert "every round: fedga results out --format csv; trained models: out/models" in outcome.err
    assert done("results out --format csv").err == ""


def test_plain_stream_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LOG_EVERY_S", -1.0)
    outcome = done(f"run {SMALL} --algorithm fedga,fedavg --out out")
    lines = [line for line in outcome.err.splitlines() if "rounds; accuracy" in line]
    assert [line.split(";")[0] for line in lines] == ["2 of 6 rounds", "4 of 6 rounds", "6 of 6 rounds"]
    assert "fedga 0." in lines[-1]
    assert "fedavg 0." in lines[-1]


def test_names_are_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    console.say("fedprox:x: [bold]of[/bold] [1]")
    assert capsys.readouterr().err == "fedprox:x: [bold]of[/bold] [1]\n"


def test_continued_runs_of_another_command_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group goes on as a whole, also for the one run of it that a command asks for."""
    command = f"run {SMALL} --algorithm fedga --rounds 6"
    done(f"{command} --seeds 0-2 --out whole")
    with _stopping_after(monkeypatch, rounds=2):
        assert fedga(f"{command} --seeds 0-2 --out out").code == 130
    monkeypatch.setattr(progress, "LOG_EVERY_S", -1.0)
    outcome = done(f"{command} --seeds 1 --out out")
    assert "continuing 3 runs after round 2" in outcome.err
    assert "6 of 6 rounds; accuracy" in outcome.err
    assert "7 of" not in outcome.err
    assert read_csv("out") == read_csv("whole")


@contextmanager
def _stopping_after(monkeypatch: pytest.MonkeyPatch, rounds: int) -> Iterator[None]:
    """As if Ctrl-C were pressed in that round."""
    calls: list[int] = []
    stop_request = progress.stop_request

    @contextmanager
    def request() -> Iterator[Callable[[], bool]]:
        def call() -> bool:
            calls.append(1)
            return asked() or len(calls) > rounds

        with stop_request() as asked:
            yield call

    with monkeypatch.context() as patched:
        patched.setattr(progress, "stop_request", request)
        yield


def test_stop_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    command = f"run {SMALL} --algorithm fedga --rounds 5 --out out"
    with _stopping_after(monkeypatch, rounds=2):
        stopped = fedga(command)
    assert (stopped.code, stopped.out) == (130, "")
    assert stopped.err.splitlines()[-1] == (
        "fedga: stopped; everything so far is in out, and the same command continues"
    )
    assert [row["round"] for row in read_json("out")] == [1, 2]
    assert "1 of 1 unfinished" in done("results out --summary").out
    assert "continuing 1 run after round 2" in done(command).err
    assert [row["round"] for row in read_json("out")] == [1, 2, 3, 4, 5]


def test_stopping_at_once_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(self: Engine) -> list[LaneRound]:
        raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "run_round", pressed)
    command = f"run {SMALL} --algorithm fedga --out out"
    with pytest.MonkeyPatch.context() as alone:
        alone.setattr(threading, "active_count", lambda: 1)
        outcome = fedga(command)
    assert (outcome.code, outcome.err.splitlines()[-1]) == (130, "fedga: interrupted")
    ended: list[int] = []
    with pytest.MonkeyPatch.context() as busy:
        busy.setattr(threading, "active_count", lambda: 3)
        busy.setattr(os, "_exit", ended.append)
        fedga(command)
    assert ended == [130]


def test_waiting_for_another_process_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "POLL_EVERY_S", 0.0)
    held = iter([False, False, True])
    claim = Store.claim
    monkeypatch.setattr(Store, "claim", lambda self, group: next(held) and claim(self, group))
    outcome = done(f"run {SMALL} --algorithm fedga --out out")
    assert outcome.err.count("another process is training the runs that are left") == 1
    assert len(read_csv("out")) == 3


# The other commands


def test_version() -> None:
    assert done("--version").out.startswith("fedga ")


def test_help_of_run_names_settings_and_choices() -> None:
    text = done("run --help").out
    for word in ("--algorithm", "--lr-schedule", "--server-average", "--client-column", "fedntd", "resnet20", "cosine"):
        assert word in text
    assert done("run -h").out == text


def test_the_table_of_results_has_a_row_per_run_and_round() -> None:
    done(f"run {SMALL} --algorithm fedga,fedavg --out out")
    header, *rows = done("results out").out.splitlines()
    assert header.split() == COLUMNS
    assert len(rows) == 6
    assert fedga("results out --summary --format csv").code == 2


@pytest.mark.parametrize("flags", ["--data digits --seed 0", "--datasets=digits --seeds 0", "--dataset digits"])
def test_every_spelling_of_a_flag_is_the_same_run(flags: str) -> None:
    small = SMALL.replace("--dataset digits ", "")
    done(f"run {small} --rounds 1 --algorithms fedga {flags} --out out")
    done(f"run {SMALL} --rounds 1 --algorithm fedga --seeds 0 --out out")
    assert len(json.loads(done("results out --format json").out)) == 1


def test_help_shows_one_flag_for_one_thing_in_few_words() -> None:
    program = _program()
    for name in ("run", "results", "archive", "unpack", "repair", "evaluate", "algorithms"):
        for option in program.commands[name].params:
            assert sum(flag.startswith("--") for flag in option.opts) <= 1, option.opts
            words = (getattr(option, "help", "") or "").partition(": ")[0].split()
            assert len(words) <= 12, (name, option.opts, words)
