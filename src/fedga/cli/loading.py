"""Libraries that do not fit into memory: told before they are loaded, since some of them would end the process."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from fedga.errors import FedGAError

# Bytes of address space that importing them takes: measured on Linux (PyTorch 2.13 for CPUs), with a tenth more.
_TAKES = {"numpy": ("NumPy", 140_000_000), "torch": ("PyTorch", 550_000_000)}


def watch_loading() -> None:
    """From now on refuse to load what does not fit below the limit of this process (``ulimit -v``), if it has one."""
    if _left() is not None and not any(isinstance(finder, _Watch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watch())


class _Watch:
    """Asked by every import before all others; it finds nothing itself."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        left = _left() if name in _TAKES else None
        if left is None:
            return
        library, takes = _TAKES[name]
        if left < takes:
            raise FedGAError(
                f"too little memory to load {library} (it takes {takes / 1e6:.0f} MB, and {left / 1e6:.0f} MB are left "
                "to this process): raise the limit (ulimit -v)"
            )


def _left() -> int | None:
    """Bytes of address space that this process may still take; None without a limit, or where there are none."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    status = Path("/proc/self/statm")
    if limit == resource.RLIM_INFINITY or not status.exists():
        return None
    return max(0, limit - int(status.read_text().split()[0]) * resource.getpagesize())
