"""Libraries that do not fit into memory are refused before they are loaded, since some would end the process."""

import sys
from typing import Any

from fedga.common.memory import memory_left_to_process
from fedga.errors import FedGAError

# Bytes of address space that importing them takes: measured on Linux (PyTorch 2.13 for CPUs), with a tenth more.
_TAKES = {"numpy": ("NumPy", 140_000_000), "torch": ("PyTorch", 550_000_000)}


def watch_loading() -> None:
    """From now on refuse to load what does not fit below the limit of this process (``ulimit -v``), if it has one."""
    if memory_left_to_process() is not None and not any(isinstance(finder, _Watch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watch())


class _Watch:
    """Asked by every import before all others; it finds nothing itself."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name not in _TAKES or (left := memory_left_to_process()) is None:
            return
        library, takes = _TAKES[name]
        if left < takes:
            room = f"it takes {takes / 1e6:.0f} MB, and {left / 1e6:.0f} MB are left to this process"
            raise FedGAError(f"too little memory to load {library} ({room}): raise the limit (ulimit -v)")
