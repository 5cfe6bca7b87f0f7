"""Parts of the user's own: found through the project file, in every process, and never mixed with an older version."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch

from fedga import plugins
from fedga.algorithms import ALGORITHMS, known_algorithms, make_algorithm
from fedga.data import load_dataset, make_federation
from fedga.engine.simulate import simulate
from fedga.errors import FedGAError
from fedga.models import MODELS, build_model, known_models
from fedga.selection import make_selection
from fedga.spec.settings import RunSpec
from fedga.store.code import code_digest, own_code
from fedga.store.store import Store
from tests.cli.program import SMALL, done, fedga

FOCAL = """
from dataclasses import dataclass

import torch
from fedga.algorithms import Algorithm
from fedga.algorithms.base import cross_entropy
from helper import POWER


@dataclass(frozen=True)
class Focal(Algorithm):
    gamma: float = 2.0

    def local_loss(self, batch):
        loss = cross_entropy(batch.logits, batch.targets)
        return (1 - torch.exp(-loss)) ** (self.gamma * POWER) * loss
"""
WIDE = """
from torch import nn

def wide(input_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, num_classes))
"""
OURS = """
import numpy as np
from fedga.data.assemble import Parts, Samples, assemble

def load(data_dir):
    inputs = np.arange(80, dtype=np.float32).reshape(40, 2)
    return assemble("ours", Parts(Samples(inputs, np.arange(40) % 2, "ours"), None))
"""
BY_HAND = """
import numpy as np
from fedga.data import Dataset

def load(data_dir):
    inputs, labels = np.ones((4, 2), np.float32), np.array([0, 1, 0, 1])
    with np.errstate(all="ignore"):
        return Dataset("ours", inputs, labels, ARRAYS, ("a", "b"))
"""
PROJECT = """\
# what is mine
[algorithms]
my-focal = "parts/focal.py:Focal"  # Lin et al.

[models]
wide = "parts/wide.py:wide"

[datasets]
our-data = "parts/ours.py:load"
"""
SPEC = RunSpec(algorithm="my-focal", model="wide", alpha=0.5)


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test leaves in the environment and on the path of modules goes with it."""
    monkeypatch.setenv(plugins.VARIABLE, "")
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("helper", None)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    parts = tmp_path / "parts"
    parts.mkdir()
    for name, text in {"focal": FOCAL, "wide": WIDE, "ours": OURS, "helper": "POWER = 1\n"}.items():
        (parts / f"{name}.py").write_text(text)
    (tmp_path / "fedga.toml").write_text(PROJECT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_kind_is_found_by_name(project: Path) -> None:
    assert make_algorithm("my-focal", gamma="1").gamma == 1.0  # type: ignore[attr-defined]
    assert build_model("wide", (1, 8, 8), 3)(torch.zeros(2, 1, 8, 8)).shape == (2, 3)
    assert load_dataset("OUR_data").train_inputs.shape == (32, 2)
    assert known_algorithms().keys() == {*ALGORITHMS, "my-focal"}
    assert known_models().keys() == {*MODELS, "wide"}


def test_code_runs_only_when_its_part_is_asked_for(project: Path) -> None:
    (project / "parts" / "focal.py").write_text("raise ValueError('ran')")
    assert list(plugins.parts("algorithms")) == ["my-focal"]
    make_algorithm("fedavg")
    build_model("wide", (1, 8, 8), 3)
    with pytest.raises(FedGAError, match="ran"):
        make_algorithm("my-focal")


def test_the_nearest_project_counts_and_the_variable_before_it(
    project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    below = project / "runs" / "today"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert plugins.project_file() == project / "fedga.toml"
    (below / "fedga.toml").write_text("")
    assert plugins.parts("algorithms") == {}
    for value in (project, project / "fedga.toml"):
        monkeypatch.setenv(plugins.VARIABLE, str(value))
        assert list(plugins.parts("algorithms")) == ["my-focal"]
    monkeypatch.setenv(plugins.VARIABLE, str(tmp_path / "gone"))
    with pytest.raises(FedGAError, match=r"FEDGA_PROJECT names .*gone, where there is no fedga.toml: correct it"):
        make_algorithm("fedavg")


def test_leaving_a_project_leaves_nothing_behind(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_algorithm("my-focal")
    monkeypatch.chdir(project.parent)
    assert plugins.project_file() is None
    words = (
        r"unknown algorithm 'my-focal'.*; one of your own is not looked for: no fedga.toml in .* and FEDGA_PROJECT is"
    )
    with pytest.raises(FedGAError, match=words):
        make_algorithm("my-focal")
    with pytest.raises(FedGAError, match=r"unknown model 'wide'.*no fedga.toml in "):
        build_model("wide", (2,), 2)
    with pytest.raises(FedGAError, match=r"unknown data set 'our-data'.*no fedga.toml in "):
        load_dataset("our-data")


def test_a_name_in_other_letters_is_the_nearest(project: Path) -> None:
    with pytest.raises(FedGAError, match=r"unknown algorithm 'MY-FOCAL': did you mean 'my-focal'\? \(known: [^;]*$"):
        make_algorithm("MY-FOCAL")


def test_a_name_of_another_kind_says_whose_it_is(project: Path) -> None:
    with pytest.raises(FedGAError, match=r"^algorithm my-focal \(.*\) is no selection rule: give it with --algorithm$"):
        make_selection("my-focal")
    (project / "fedga.toml").write_text('[selections]\nrested = "rested.py:Rested"\n')
    with pytest.raises(FedGAError, match=r"^selection rule rested \(.*\) is no algorithm: give it with --select$"):
        make_algorithm("rested")


def test_a_broken_file_is_met_only_where_it_is_named(project: Path) -> None:
    (project / "parts" / "broken.py").write_text("x = = 2\n")
    text = PROJECT.replace("[models]", 'broken = "parts/broken.py:Broken"\n[models]')
    (project / "fedga.toml").write_text(text)
    listed = done("algorithms --format json")
    assert {row["algorithm"] for row in json.loads(listed.out)} == ALGORITHMS.keys()
    assert "your own are not run unless you name them: fedga algorithms my-focal,broken" in listed.err
    assert "parts/broken.py" in fedga("algorithms fedavg,broken").complaint


def test_a_file_may_be_called_otherwise(project: Path) -> None:
    before = code_digest(own_code([SPEC]))
    (project / "parts" / "focal.py").rename(project / "parts" / "loss.py")
    (project / "fedga.toml").write_text(PROJECT.replace("focal.py", "loss.py"))
    assert code_digest(own_code([SPEC])) == before


def test_metrics_of_the_project_are_measured_by_simulate(project: Path) -> None:
    (project / "half.py").write_text("def half(evaluation):\n    return evaluation.loss * 0 + 0.5\n")
    (project / "fedga.toml").write_text('[metrics]\nhalf = "half.py:half"\n')
    federation = make_federation(load_dataset("digits"), clients=3, seed=0, alpha=1.0)
    twice = {"twice": lambda evaluation: 2 * evaluation.loss}
    [row] = simulate(federation, algorithm="fedavg", rounds=1, active=2, metrics=twice).rounds
    assert row["half"] == 0.5
    assert row["twice"] == pytest.approx(2 * row["loss"])


def test_a_network_that_cannot_be_mapped_is_refused_before_anything_is_said(project: Path) -> None:
    branch = "class Wide(nn.Linear):\n    def forward(self, x):\n        x = x.flatten(1)\n        if x.sum() > 0:\n"
    branch += "            x = 2 * x\n        return super().forward(x)\n\ndef wide(shape, classes):\n"
    (project / "parts" / "wide.py").write_text(f"from torch import nn\n\n{branch}    return Wide(64, classes)\n")
    refused = fedga(f"run {SMALL} --model wide --out results")
    assert refused.code == 2
    [sentence] = refused.err.splitlines()
    assert "it branches on the value of a tensor (if, while, assert" in sentence
    assert sentence.endswith("): use torch.where instead (line 6 of wide.py)")
    assert not (project / "results").exists()


def test_processes_that_work_elsewhere_find_the_same_parts(project: Path) -> None:
    script = "from fedga.algorithms import make_algorithm; print(make_algorithm('my-focal'))"
    environment = os.environ | plugins.child_env()
    answer = subprocess.run(
        [sys.executable, "-c", script], cwd="/", env=environment, capture_output=True, text=True, check=True
    )
    assert answer.stdout == "Focal(gamma=2.0)\n"


def test_a_project_that_others_can_write_is_not_run(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, below = project / "fedga.toml", project / "below"
    below.mkdir()
    file.chmod(0o666)
    with pytest.raises(FedGAError, match=r"everybody may write it, .* set FEDGA_PROJECT to it if you trust it"):
        make_algorithm("fedavg")
    monkeypatch.chdir(below)  # of a folder above, such as /tmp, one need not even know
    assert plugins.project_file() is None
    monkeypatch.setenv(plugins.VARIABLE, str(file))
    assert make_algorithm("my-focal")


def test_a_file_that_others_can_write_is_not_run(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "parts" / "focal.py").chmod(0o666)
    with pytest.raises(FedGAError, match=r"focal.py belongs to another user, or everybody may write it, .* if you tr"):
        make_algorithm("my-focal")
    assert build_model("wide", (1, 8, 8), 3) is not None
    monkeypatch.setenv(plugins.VARIABLE, str(project))
    assert make_algorithm("my-focal")


def test_parts_in_two_folders_have_helpers_of_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, value in (("a", 2.0), ("b", 3.0)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "helper.py").write_text(f"VALUE = {value}\n")
        (tmp_path / folder / "alg.py").write_text(FOCAL.replace("POWER", "VALUE"))
    (tmp_path / "fedga.toml").write_text('[algorithms]\nx = "a/alg.py:Focal"\ny = "b/alg.py:Focal"\n')
    monkeypatch.chdir(tmp_path)
    values = {name: sys.modules[type(make_algorithm(name)).__module__].VALUE for name in ("x", "y")}  # type: ignore[attr-defined]
    assert values == {"x": 2.0, "y": 3.0}
    for name in ("x", "y"):
        algorithm = make_algorithm(name)
        assert pickle.loads(pickle.dumps(algorithm)) == algorithm


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("from mylib.consts import K", "consts.py"),
        ("from mylib import consts", "consts.py"),
        ("import mylib.consts", "__init__.py"),
        ("from mylib import again", "deep/deeper.py"),
    ],
)
def test_a_change_in_a_package_beside_the_part_is_noticed(line: str, changed: str, project: Path) -> None:
    library = project / "parts" / "mylib"
    (library / "deep").mkdir(parents=True)
    for file, text in {
        "__init__.py": "",
        "consts.py": "K = 2\n",
        "again.py": "from .deep.deeper import D\n",
        "deep/__init__.py": "",
        "deep/deeper.py": "D = 1\n",
    }.items():
        (library / file).write_text(text)
    part = project / "parts" / "focal.py"
    part.write_text(f"{line}\n{part.read_text()}")
    before = plugins.parts("algorithms")["my-focal"].digest()
    assert plugins.parts("algorithms")["my-focal"].digest() == before
    (library / changed).write_text("K = D = 3\n")
    assert plugins.parts("algorithms")["my-focal"].digest() != before


def test_a_change_of_the_file_or_of_what_it_imports_is_seen(project: Path) -> None:
    def loss() -> float:
        logits, targets = torch.tensor([[0.3, -0.4]]), torch.tensor([1])
        from fedga.algorithms import Batch

        batch = Batch(logits, targets, torch.ones(1), torch.ones(2))
        return make_algorithm("my-focal", gamma=1).local_loss(batch).item()

    before, digest = loss(), plugins.parts("algorithms")["my-focal"].digest()
    (project / "parts" / "helper.py").write_text("POWER = 2\n")
    assert loss() < before
    assert plugins.parts("algorithms")["my-focal"].digest() != digest
    (project / "parts" / "helper.py").write_text("POWER = 1\n")
    assert loss() == before
    assert plugins.parts("algorithms")["my-focal"].digest() == digest


TOML = {
    "table": ("[algorithm]\n", "unknown table in .*fedga.toml 'algorithm': did you mean 'algorithms'"),
    "syntax": ("[algorithms\n", r"fedga.toml is not valid TOML: .*line 1"),
    "no table": ("algorithms = 3\n", r"algorithms must be a table, such as \[algorithms\]"),
    "no section": (
        'focal = "focal.py:Focal"\n',
        r"focal stands in no table: put it under one of \[algorithms\], .*, or in a file for --config",
    ),
    "number": ("[algorithms]\nfocal = 3\n", r"fedga.toml, line 2: focal must say where it is defined, as in focal = "),
    "no name": ('[algorithms]\nfocal = "focal.py"\n', "line 2: focal must say where it is defined"),
    "bad name": ('[algorithms]\n"a:b" = "focal.py:Focal"\n', "line 2: 'a:b' cannot be typed as a name"),
    "built-in": ('[algorithms]\n\nfedga = "focal.py:Focal"\n', "line 3: fedga is the name of a built-in algorithm"),
}


@pytest.mark.parametrize("mistake", TOML)
def test_mistakes_in_the_project_file(mistake: str, project: Path) -> None:
    text, words = TOML[mistake]
    (project / "fedga.toml").write_text(text)
    with pytest.raises(FedGAError, match=words):
        make_algorithm("fedavg")


@pytest.mark.parametrize(
    ("table", "name", "act"),
    [("models", "mlp", lambda: build_model("mlp", (2,), 2)), ("datasets", "MNIST", lambda: load_dataset("digits"))],
)
def test_names_of_ours_are_ours(table: str, name: str, act, project: Path) -> None:  # type: ignore[no-untyped-def]
    (project / "fedga.toml").write_text(f'[{table}]\n{name} = "parts/wide.py:wide"\n')
    with pytest.raises(FedGAError, match=f"line 2: {name.lower()} is the name of a built-in"):
        act()


CLASS = "from dataclasses import dataclass\nfrom fedga.algorithms import Algorithm\n\n"
FILES = {
    "syntax": ("x = 1\nx = = 2\n", "focal.py cannot be used: line 2 of focal.py is not Python"),
    "import": (
        "import nothing_like_it\n",
        "line 1 of focal.py raised ModuleNotFoundError: No module named 'nothing_like",
    ),
    "failure": ("x = 1\n\nx / 0\n", "line 3 of focal.py raised ZeroDivisionError"),
    "end": ("import sys\nsys.exit(0)\n", "line 2 of focal.py raised SystemExit: 0"),
    "name": (
        CLASS + "class Focl(Algorithm):\n    pass\n",
        "unknown name in parts/focal.py 'Focal': did you mean 'Focl'",
    ),
    "function": ("def Focal(batch):\n    return batch\n", "is not an algorithm: make it a class that inherits from"),
    "class": ("class Focal:\n    pass\n", "is not an algorithm: make it a class that inherits from"),
    "no dataclass": (
        CLASS + "class Focal(Algorithm):\n    gamma: float = 2\n",
        "has gamma, which is not an option: write @data",
    ),
    "not frozen": (
        CLASS + "@dataclass\nclass Focal(Algorithm):\n    gamma: float = 2.0\n",
        "write @dataclass.frozen=True",
    ),
    "no default": (
        CLASS + "@dataclass(frozen=True)\nclass Focal(Algorithm):\n    gamma: float\n",
        "gamma .* has no default",
    ),
    "list": (
        CLASS + "@dataclass(frozen=True)\nclass Focal(Algorithm):\n    gamma: tuple = ()\n",
        "gamma .* is a tuple",
    ),
}


@pytest.mark.parametrize("mistake", FILES)
def test_mistakes_in_the_file_of_an_algorithm(mistake: str, project: Path) -> None:
    text, words = FILES[mistake]
    (project / "parts" / "focal.py").write_text(text)
    with pytest.raises(FedGAError, match=words):
        make_algorithm("my-focal")


def test_mistakes_of_other_parts(project: Path) -> None:
    (project / "parts" / "wide.py").write_text("wide = 3\n")
    with pytest.raises(FedGAError, match=r"model wide .*is an int: name a class or function"):
        build_model("wide", (2,), 2)
    for body, words in (
        ("1 / 0", r"data set our-data .* failed: line 2 of ours.py raised ZeroDivisionError"),
        ("open('/nowhere/x')", r"failed: line 2 of ours.py raised FileNotFoundError: .* '/nowhere/x'"),
        ("raise SystemExit(0)", r"failed: line 2 of ours.py raised SystemExit: 0"),
        ("return 3", "data set our-data .* returned int: its function must return a fedga.data.Dataset"),
    ):
        (project / "parts" / "ours.py").write_text(f"def load(data_dir):\n    {body}\n")
        with pytest.raises(FedGAError, match=words):
            load_dataset("our-data")
    for arrays, words in (
        ("np.zeros((4, 2)), labels", "has samples of type float64 and labels of type int64: use uint8 .*float32"),
        ("inputs, labels.astype(np.int32)", "labels of type int32: use .*int64 for labels"),
        ("inputs[:3], labels", "has 3 samples and 4 labels: give each sample one label"),
        ("inputs, labels + 1", "has labels outside 0 to 1"),
        ("inputs / 0, labels", "samples that are not finite numbers"),
        (
            "np.zeros((4, 8, 8, 3), np.uint8), labels",
            r"shape \(8, 8, 3\), channels last: use pictures.transpose\(0, 3, 1, 2\)",
        ),
    ):
        (project / "parts" / "ours.py").write_text(BY_HAND.replace("ARRAYS", arrays))
        with pytest.raises(FedGAError, match=f"the test split of data set our-data .*{words}"):
            load_dataset("our-data")
    (project / "parts" / "focal.py").unlink()
    with pytest.raises(FedGAError, match=r"algorithm my-focal .*fedga.toml line 3.*: there is no file .*focal.py"):
        make_algorithm("my-focal")


def test_modules_and_installed_packages(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "package").mkdir()
    (project / "package" / "__init__.py").touch()
    (project / "package" / "part.py").write_text(WIDE)
    named = {"wide": "part", "lost": "gone", "ends": "ends"}.items()
    (project / "fedga.toml").write_text(
        "\n".join(["[models]", *(f'{name} = "package.{at}:wide"' for name, at in named)])
    )
    (project / "package" / "ends.py").write_text("raise SystemExit(0)")
    offered = [EntryPoint(name, "package.part:wide", "fedga.models") for name in ("theirs", "wide", "mlp")]
    monkeypatch.setattr(plugins, "entry_points", lambda group: offered)
    assert build_model("wide", (1, 8, 8), 3) is not None
    assert build_model("theirs", (1, 8, 8), 3) is not None
    assert plugins.parts("models", MODELS)["wide"].folder == project  # her own file before an installed package
    assert "mlp" not in plugins.parts("models", MODELS)
    with pytest.raises(FedGAError, match=r"cannot be imported: ModuleNotFoundError: No module named 'package.gone'"):
        build_model("lost", (2,), 2)
    with pytest.raises(FedGAError, match=r"cannot be imported: SystemExit: 0"):
        build_model("ends", (2,), 2)
    for name in ("package", "package.part"):
        sys.modules.pop(name, None)


# --- results of older code -------------------------------------------------------------------------------------------


def test_a_folder_refuses_other_code_than_it_was_made_with(project: Path) -> None:
    command = f"run {SMALL} --algorithm fedavg,my-focal --model wide"
    done(f"{command} --out results")
    assert "2 of them finished already" in done(f"{command} --out results").err
    with (project / "parts" / "helper.py").open("a") as file:
        file.write("POWER = 3\n")
    refused = "parts/focal.py has changed since the runs in 'results' were made with it: give another --out, or bring"
    assert fedga(f"{command} --out results").complaint.startswith(refused)
    assert fedga(f"{command} --alpha 3 --out results").complaint.startswith(refused)
    done(f"{command} --algorithm fedavg --out results")  # which has not changed
    (project / "parts" / "wide.py").write_text(WIDE.replace("5", "6"))
    assert fedga(f"{command} --algorithm fedavg --out results").complaint.startswith("parts/wide.py has changed")


def test_changed_code_gets_another_folder_by_itself(project: Path) -> None:
    done(f"run {SMALL} --algorithm my-focal")
    done(f"run {SMALL} --algorithm my-focal")
    assert len(list(Path("runs").iterdir())) == 1
    (project / "parts" / "helper.py").write_text("POWER = 3\n")
    done(f"run {SMALL} --algorithm my-focal")
    assert len(list(Path("runs").iterdir())) == 2


def test_runs_of_ours_depend_on_no_code_of_the_users(project: Path, tmp_path: Path) -> None:
    ours = RunSpec(alpha=0.5)
    assert own_code([ours]) == {}
    assert code_digest({}) == ""
    assert [part.name for part in own_code([ours, SPEC])] == ["my-focal", "wide"]
    with Store(tmp_path / "store") as store:
        store.register([ours], {ours.run_id: "data"})
        (project / "parts" / "focal.py").write_text("POWER = 3\n")
        assert store.register([ours], {ours.run_id: "data"})[0].spec == ours


# --- at the command line ---------------------------------------------------------------------------------------------


def test_own_algorithms_are_listed_with_their_costs_and_in_the_hints(project: Path) -> None:
    rows = {row["algorithm"]: row for row in json.loads(done("algorithms fedga,my-focal --format json").out)}
    assert rows["my-focal"]["defined_in"] == "parts/focal.py"
    assert rows["my-focal"]["options"] == {"gamma": 2.0}
    assert rows["fedga"]["defined_in"] == ""
    assert "parts/focal.py" in done("algorithms my-focal").out
    assert "did you mean 'my-focal'?" in fedga(f"run {SMALL} --algorithm my-focall").complaint
    assert "the engine gives the model of the plain loop" in done("algorithms --check my-focal").out
    shown = subprocess.run([sys.executable, "-m", "fedga", "run", "--help"], capture_output=True, text=True, check=True)
    assert "my-focal" in shown.stdout
    assert "our-data" in shown.stdout


def test_a_faulty_algorithm_is_refused_before_anything_is_trained(project: Path) -> None:
    text = FOCAL.replace("(1 - torch.exp(-loss))", "(1 - torch.exp(-loss.mean()))")
    (project / "parts" / "focal.py").write_text(text)
    complaint = fedga(f"run {SMALL} --algorithm my-focal --out results").complaint
    assert complaint.startswith("algorithm my-focal: local_loss reads padding")
    assert not Path("results").exists()


def test_a_file_given_instead_of_a_name(project: Path) -> None:
    complaint = fedga(f"run {SMALL} --algorithm parts/focal.py:Focal").complaint
    assert complaint.endswith("name it in fedga.toml, as `fedga new` does, and give that name")


def test_a_page_of_runs_whose_algorithm_is_gone(project: Path) -> None:
    done(f"run {SMALL} --algorithm fedavg,my-focal --out results")
    done("report results")
    page = Path("results/report.html").read_text()
    assert "my-focal" in page
    assert "gamma=2" in page
    (project / "parts" / "focal.py").write_text("broken = = 1\n")
    done("report results")
    page = Path("results/report.html").read_text()
    assert "my-focal" in page
    assert "gamma=2" not in page
