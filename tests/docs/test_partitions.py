"""The page of partitions: one picture for each, drawn by its script from federations that are what the page says."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from fedga.data import PARTITIONS
from tests.docs.blocks import ROOT

PAGE = ROOT / "docs" / "how-to" / "partitions.md"
LARGEST = 40_000  # bytes of a picture


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw_partitions", ROOT / "docs" / "draw_partitions.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_partition_has_a_section_and_a_small_picture(script: ModuleType) -> None:
    text = PAGE.read_text(encoding="utf-8")
    shown = re.findall(r"\]\(\.\./pictures/partition-(.*?)\.png\)", text)
    assert sorted(shown) == sorted(PARTITIONS) == sorted(script.PARTITIONS)
    assert re.findall(r"^## (.*)$", text, flags=re.MULTILINE) == shown
    pictures = [ROOT / "docs" / "pictures" / f"partition-{name}.png" for name in shown]
    assert all(0 < path.stat().st_size < LARGEST for path in pictures)


def test_the_partitions_are_what_the_page_says(script: ModuleType) -> None:
    of = script.federations()
    there = len(of["iid"].dataset.train_targets)
    assert f"{there:,}\ntraining samples" in PAGE.read_text(encoding="utf-8")
    used = {name: int(federation.sizes.sum()) for name, federation in of.items()}
    assert {name for name, number in used.items() if number == there} == {"dirichlet-class", "shards", "iid", "natural"}
    assert np.array_equal(np.sort(of["even"].indices), np.sort(of["dirichlet"].indices))
    assert (of["iid"].class_counts > 0).all()
    assert (of["natural"].class_counts == 0).any(axis=1).all()


def test_the_script_draws_them(script: ModuleType, tmp_path: Path) -> None:
    written = script.main(tmp_path)
    assert sorted(path.name for path in written) == sorted(f"partition-{name}.png" for name in PARTITIONS)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)
