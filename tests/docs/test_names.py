"""Modules and files that the documentation names are there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import fedga
from tests.docs.blocks import ROOT

WRITTEN = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES = [*WRITTEN, *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
OLD = ROOT / "docs" / "migration.md"  # names modules of 0.1, each with a test of its own
NAME = re.compile(r"(?<![\w./-])(?<!entry-points\.\")fedga(?:\.[A-Za-z_]\w*)+")
FILES = {"fedga.toml", "fedga.css", "fedga.md", "fedga.svg"}
PATH = re.compile(r"(?<![\w./-])((?:src/fedga|tests|docs|tools|benchmarks)/[\w./-]*\w/?)")


def exists(name: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    module, rest = name.split("."), []
    while module:
        try:
            found: object = importlib.import_module(".".join(module))
        except ModuleNotFoundError:
            rest.insert(0, module.pop())
            continue
        for attribute in rest:
            if not hasattr(found, attribute):
                return False
            found = getattr(found, attribute)
        return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_name_of_the_package_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    if page == OLD:
        text = re.sub(r"^\| `fedga\.[\w.]+` (?=\|)", "", text, flags=re.MULTILINE)
    names = set(NAME.findall(text)) - FILES
    assert {name for name in names if not exists(name)} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_of_the_repository_is_there(page: Path) -> None:
    paths = set(PATH.findall(page.read_text(encoding="utf-8")))
    assert {path for path in paths if "NAME" not in path and not (ROOT / path).exists()} == set()


def test_a_name_that_is_not_there_is_noticed() -> None:
    assert exists("fedga.losses.calibration.GALoss")
    assert exists("fedga.flower")
    assert not exists("fedga.losses.missing")
    assert not exists("fedga.ga_los")
    assert fedga.__version__
