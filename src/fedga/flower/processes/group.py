"""Flower's programs as child processes: started in an environment of our own, and ended together.

``home`` is a folder for one federation and one process at a time. Exceptions end the children on their way out; if this
very process is killed, `fedga.common.guard` does, and the next ``process_group`` waits for what is left.
"""

import contextlib
import hashlib
import os
import secrets
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fedga.common import guard
from fedga.errors import FedGAError, needs_extra
from fedga.plugins import child_env

LOOPBACK = "127.0.0.1"
_QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONUNBUFFERED": "1",
}


@dataclass(frozen=True)
class ProcessGroup:
    """Processes that end together; see ``process_group``."""

    home: Path
    mark: str
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def environment(self) -> dict[str, str]:
        """The environment of every process: ours, without telemetry, update checks and installations."""
        # Left alone, Ray joins whatever cluster was last started here; one that is to be joined is named.
        inherited = {"RAY_ADDRESS": "local", **os.environ}
        own = {**_QUIET, **child_env(), "FLWR_HOME": str(self.home), guard.VARIABLE: self.mark}
        own["PATH"] = os.pathsep.join([str(_programs()), inherited.get("PATH", os.defpath)])
        for name in ("NO_PROXY", "no_proxy"):
            own[name] = ",".join(filter(None, (inherited.get(name), LOOPBACK, "localhost")))
        return inherited | own

    def start(self, program: str, *arguments: str, log: Path | None = None) -> subprocess.Popen[str]:
        """Start a program in a session of its own, which no Ctrl-C reaches; it prints to ``log``, or ``stdout``."""
        with contextlib.nullcontext() if log is None else open(log, "ab") as out:
            process = subprocess.Popen(
                [str(_programs() / program), *arguments],  # a full path stays what it is
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=out or subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,
            )
        self.started.append(process)
        return process


@contextlib.contextmanager
def process_group(home: Path) -> Iterator[ProcessGroup]:
    """Processes that end with the block or this process; a home in use is refused, leftovers are ended first."""
    if os.name != "posix":
        raise FedGAError("running on Flower needs Linux or macOS: use one of them, or WSL on Windows")
    import fcntl

    home = home.resolve()
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)
    of_home = hashlib.sha256(str(home).encode()).hexdigest()[:16]
    group = ProcessGroup(home, f"{of_home}.{secrets.token_hex(8)}")
    with open(home / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise FedGAError(f"another process works in {home}: wait until it has ended, or stop it") from None
        guard.end(f"{of_home}.")
        try:
            with guard.watching(group.mark):
                yield group
        finally:
            for process in group.started:
                process.wait()
                if process.stdout is not None:
                    process.stdout.close()


def _programs() -> Path:
    """The folder with the programs of this Python's packages, which need not be on the PATH."""
    places = [str(Path(sys.executable).parent), sysconfig.get_path("scripts")]
    places += [sysconfig.get_path("scripts", scheme) for scheme in sysconfig.get_scheme_names() if "user" in scheme]
    for place in places:
        if Path(place, "flower-superlink").exists():
            return Path(place)
    raise needs_extra("flwr", "flower", "running on Flower")


def free_port() -> int:
    """A port of this machine's that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
