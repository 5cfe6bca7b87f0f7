"""What `fedga run` leaves behind: a table on the terminal, pictures in the folder."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console


def print_summary(folder: Path, run_ids: set[str], console: Console) -> None: ...


def draw_pictures(folder: Path, run_ids: set[str]) -> None: ...
