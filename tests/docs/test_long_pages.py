"""The pages that take minutes: `make test` checks their commands as the real programs read them, `make long` runs them.

A federation of real processes with keys and TLS, killed and continued, is in ``tests/flower/test_federation.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import LONG_PAGES, called, works


@pytest.mark.parametrize("page", LONG_PAGES, ids=called)
def test_the_commands_of_the_page_are_understood(page: Path, tmp_path: Path) -> None:
    works(page, tmp_path, only_checked=True)


@pytest.mark.long
@pytest.mark.parametrize("page", LONG_PAGES, ids=called)
def test_the_page_works_as_written(page: Path, tmp_path: Path) -> None:
    works(page, tmp_path)
