"""`fedga new` writes parts that work as they are, pass their own test, and are known by name at once."""

from __future__ import annotations

import errno
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedga.cli.commands.new import with_part
from fedga.errors import FedGAError
from tests.cli.program import SMALL, done, fedga, files

KINDS = ("algorithm", "model", "dataset", "metric")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDGA_PROJECT", "")
    # A user's Python does not find the benchmarks, whose names a part of her own may have.
    monkeypatch.setattr(sys, "path", [place for place in sys.path if Path(place).name != "benchmarks"])
    for name in [name for name, module in sys.modules.items() if _is_of_a_test(module, tmp_path)]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


def _is_of_a_test(module: object, folder: Path) -> bool:
    """Whether another test of this process wrote the module: a user's Python does not know it."""
    return str(getattr(module, "__file__", None) or "").startswith(str(folder.parent))


def run_pytest(*paths: str) -> str:
    """As a user's own: none of this repository's settings."""
    command = [sys.executable, "-m", "pytest", "-q", "-rP", "-p", "no:cacheprovider", *paths]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_what_is_written_passes_its_tests_and_runs() -> None:
    said = {kind: done(f"new {kind} my-{kind}").err for kind in KINDS}
    assert "pytest test_my_algorithm.py" in said["algorithm"]
    assert "fedga run --algorithm fedavg,my-algorithm" in said["algorithm"]
    assert "fedga data show my-dataset --alpha 0.1 --clients 10" in said["dataset"]
    done("data show my-dataset --alpha 0.1 --clients 10")
    passed = run_pytest()
    assert "4 passed" in passed
    assert "Flower's messages give the same model" in passed
    done("data show my-dataset --partition natural")
    command = f"run {SMALL} --dataset my-dataset --algorithm fedavg,my-algorithm:smoothing=0.5 --model my-model"
    shown = done(f"{command} --partition iid --out results").out
    assert "my-algorithm" in shown
    assert "my-metric" in shown


def test_an_algorithm_differs_from_fedavg_by_its_one_line() -> None:
    done("new algorithm mine")
    assert "exactly as fedavg" not in done("algorithms --check mine").out
    done(f"run {SMALL} --algorithm fedavg,mine:smoothing=0 --out results")
    lines = done("results results --format csv").out.splitlines()
    fedavg, mine = (
        [line.split(",")[6:] for line in lines if f",{name}," in line] for name in ("fedavg", "mine:smoothing=0")
    )
    assert fedavg == mine != []


def test_a_folder_of_its_own_and_the_project_above_it(folder: Path) -> None:
    done("new algorithm one parts")
    assert (folder / "parts" / "fedga.toml").is_file()
    done("new model two")
    done("new model three deep/er")
    assert tomllib.loads((folder / "fedga.toml").read_text()) == {
        "models": {"two": "two.py:Two", "three": "deep/er/three.py:Three"}
    }
    assert "three" in fedga(f"run {SMALL} --model thre").complaint


def test_names_that_the_files_have_elsewhere_are_free() -> None:
    done("new dataset scores")
    done("new metric batch")
    assert "2 passed" in run_pytest()


def test_the_next_steps_work_from_where_they_are_read(folder: Path) -> None:
    said = done("new dataset zed 'some where'").err.splitlines()
    assert [line.strip() for line in said[1:3]] == ["cd 'some where'", "pytest test_zed.py"]
    [show] = [line.strip() for line in said if "data show" in line]
    program = f'fedga() {{ "{sys.executable}" -m fedga "$@"; }}'
    subprocess.run(["bash", "-ec", f"{program}\n{said[1]}\n{show}"], cwd=folder, check=True, capture_output=True)
    assert "cd " not in done("new algorithm zed .").err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("algorithm fedga", "fedga is the name of a built-in algorithm"),
        ("model resnet20", "resnet20 is the name of a built-in model"),
        ("dataset CIFAR-10", "CIFAR-10 is the name of a built-in data set"),
        ("metric accuracy", "accuracy is the name of a built-in metric"),
        ("algorithm random", "random is a Python module already, which random.py would hide"),
        ("algorithm os", "os is a Python module already, which os.py would hide"),
        ("algorithm sys", "sys is a Python module already"),
        ("model conftest", "conftest is a Python module already"),
        ("algorithm " + "a" * 300, "the name 'aaaaaaaaaaaaaaaaaaaa…' has 300 letters: choose one of at most 100"),
        ("algorithm fine /etc/passwd", "/etc/passwd is a file: give the folder that the new files are to go to"),
        ("algorithm fine /etc/passwd/below", "nothing can be written to /etc/passwd/below (not a directory)"),
        ("algorithm fine /proc/nowhere", "nothing can be written to /proc/nowhere (no such file or directory)"),
        ("algorithm fine " + "a" * 300, "the name is too long: give a shorter one"),
        ("algorithm 3d", "'3d' cannot be a name"),
        ("algorithm a:b", "'a:b' cannot be a name"),
        ("algorithm class", "'class' cannot be a name"),
        ("algorithm there", "there.py is there already: choose another name, or another folder"),
        ("metric named", "has the metric named already"),
        ("algorithm f", "F means something else in the files that would be written: choose another name"),
        ("algorithm batch", "Batch means something else"),
        ("model tensor", "Tensor means something else"),
        ("metric scores", "scores means something else"),
        ("metric evaluation", "evaluation means something else"),
        ("metric confusion", "confusion means something else"),
        ("metric tests-passed", "tests_passed means something else"),
        ("metric averaged_f1", "averaged_ begins the names of the averaged model's"),
    ],
)
def test_what_is_refused_leaves_everything_as_it_was(command: str, words: str, folder: Path) -> None:
    (folder / "there.py").write_text("mine")
    (folder / "fedga.toml").write_text('[metrics]\nnamed = "other.py:named"\n')
    before = files(folder)
    assert words in fedga(f"new {command}").complaint
    assert files(folder) == before


WRITTEN = {
    "empty": ("", '[models]\nnew = "new.py:New"\n'),
    "other table": ("# mine\n[algorithms]\na = 'a.py:A'\n", "# mine\n[algorithms]\na = 'a.py:A'\n\n[models]\n{line}\n"),
    "comments and gaps": (
        '[models]   # networks\n\na = "a.py:A"  # the first\n# the end\n\n\n[metrics]\nb = "b.py:b"',
        '[models]   # networks\n\na = "a.py:A"  # the first\n# the end\n{line}\n\n\n[metrics]\nb = "b.py:b"\n',
    ),
    "spaces": ('[ models ]\n  a = "a.py:A"\n', '[ models ]\n  a = "a.py:A"\n{line}\n'),
}


@pytest.mark.parametrize("case", WRITTEN)
def test_a_project_file_keeps_what_its_owner_wrote(case: str, folder: Path) -> None:
    before, after = WRITTEN[case]
    (folder / "fedga.toml").write_text(before)
    line = 'new = "new.py:New"'
    assert with_part(folder / "fedga.toml", "models", "new", "new.py:New") == after.replace("{line}", line)


def test_nothing_is_left_of_what_cannot_be_written_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def only_code(path: Path, content: str) -> None:
        if path.name == "fedga.toml":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        path.write_text(content, encoding="utf-8")

    monkeypatch.setattr("fedga.cli.commands.new.write_whole", only_code)
    complaint = fedga("new algorithm fine").complaint
    assert complaint == "nothing can be written to . (permission denied): choose another folder"
    assert not list(folder.glob("*.*"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            'models = {a = "a.py:A"}\n',
            r'written in a way .*: write new = "new.py:New" into its table \[models\]|not a proj',
        ),
        ("[models\n", "is not a project file"),
        ("models = 3\n", "is not a project file|written in a way"),
        ("x = " + "[" * 5000, "is not a project file"),
        ("x = " + "9" * 5000, "is not a project file"),
    ],
)
def test_a_project_file_that_cannot_be_added_to(text: str, words: str, folder: Path) -> None:
    (folder / "fedga.toml").write_text(text)
    with pytest.raises(FedGAError, match=words):
        with_part(folder / "fedga.toml", "models", "new", "new.py:New")
