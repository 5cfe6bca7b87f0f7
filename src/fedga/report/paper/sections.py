"""From a results folder to the sections of its report: one per experiment of the paper that it holds."""

from __future__ import annotations

from pathlib import Path

from fedga.report.documents import Section


def sections_of(folder: Path) -> list[Section]:
    """The sections of the experiments that ``fedga paper`` ran in this folder; none for any other folder."""
    return []
