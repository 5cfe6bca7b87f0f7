"""A file that somebody sends names built-in things or nothing: it chooses no code to run and no file to open."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from fedga.common.sealed import seal, unseal
from fedga.spec.settings import RunSpec
from fedga.store.database import seal_everything
from tests.cli.program import SMALL, done, fedga
from tests.hostile.audit import watched

CALLS = ("subprocess:call", "os:system", "builtins:exec", "torch.hub:load", "runpy:run_path", "importlib:import_module")
ARGUMENTS: tuple[Any, ...] = (["sh", "-c", "touch PWNED"], ["touch PWNED"], [1, 8, 8])
FIELDS = ("model", "dataset", "algorithm", "label_column", "client_column", "preset")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    done(f"run {SMALL} --algorithm fedavg --rounds 1 --out", folder)
    return folder


@pytest.fixture
def model(trained: Path) -> Path:
    [found] = (trained / "models").glob("*.safetensors")
    return Path(shutil.copy(found, "received.safetensors"))


def rewrite(path: Path, metadata: dict[str, Any], **settings: Any) -> None:
    """A model file with other text in it and a digest that fits, as whoever sends it can make one."""
    file = unseal(path)
    spec = json.loads(file.metadata["spec"]) | settings
    text = file.metadata | {"spec": json.dumps(spec)} | {name: json.dumps(value) for name, value in metadata.items()}
    path.write_bytes(seal(file.tensors, text))


def check_refused(command: str, path: Path, *, secret: str = "") -> str:
    with watched() as seen:
        complaint = fedga(command, path).complaint
    assert seen.started == []
    assert not Path("PWNED").exists()
    assert not secret or secret not in seen.opened
    return complaint


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("command", ["evaluate", "diagnose --no-page"])
def test_a_model_file_chooses_nothing_to_call(command: str, call: str, model: Path) -> None:
    for arguments in ARGUMENTS:
        rewrite(model, {"input_shape": arguments}, model=call)
        complaint = check_refused(command, model)
        assert "PWNED" not in complaint or "its input_shape" in complaint
    rewrite(model, {"input_shape": [1, 8, 8]}, model=call)
    complaint = check_refused(command, model)
    assert f"received.safetensors names the model '{call}', which is none of fedga's own" in complaint
    assert "give --model package.module:Class yourself" in complaint


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("command", ["evaluate", "diagnose --no-page", "evaluate --dataset digits"])
def test_no_field_of_a_model_file_is_imported_or_called(command: str, name: str, model: Path) -> None:
    for call in CALLS:
        rewrite(model, {}, **{name: call})
        with watched() as seen:
            outcome = fedga(command, model)
        assert "Traceback" not in outcome.err
        assert seen.started == []
        assert outcome.code in (0, 2)


@pytest.mark.parametrize("command", ["evaluate", "diagnose --no-page"])
def test_a_model_file_chooses_no_path(command: str, model: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("password,label\nhunter2,0\n")
    for spelling in (str(secret), "secret.csv", "./secret.csv"):
        rewrite(model, {}, dataset=spelling)
        complaint = check_refused(command, model, secret=str(secret))
        assert complaint.endswith("a path that a file names is not opened: give the data with --dataset")
        assert "hunter2" not in complaint


HOSTILE_TEXTS: dict[str, dict[str, Any]] = {
    "nested": {"spec": "[" * 100_000},
    "nested shape": {"input_shape": "[" * 100_000},
    "huge shape": {"input_shape": "[1, 1000000, 1000000]"},
    "shape of a billion": {"input_shape": "[3, 8192, 8192]"},
    "negative": {"input_shape": "[-1, 8, 8]"},
    "many axes": {"input_shape": "[1, 8, 8, 1, 1, 1, 1]"},
    "no classes": {"class_names": "[]"},
    "classes of numbers": {"class_names": "[1, 2]"},
    "many classes": {"class_names": json.dumps([str(number) for number in range(100_000)])},
    "scale": {"pixel_scale": "[NaN]"},
    "no list": {"pixel_scale": "3"},
    "long": {"pixel_shift": "[0.0, 0.0, 0.0]"},
    "no spec": {"spec": "{}"},
    "list": {"spec": "[]"},
    "big number": {"spec": '{"rounds": ' + "9" * 5000 + "}"},
    "unknown": {"spec": '{"rm": "-rf"}'},
    "no json": {"class_names": "\x1b[31m"},
}


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
def test_whatever_a_model_file_says_is_answered_in_a_sentence(text: str, model: Path) -> None:
    file = unseal(model)
    model.write_bytes(seal(file.tensors, file.metadata | HOSTILE_TEXTS[text]))
    for command in ("evaluate", "diagnose --no-page"):
        complaint = check_refused(command, model)
        assert len(complaint) < 700
        assert "\x1b" not in complaint


def test_weights_that_are_no_numbers_are_refused(model: Path) -> None:
    file = unseal(model)
    model.write_bytes(seal({name: tensor * torch.nan for name, tensor in file.tensors.items()}, file.metadata))
    assert "are not finite numbers" in check_refused("evaluate", model)


def test_the_user_chooses_code_herself_and_is_told(trained: Path) -> None:
    Path("wide.py").write_text(
        "from torch import nn\n"
        "def make(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, classes))\n"
    )
    done(f"run {SMALL} --algorithm fedavg --rounds 1 --model wide:make --out own")
    [path] = Path("own/models").glob("*.safetensors")
    assert "names the model 'wide:make', which is none of fedga's own" in fedga("evaluate", path).complaint
    said = f"running the code of {Path('wide.py').resolve()} for model 'wide:make'"
    assert said in done("evaluate --model wide:make", path).err
    Path("fedga.toml").write_text('[models]\nwide = "wide.py:make"\n')
    rewrite(path, {}, model="wide")
    outcome = done("diagnose --no-page", path)
    assert (
        f"running the code of {Path('wide.py').resolve()} for model wide (wide.py:make, fedga.toml line 2)"
        in outcome.err
    )


@pytest.fixture
def received(trained: Path) -> Path:
    """A results folder of somebody else, whose digests fit whatever is written into it."""
    folder = Path("received")
    shutil.copytree(trained, folder)
    return folder


def forge(folder: Path, statement: str, *values: Any) -> None:
    with closing(sqlite3.connect(folder / "results.sqlite")) as connection:
        connection.execute(statement, values)
        connection.execute("DELETE FROM digests")
        seal_everything(connection)
        connection.commit()


READERS = (
    "results {}",
    "results --format csv {}",
    "results --summary {}",
    "report {}",
    "archive {} small",
    "repair {}",
)


@pytest.mark.parametrize("name", FIELDS)
def test_a_received_folder_runs_nothing(name: str, received: Path) -> None:
    [(text,)] = sqlite3.connect(received / "results.sqlite").execute("SELECT spec FROM runs").fetchall()
    for call in CALLS[:3]:
        forged = json.dumps(json.loads(text) | {name: call})
        forge(received, "UPDATE runs SET spec = ?", forged)
        for command in READERS:
            with watched() as seen:
                outcome = fedga(command.format(received))
            assert outcome.code in (0, 2)
            assert "Traceback" not in outcome.err
            assert [start for start in seen.started if "fedga" not in start] == []
    assert not Path("PWNED").exists()


@pytest.mark.parametrize(
    "statements",
    [
        ("ALTER TABLE metrics RENAME TO other", "CREATE VIEW metrics AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL "
         "SELECT i + 1 FROM n) SELECT 1 AS run, i AS round, 0.5 AS accuracy FROM n"),
        ("CREATE TRIGGER t AFTER UPDATE ON runs BEGIN DELETE FROM metrics; END",),
        ("DROP TABLE metrics",),
        ("UPDATE runs SET seed = 'text'",),
        ("UPDATE runs SET spec = 3",),
        ("UPDATE runs SET spec = '" + "[" * 50_000 + "'",),
        ("UPDATE metrics SET accuracy = 'high'",),
        ("UPDATE partitions SET arrays = x'00'",),
        ("UPDATE partitions SET key = '[]'",),
        ("INSERT INTO own_code VALUES ('nothing/of/ours', 'x', 'y')",),
    ],
)  # fmt: skip
def test_whatever_a_received_results_file_holds_is_answered_in_a_sentence(
    statements: tuple[str, ...], received: Path
) -> None:
    with closing(sqlite3.connect(received / "results.sqlite")) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.execute("DELETE FROM digests")
        if "metrics" in {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")}:
            with suppress(ValueError):  # what cannot be sealed is not
                seal_everything(connection)
        connection.commit()
    refused = 0
    for command in ("results --format csv {}", "results --summary {}", "report {}", "archive {} small"):
        outcome = fedga(command.format(received))
        assert "Traceback" not in outcome.err
        assert outcome.code in (0, 2)
        refused += outcome.code == 2
    assert refused


def test_an_algorithm_of_a_received_folder_is_not_looked_for_in_packages(received: Path) -> None:
    [(text,)] = sqlite3.connect(received / "results.sqlite").execute("SELECT spec FROM runs").fetchall()
    assert RunSpec.from_json(text).algorithm == "fedavg"
    forge(received, "UPDATE runs SET spec = ?", json.dumps(json.loads(text) | {"algorithm": "elsewhere"}))
    with watched() as seen:
        done(f"report {received}")
    assert not any("elsewhere" in name for name in seen.imported)
