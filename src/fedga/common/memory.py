"""How much memory there is, so that what a file's header promises is refused before it is unpacked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from fedga.errors import FedGAError

_CGROUP = Path("/sys/fs/cgroup")


def available_memory() -> int | None:
    """Bytes that this process may still take: of the machine, its container and its own limit; None if unknown."""
    return min(_limits(), default=None)


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


def _limits() -> Iterator[int]:
    yield from _of_machine()
    yield from _of_container()
    yield from _of_process()


def _of_machine() -> Iterator[int]:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        yield next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        try:
            yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (AttributeError, ValueError, OSError):
            return


def _of_container() -> Iterator[int]:
    """What the control group allows: version 2, in this process's own group or as a container sees it."""
    try:
        own = Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2].lstrip("/")
    except OSError:
        return
    for folder in {_CGROUP / own, _CGROUP}:
        try:
            most, used = ((folder / f"memory.{name}").read_text().strip() for name in ("max", "current"))
            if most != "max":
                yield max(0, int(most) - int(used))
        except (OSError, ValueError):
            continue


def _of_process() -> Iterator[int]:
    try:
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            yield max(0, limit - pages * resource.getpagesize())
    except (ImportError, OSError, ValueError):
        return
