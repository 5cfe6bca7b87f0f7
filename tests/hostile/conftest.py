"""Every test here works in a folder of its own, as those of the command line do."""

from __future__ import annotations

from tests.cli.conftest import _own_world

__all__ = ["_own_world"]
