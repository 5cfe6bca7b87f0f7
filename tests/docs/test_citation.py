"""CITATION.cff: what a reader cites is this version, and the file is of format 1.2."""

from __future__ import annotations

import re

import yaml

import fedga
from tests.docs.blocks import ROOT


def test_it_cites_this_version_and_the_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["cff-version"] == "1.2.0"
    assert (citation["title"], citation["version"], citation["license"]) == ("fedga", fedga.__version__, "Apache-2.0")
    (paper,) = citation["references"]
    assert {"authors", "title", "type"} <= set(paper)
    assert [author["family-names"] for author in paper["authors"]] == ["Xiao", "Zuo", "Wang"]


def test_the_changelog_has_a_part_for_this_version() -> None:
    parts = re.findall(r"^## (\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert parts[0] == ".".join(fedga.__version__.split(".")[:2])
