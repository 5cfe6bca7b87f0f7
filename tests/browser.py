"""The browser that pages are opened with."""

from __future__ import annotations

import os
import shutil

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# In CI they fail without a browser: a page that nobody opened has not been tested.
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None and not os.environ.get("CI"),
    reason="needs Chromium: `apt install chromium`, `brew install --cask chromium` or Google Chrome",
)
