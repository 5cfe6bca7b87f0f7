"""The page on moving from 0.1 to 0.2 lists every module that moved."""

from __future__ import annotations

import re

from fedga._moved import _HOMES
from tests.docs.blocks import ROOT


def test_every_module_that_moved_is_in_the_table() -> None:
    text = (ROOT / "docs" / "migration.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `fedga\.([\w.]+)` \| `fedga\.([\w.]+)` \|$", text, re.MULTILINE)
    assert rows == sorted(_HOMES.items())
