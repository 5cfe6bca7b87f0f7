"""The page on the architecture: its picture is that of the code, and it has a line for every room."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.blocks import ROOT

PAGE = ROOT / "docs" / "architecture.md"


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "tools")
        yield importlib.import_module("draw_architecture")


def test_the_picture_shows_the_rooms_layers_and_imports_of_the_code(script: ModuleType) -> None:
    """Not their numbers, which change with every commit."""
    drawn, there = script.drawn_architecture(), script.read_architecture()
    assert drawn.layers == there.layers, "redraw it: make architecture"
    assert set(drawn.imports) == set(there.imports), "redraw it: make architecture"


def test_what_is_drawn_is_read_back(script: ModuleType, tmp_path: Path) -> None:
    there = script.Architecture((("cli",), ("data", "spec"), ("errors",)), {("cli", "spec"): 3, ("errors", "cli"): 1})
    (tmp_path / "a.svg").write_text(script.draw(there), encoding="utf-8")
    assert script.drawn_architecture(tmp_path / "a.svg") == there


def test_every_room_is_on_the_page_and_has_a_colour(script: ModuleType) -> None:
    rooms = script.read_architecture().rooms
    assert re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE) == rooms
    assert set(rooms) <= {room for _, members in script.GROUPS.values() for room in members}
