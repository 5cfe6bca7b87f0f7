"""The driver's side of the conversation with a contender's process; the other side is `turns.py`."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

PATIENCE = 900.0  # seconds for one answer; a round of the largest network takes one or two minutes


class ContenderFailedError(Exception):
    """A contender died, fell silent or gave nonsense; its text says which, ``log`` holds what it printed."""

    def __init__(self, reason: str, log: Path) -> None:
        super().__init__(reason)
        self.log = log


class Process:
    """A contender that runs one round when told to, and is idle otherwise."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.log, self.rounds = log, 0
        self._began = time.perf_counter()
        with log.open("w") as output:
            self._child = subprocess.Popen(
                command,
                **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": output, "bufsize": 0},
                env=environment,
                start_new_session=True,  # so that Ctrl-C reaches the driver alone, which then stops its contenders
            )

    def start(self) -> tuple[float, dict[str, str]]:
        """Seconds from nothing to the first finished round, and versions."""
        versions = self.greeting()
        self.round()
        return time.perf_counter() - self._began, versions

    def greeting(self) -> dict[str, str]:
        """The versions it names once it is ready for its first round."""
        return self._answer()["versions"]

    def round(self) -> float:
        """Seconds of one round."""
        seconds = self._ask("round")["seconds"]
        self.rounds += 1
        return seconds

    def accuracy(self) -> float:
        return self._ask("accuracy")["accuracy"]

    def peak_memory_mib(self) -> float | None:
        """Its memory and that of the processes it started, at the peak of each; None where the system does not tell.

        What processes share counts once: the shares they hold now, and what each held beyond its present size.
        """
        kib = [_peak_kib(pid) for pid in self._family()]
        return sum(kib) / 1024 if kib else None

    def stop(self) -> None:
        """Ask it to end, and end what is left of it and of the processes it started."""
        if self._child.stdout.closed:
            return
        family = self._family()
        with contextlib.suppress(OSError):
            self._child.stdin.write(b"stop\n")
        self._child.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(20)
        for pid, _ in family.items() & _running().items():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._child.wait()
        self._child.stdout.close()

    def _ask(self, order: str) -> dict[str, Any]:
        try:
            self._child.stdin.write(f"{order}\n".encode())
        except OSError:
            raise self._failure() from None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        if not select.select([self._child.stdout], [], [], PATIENCE)[0]:
            raise ContenderFailedError(f"no answer within {PATIENCE:.0f} seconds", self.log)
        line = self._child.stdout.readline()
        if not line:
            raise self._failure()
        try:
            return json.loads(line)
        except ValueError:
            raise ContenderFailedError(f"it answered {line!r}", self.log) from None

    def _failure(self) -> ContenderFailedError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(10)  # what it has to say comes after its last answer
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return ContenderFailedError(lines[-1].strip() if lines else "it ended without a word", self.log)

    def _family(self) -> dict[int, _Status]:
        """Its process, all that descend from it, and those of its session whose parents have gone."""
        everyone = _running()
        family = {pid for pid, status in everyone.items() if self._child.pid in (pid, status.session)}
        while more := {pid for pid, status in everyone.items() if status.parent in family} - family:
            family |= more
        return {pid: everyone[pid] for pid in family}


class _Status(NamedTuple):
    parent: int
    session: int
    began: int  # tells a process from a later one with its number


def _running() -> dict[int, _Status]:
    running = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                running[int(path.parent.name)] = _Status(int(fields[1]), int(fields[3]), int(fields[19]))
    return running


def _peak_kib(pid: int) -> int:
    try:
        shares = _kib(Path(f"/proc/{pid}/smaps_rollup"), "Pss:")
        status = Path(f"/proc/{pid}/status")
        return shares + _kib(status, "VmHWM:") - _kib(status, "VmRSS:")
    except OSError:
        return 0


def _kib(path: Path, key: str) -> int:
    return next((int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith(key)), 0)
