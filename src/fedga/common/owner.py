"""Which process works on something, and whether it still lives.

Process numbers are recycled, so a process is known by its number and the moment it started; a number means nothing on
another machine, after a restart or inside another container, so ``machine`` names all three.
"""

import hashlib
import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

STALE_AFTER_S = 120.0  # silence after which a process on another machine is taken for dead
_TEXT = re.compile(r"(?P<machine>[\w-]+)\.(?P<pid>\d{1,9})\.(?P<started>\d*)", re.ASCII)


@dataclass(frozen=True)
class Owner:
    """A process; its text is safe in a file name."""

    machine: str
    pid: int
    started: str

    @classmethod
    def this_process(cls) -> "Owner":
        return cls(_machine(), os.getpid(), _started(os.getpid()) or "")

    @classmethod
    def parse(cls, text: object) -> "Owner":
        """From its text; a ``ValueError`` for anything else, as damage or a stranger may leave it."""
        match = _TEXT.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ValueError("not the text of a process")
        return cls(match["machine"], int(match["pid"]), match["started"])

    def __str__(self) -> str:
        return f"{self.machine}.{self.pid}.{self.started}"

    def alive(self) -> bool | None:
        """Whether the process runs; None where that cannot be seen from here."""
        if self.machine != _machine():
            return None
        started = _started(self.pid)
        if started is None:
            return False
        if not started or not self.started:
            return None
        return started == self.started


def is_gone(owner: object, last_sign: object) -> bool:
    """Whether the work of a process, known by its text and the time of its last sign of life, may be taken over."""
    try:
        alive = Owner.parse(owner).alive()
    except ValueError:  # a name that no process has
        return True
    if not isinstance(last_sign, (int, float)):
        return True
    return time.time() - last_sign > STALE_AFTER_S if alive is None else not alive


def _machine() -> str:
    """Host name with a hash of its boot and process namespace: where process numbers mean the same."""
    import socket  # a few milliseconds, which only who writes files needs

    parts = ["", ""]
    with suppress(OSError):
        parts[0] = Path("/proc/sys/kernel/random/boot_id").read_text()
        parts[1] = os.readlink("/proc/self/ns/pid")
    name = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:40] or "host"
    return f"{name}-{hashlib.sha256(''.join(parts).encode()).hexdigest()[:8]}"


def _started(pid: int) -> str | None:
    """The start of a running process in clock ticks; None if there is none, "" if the system does not say."""
    with suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]  # a zombie works no more
    if os.name == "posix":  # elsewhere os.kill would end the process
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except OSError:
            pass
    return ""
