"""What a measurement was made on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any


def describe() -> dict[str, Any]:
    """Processor, cores, caches, memory and system, as far as this system tells."""
    return {
        "processor": _first_value("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "caches": _caches(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "system": _system(),
        "python": platform.python_version(),
    }


def in_words(machine: dict[str, Any]) -> str:
    caches = ", ".join(f"{name} {size}" for name, size in machine["caches"].items())
    parts = [machine["processor"], f"{machine['cores']} cores", caches, f"{machine['memory_gib']:g} GiB of memory"]
    return "; ".join(part for part in [*parts, machine["system"], f"Python {machine['python']}"] if part)


def _first_value(path: str, key: str) -> str:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def _caches() -> dict[str, str]:
    """Size per level, of the first core: ``{"L1d": "32K", "L3": "16384K"}``."""
    sizes = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        sizes[f"L{level}" + {"Data": "d", "Instruction": "i"}.get(kind, "")] = size
    return sizes


def _system() -> str:
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        name = platform.system()
    return f"{name}, kernel {platform.release()}"
