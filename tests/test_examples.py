"""Every example file runs as it is, where fedga was installed the way a user installs it.

The environment is fresh and the package is not editable. First there is only ``pip install .``, and the examples that
need no more must do without; then comes what the table in ``examples/README.md`` says that the others need.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import check_said, read_blocks
from tests.docs.pages import PAGES

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
CORE = ["."]
PROCESSOR_S = 60  # the minute that they promise, in time that a busy machine does not lengthen
HANGING_S = 1800

_ROW = re.compile(r"^\| \[(?P<file>\w+\.py)\]\((?P=file)\) \| .+ \| (?P<install>`.+`) \| \d+ \|$", re.MULTILINE)
NEEDS = {
    row["file"]: re.findall("`(.+?)`", row["install"]) for row in _ROW.finditer((EXAMPLES / "README.md").read_text())
}


class Environment:
    """A virtual environment without pip of its own: the one that runs the tests installs into it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "environment"
        self.python = self.folder / "bin" / "python"
        self.source = _copy_of_the_source(folder / "source")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.folder], check=True)

    def install(self, *requirements: str) -> None:
        pip = [sys.executable, "-m", "pip", "--python", self.python, "install", "--quiet", "--no-compile"]
        done = subprocess.run(
            [*pip, "-c", ROOT / "constraints.txt", *requirements], cwd=self.source, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr

    def run(self, *arguments: str, folder: Path) -> str:
        return _run(self.python, *arguments, folder=folder)


def _run(python: str | Path, *arguments: str, folder: Path) -> str:
    done = subprocess.run(
        [python, *arguments],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        capture_output=True,
        text=True,
        timeout=HANGING_S,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_S, PROCESSOR_S)),
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def _copy_of_the_source(folder: Path) -> Path:
    """What a build reads: built in place, it would leave its own files in the checkout."""
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def _run_example(python: str | Path, name: str, folder: Path) -> None:
    shutil.copy(EXAMPLES / name, folder)
    said = _run(python, name, folder=folder)
    assert said.strip(), f"{name} says nothing"
    for page in PAGES:
        for block in read_blocks(page.read_text(encoding="utf-8")):
            if block.language == "text" and block.attributes.get("title") == f"examples/{name}":
                check_said(block, said)


@pytest.fixture(scope="module")
def core(tmp_path_factory) -> Environment:
    environment = Environment(tmp_path_factory.mktemp("user"))
    environment.install(*CORE)
    return environment


@pytest.fixture(scope="module")
def complete(core: Environment) -> Environment:
    core.install(*sorted({requirement for needed in NEEDS.values() for requirement in needed if needed != CORE}))
    return core


def test_every_example_is_in_the_table():
    assert sorted(NEEDS) == sorted(path.name for path in EXAMPLES.glob("*.py"))
    assert CORE in NEEDS.values()


@pytest.mark.parametrize("name", list(NEEDS)[::2])
def test_an_example_runs(name, tmp_path):
    """Every other one, with what is installed here; all of them in a new environment are long."""
    _run_example(sys.executable, name, tmp_path)


@pytest.mark.long
def test_the_installed_package_is_used_and_nothing_beyond_its_core(core, tmp_path):
    code = (
        "import fedga, importlib.util\n"
        "print(fedga.__file__)\n"
        "print([name for name in ('sklearn', 'torchmetrics', 'matplotlib', 'flwr') if importlib.util.find_spec(name)])"
    )
    place, extras = core.run("-c", code, folder=tmp_path).splitlines()
    assert Path(place).is_relative_to(core.folder)
    assert extras == "[]"


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name, needed in NEEDS.items() if needed == CORE])
def test_an_example_that_needs_only_fedga(name, core, tmp_path):
    _run_example(core.python, name, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name, needed in NEEDS.items() if needed != CORE])
def test_an_example_that_needs_extras(name, complete, tmp_path):
    _run_example(complete.python, name, tmp_path)
