"""Flower's server, the SuperLink, as a child process: `superlink` starts and ends it, `SuperLink.run` runs an app."""

import contextlib
import json
import re
import ssl
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedga.common.files import write_whole
from fedga.errors import FedGAError
from fedga.flower.processes.group import LOOPBACK, ProcessGroup, free_port, process_group
from fedga.flower.processes.words import Value, as_toml, last_words, plain, tail

CONNECTION = "fedga"  # the name of our server in Flower's own settings
_START_WITHIN_S = 90.0
_STARTED = re.compile(r"Successfully started run (\d+)")
_LOG_BEGINS = "Starting logstream for run_id"  # with which `flwr run --stream` and `flwr log` end their own remarks
_OF_FLWR = re.compile(r"\s*(?:[╭│╰]|Error: )")  # how they say that a stream has broken off
_LINES_KEPT = 200
_RESUME_AFTER_S = 1.0


@dataclass(frozen=True)
class Outcome:
    run_id: int
    status: str  # Flower's word: finished:completed, finished:failed or finished:stopped
    details: str

    @property
    def completed(self) -> bool:
        return self.status == "finished:completed"


@dataclass
class _RunLog:
    run_id: int | None = None
    passed_on: int = 0  # lines
    last: deque[str] = field(default_factory=lambda: deque(maxlen=_LINES_KEPT))


@dataclass(frozen=True)
class SuperLink:
    group: ProcessGroup
    process: subprocess.Popen[str]
    address: str  # host:port, on this machine
    log: Path

    def run(self, app: Path, on_line: Callable[[str], None], federation: Mapping[str, float] | None = None) -> Outcome:
        """Submit the Flower app in a folder and wait for its end; every line it logs goes to ``on_line``.

        ``federation`` is for ``--federation-config``. A run that fails is an outcome.
        """
        arguments = ["run", str(app), CONNECTION, "--stream"]
        if federation:
            arguments += ["--federation-config", " ".join(f"{name}={value}" for name, value in federation.items())]
        log = _RunLog()
        self._stream(arguments, log, on_line)
        if log.run_id is None:
            raise FedGAError(f"Flower did not start the run: {self._reason(chr(10).join(log.last))}")
        while not (outcome := self._runs("--run-id", str(log.run_id))[0]).status.startswith("finished"):
            # The stream broke off before the end.
            self._stream(["log", str(log.run_id), CONNECTION, "--stream"], log, on_line)
            time.sleep(_RESUME_AFTER_S)
        return outcome

    def _stream(self, arguments: Sequence[str], log: _RunLog, on_line: Callable[[str], None]) -> None:
        """Pass on what a command streams of the log, every line once: each stream begins with the first line again.

        What ``flwr run`` prints before the log is passed on as well.
        """
        process, place = self.group.start("flwr", *arguments), None
        assert process.stdout is not None
        with process:
            for written in process.stdout:
                line = plain(written.rstrip("\r\n"))
                if place is None:  # before the log
                    fresh = arguments[0] == "run"
                    log.run_id = int(found[1]) if (found := _STARTED.search(line)) else log.run_id
                    place = 0 if _LOG_BEGINS in line else None
                else:
                    place += 1
                    fresh = place > log.passed_on
                    log.passed_on = max(log.passed_on, place)
                if fresh:
                    log.last.append(line)
                    on_line(line)
        while process.returncode and place and log.last and _OF_FLWR.match(log.last[-1]):  # its own last words
            log.last.pop()
            log.passed_on -= 1
        self.check()

    def stop_unfinished(self) -> None:
        """Stop the runs of a SuperLink that was killed, which its database still takes for running."""
        for run in self._runs():
            if not run.status.startswith("finished"):
                process = self.group.start("flwr", "stop", str(run.run_id), CONNECTION)
                printed, _ = process.communicate()
                if process.returncode:
                    raise FedGAError(f"flwr stop {run.run_id} failed: {self._reason(printed)}")

    def _runs(self, *arguments: str) -> list[Outcome]:
        printed, _ = self.group.start("flwr", "list", CONNECTION, *arguments, "--format", "json").communicate()
        try:
            runs = json.loads(printed[printed.index("{") :])["runs"]
        except (ValueError, KeyError):
            raise FedGAError(f"Flower does not list its runs: {self._reason(printed)}") from None
        return [Outcome(int(run["run-id"]), run["status"], run.get("status-details", "")) for run in runs]

    def check(self) -> None:
        """A SuperLink that has died is an error that says where to look."""
        if self.process.poll() is not None:
            raise FedGAError(f"Flower's SuperLink ended by itself: {self._reason('')}")

    def _reason(self, printed: str) -> str:
        """The last words of a program, or of the SuperLink's log."""
        return last_words(printed) or f"{last_words(tail(self.log)) or 'no message'} (full log: {self.log})"


@contextlib.contextmanager
def superlink(home: Path, arguments: Sequence[str], log: Path) -> Iterator[SuperLink]:
    """A SuperLink, ready for runs; it and all it started end with the block."""
    with process_group(home) as group:
        yield start_superlink(group, arguments, log)


def start_superlink(group: ProcessGroup, arguments: Sequence[str], log: Path, ca: Path | None = None) -> SuperLink:
    """A SuperLink on a free port of 127.0.0.1, in a group that may have other processes, too.

    ``arguments`` are those of ``flower-superlink``: ``--insecure``, or the ``--ssl-…`` files where ``ca`` is given.
    """
    for _ in range(3):  # somebody else may take the free port first
        port = free_port()
        process = group.start("flower-superlink", *arguments, "--host", LOOPBACK, "--port", str(port), log=log)
        link = SuperLink(group, process, f"{LOOPBACK}:{port}", log)
        if _answers(link, ca):
            safety: dict[str, Value] = {"root-certificates": str(ca.resolve())} if ca else {"insecure": True}
            connection = as_toml({"address": link.address, **safety})
            settings = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n{connection}'
            write_whole(group.home / "config.toml", settings)  # by which Flower's commands find our SuperLink
            return link
    link.check()
    raise FedGAError(f"Flower's SuperLink does not answer after {_START_WITHIN_S:.0f} s: its log is {log}")


def _answers(link: SuperLink, ca: Path | None) -> bool:
    """Wait for the SuperLink to answer; False if it ended instead."""
    import httpx  # comes with Flower

    trusted, deadline = ssl.create_default_context(cafile=str(ca)) if ca else False, time.monotonic() + _START_WITHIN_S
    with httpx.Client(verify=trusted, trust_env=False, timeout=5.0) as client:
        while link.process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(httpx.TransportError):
                if client.get(f"{'https' if ca else 'http'}://{link.address}/health").is_success:
                    return True
            time.sleep(0.1)
    return False
