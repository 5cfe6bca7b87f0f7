"""Ends a group of processes: when told to, and when whoever started them is killed.

Flower's programs and Ray start others in sessions of their own; what all share is the group's mark in ``FEDGA_GROUP``.
As a program, with the standard library alone so that it starts at once, this module waits until its parent has closed
the pipe to it or is gone, and then ends every process with that mark.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "FEDGA_GROUP"
_PATIENCE_S = 4.0  # between asking to end and ending
_CHECK_EVERY_S = 0.05


def members(mark: str) -> set[int]:
    """The running processes whose mark begins so, and their descendants, some of which overwrite their environment."""
    marked, parents = _of_proc(mark) if Path("/proc/self/environ").exists() else _of_ps(mark)
    while more := {pid for pid, parent in parents.items() if parent in marked} - marked:
        marked |= more
    return marked - {os.getpid()}


def end(mark: str) -> None:
    """Ask every process with this mark to end, wait a little, and kill those that are left."""
    deadline, number = time.monotonic() + _PATIENCE_S, signal.SIGTERM
    asked: set[int] = set()
    while left := members(mark):
        if time.monotonic() >= deadline:
            asked, number = set(), signal.SIGKILL
        for pid in left - asked:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        asked |= left
        time.sleep(_CHECK_EVERY_S)


@contextlib.contextmanager
def watching(mark: str, folder: str | None = None) -> Iterator[None]:
    """Every process with this mark ends with the block, or with this process, and the folder is removed."""
    watcher = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, mark, *([folder] if folder else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        assert watcher.stdin is not None
        watcher.stdin.close()  # at which it ends the group, as it would if we were dead, and then itself
        while watcher.returncode is None:
            with contextlib.suppress(KeyboardInterrupt):  # once more: the few seconds are needed
                watcher.wait()


def _of_proc(mark: str) -> tuple[set[int], dict[int, int]]:
    wanted, marked, parents = f"{VARIABLE}={mark}".encode(), set(), {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state in "ZX":  # ended, and only not yet noticed by its parent
                continue
            parents[int(folder.name)] = int(parent)
            variables = (folder / "environ").read_bytes().split(b"\0")
        except (OSError, ValueError):  # gone meanwhile, or somebody else's
            continue
        if any(variable.startswith(wanted) for variable in variables):
            marked.add(int(folder.name))
    return marked, parents


def _of_ps(mark: str) -> tuple[set[int], dict[int, int]]:
    listing = subprocess.run(["ps", "axeww", "-o", "pid=,ppid=,stat=,command="], capture_output=True, text=True).stdout
    marked, parents = set(), {}
    for line in listing.splitlines():
        pid, parent, state, command = [*line.split(None, 3), ""][:4]
        if not state.startswith("Z"):
            parents[int(pid)] = int(parent)
            if f" {VARIABLE}={mark}" in command:
                marked.add(int(pid))
    return marked, parents


def _watch(mark: str, *folders: str) -> None:
    parent = os.getppid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.getppid() == parent:
        readable, _, _ = select.select([sys.stdin], [], [], 1.0)
        if readable and not os.read(sys.stdin.fileno(), 1):
            break
    end(mark)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _watch(*sys.argv[1:])
