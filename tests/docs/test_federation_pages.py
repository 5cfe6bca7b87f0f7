"""The pages on which a server and sites run, which takes minutes: `make federations` runs them in full.

`make test` checks their commands as the real programs read them; the same kind of federation, of real processes with
keys and TLS, killed and continued, is in ``tests/flower/test_federation.py``.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.docs.pages import FEDERATIONS, called, works

IN_FULL = bool(os.environ.get("FEDGA_FEDERATIONS"))


@pytest.mark.parametrize("page", FEDERATIONS, ids=called)
def test_the_page_works_as_written(page: Path, tmp_path: Path) -> None:
    works(page, tmp_path, only_checked=not IN_FULL)
