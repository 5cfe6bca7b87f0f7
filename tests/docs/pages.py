"""The pages whose blocks are run, and how."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.blocks import ROOT

RUNNER = Path(__file__).with_name("blocks.py")
# Written by a program: `test_methods` checks the commands of all of them at once.
METHOD_PAGES = sorted(ROOT.glob("docs/methods/*.md"))
PAGES = sorted(
    {*ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/README.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"}
    - {*METHOD_PAGES}
)
# These train for long, or wait for servers and sites: `make test` only reads their commands, `make long` runs them.
LONG_PAGES = [
    ROOT / f"docs/{name}.md" for name in ("flower-tutorial", "real-machines", "comparison", "how-to/own-data")
]


def called(page: Path) -> str:
    return str(page.relative_to(ROOT))


def follow(page: Path, folder: Path, *, only_checked: bool = False) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(RUNNER), str(page), str(folder)]
    environment = os.environ | {"FEDGA_ONLY_CHECKED": "1" if only_checked else ""}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def works(page: Path, folder: Path, *, only_checked: bool = False) -> None:
    ended = follow(page, folder, only_checked=only_checked)
    assert ended.returncode == 0, ended.stdout + ended.stderr
