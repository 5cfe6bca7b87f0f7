"""`fedga flower new`: an app that Flower accepts, with settings that our ServerApp reads."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate

from fedga.flower.server.app import read_settings
from fedga.spec.grid import build_sweep
from tests.cli.program import done, fedga, files


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")


def settings(folder: str) -> dict[str, Any]:
    config = tomllib.loads(Path(folder, "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert isinstance(config, dict)
    return config


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern")  # Flower's own
def test_flower_accepts_the_app_and_it_holds_our_two_parts() -> None:
    done("flower new 'My study'")
    config, warnings = load_and_validate(Path("My study/pyproject.toml"))
    assert warnings == []
    assert config["project"]["name"] == "my-study"
    assert config["project"]["dependencies"] == []  # Flower would fetch them for every run
    assert len(build_fab_from_disk(Path("My study"))) < 10_000
    for part, where in config["tool"]["flwr"]["app"]["components"].items():
        module, _, name = where.partition(":")
        source = Path("My study", *module.split(".")).with_suffix(".py").read_text()
        assert f"from fedga.flower import {part.replace('app', '_app')} as {name}\n" in source


def test_its_settings_are_one_run(tmp_path: Path) -> None:
    said = done("flower new app --algorithm fedprox:mu=0.1").err
    assert 'flwr run app --stream --federation-config "num-supernodes=10"' in said
    own, runs = read_settings(settings("app"))
    assert own.out == str(tmp_path / "app/results")
    [spec] = build_sweep(runs).runs
    assert (spec.dataset, spec.algorithm, spec.alpha, spec.clients, spec.active) == (
        "digits",
        "fedprox:mu=0.1",
        0.1,
        10,
        5,
    )
    assert (spec.rounds, spec.model, spec.local_epochs, spec.batch_size, spec.lr) == (5, "mlp", 2, 16, 0.1)


def test_data_of_ones_own_are_found_from_anywhere(tmp_path: Path) -> None:
    Path("mine.csv").write_text("x,label\n1,0\n")
    done("flower new app --data mine.csv")
    assert settings("app")["dataset"] == str(tmp_path / "mine.csv")


def test_a_file_may_have_any_name() -> None:
    name = 'my "best" \\data.csv'
    Path(name).write_text("x,label\n1,0\n")
    done("flower new app --data", name)
    project = tomllib.loads(Path("app/pyproject.toml").read_text())["project"]
    assert project["description"] == f"fedga on {name} with fedga"


def test_a_named_data_set_has_its_network() -> None:
    done("flower new app --data svhn")
    assert settings("app")["model"] == "lenet"


def test_only_an_empty_folder_is_written_to() -> None:
    Path("app").mkdir()
    done("flower new app")
    before = files(Path("app"))
    assert "app is not empty: choose a folder that does not exist" in fedga("flower new app").complaint
    assert files(Path("app")) == before
    Path("file").write_text("")
    assert "file is not empty" in fedga("flower new file").complaint


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--algorithm fedgaa", "unknown algorithm 'fedgaa': did you mean 'fedga'?"),
        ("--algorithm fedprox:nu=1", "unknown option of fedprox 'nu'"),
        ("--data mnits", "unknown data set 'mnits': did you mean 'mnist'?"),
    ],
)
def test_what_does_not_exist_is_refused(options: str, words: str) -> None:
    assert words in fedga(f"flower new app {options}").complaint
    assert not Path("app").exists()
