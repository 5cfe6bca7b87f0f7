"""The pages on which a server and sites run: in a file of their own, beside whose waiting other tests can work."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import FEDERATIONS, called, works


@pytest.mark.parametrize("page", FEDERATIONS, ids=called)
def test_the_page_works_as_written(page: Path, tmp_path: Path) -> None:
    works(page, tmp_path)
