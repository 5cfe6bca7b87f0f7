"""How much memory there is, so that what a file's header promises is refused before it is unpacked."""

import os
from contextlib import suppress
from pathlib import Path

from fedga.errors import FedGAError

_CGROUP = Path("/sys/fs/cgroup")


def available_memory() -> int | None:
    """Bytes that this process may still take: of the machine, its container and its own limit; None if unknown."""
    known = (_left_on_machine(), _left_to_container(), memory_left_to_process())
    return min((limit for limit in known if limit is not None), default=None)


def require_memory(needed: int, what: str, cure: str) -> None:
    """Refuse work that cannot fit; ``what`` is the subject of the sentence, ``cure`` what to do instead.

    >>> require_memory(1 << 62, "the array x of f.npz", "store fewer samples")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    fedga.errors.FedGAError: the array x of f.npz needs 4,611,686,018.4 GB of memory, and ...: store fewer samples
    """
    there = available_memory()
    if there is not None and needed > there:
        raise FedGAError(f"{what} needs {in_gb(needed)} of memory, and {in_gb(there)} are free here: {cure}")


def in_gb(size: int) -> str:
    """
    >>> in_gb(3_200_000_000), in_gb(20_000_000)
    ('3.2 GB', '0.02 GB')
    """
    return f"{size / 1e9:,.1f} GB" if size >= 5e7 else f"{size / 1e9:,.2f} GB"


def _left_on_machine() -> int | None:
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    with suppress(AttributeError, ValueError, OSError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _left_to_container() -> int | None:
    """What the control group allows: version 2, in this process's own group or as a container sees it."""
    found = []
    try:
        own = Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2].lstrip("/")
    except OSError:
        return None
    for folder in {_CGROUP / own, _CGROUP}:
        with suppress(OSError, ValueError):
            most, used = ((folder / f"memory.{name}").read_text().strip() for name in ("max", "current"))
            if most != "max":
                found.append(max(0, int(most) - int(used)))
    return min(found, default=None)


def memory_left_to_process() -> int | None:
    """Bytes of address space below the limit of this process (``ulimit -v``); None without one."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            return max(0, limit - int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize())
    return None
