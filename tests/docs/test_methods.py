"""The pages on methods are what their generator makes of code and kept runs, and their commands are understood."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType

import pytest

from fedga.algorithms import ALGORITHMS
from tests.docs.blocks import ROOT, read_blocks
from tests.docs.pages import METHOD_PAGES

FOLDER = ROOT / "docs" / "methods"
LARGEST = 1_000_000  # bytes of all pictures
PROGRAM = """
import shlex, sys
from tests.docs.check import fedga
for line in sys.stdin:
    try:
        fedga(shlex.split(line)[1:])
    except SystemExit as end:
        assert not end.code, line
    print(line, end="")
"""


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "tools")
        yield importlib.import_module("write_methods")


@pytest.fixture(scope="module")
def made(script: ModuleType) -> Mapping[str, str]:
    pages: Mapping[str, str] = script.pages()
    return pages


def test_the_pages_are_what_the_code_says(script: ModuleType, made: Mapping[str, str]) -> None:
    there = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir() if path.suffix in (".md", ".svg")}
    differing = sorted(name for name in {*there, *made} if there.get(name) != made.get(name))
    assert differing == [], f"docs/methods/ is not what the code says: run `{script.COMMAND}` and commit what it writes"


def test_every_algorithm_has_a_page_with_its_reference_options_and_cost(made: Mapping[str, str]) -> None:
    for name, kind in ALGORITHMS.items():
        page = made[f"{name}.md"]
        assert f"]({name}.md)" in made["index.md"]
        assert all(
            part in page for part in ("\n> ", "## Options", "## What it costs", "secure aggregation", "## Run it")
        )
        assert kind.citation.rpartition(" ")[2] in page.partition("\n> ")[2].partition("\n")[0], f"{name}: which year?"


def test_the_pictures_are_there_and_small() -> None:
    pictures = [path for path in FOLDER.iterdir() if path.suffix != ".md"]
    for page in METHOD_PAGES:
        for part in page.read_text(encoding="utf-8").split("](")[1:]:
            target = part.partition(")")[0].partition("#")[0]
            assert (FOLDER / target).exists(), f"{page.name} shows {target}"
    assert sum(path.stat().st_size for path in pictures) < LARGEST


def test_the_commands_of_all_pages_are_understood() -> None:
    blocks = [block for page in METHOD_PAGES for block in read_blocks(page.read_text(encoding="utf-8"))]
    lines = "".join(block.code for block in blocks)
    assert lines.count("\n") >= 2 * len(ALGORITHMS)
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=lines, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, lines), ended.stderr
