"""Flower's server, the SuperLink, as a child process: `superlink` starts and ends it, `SuperLink.run` runs an app."""

import contextlib
import json
import re
import ssl
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    """How a run ended."""

    run_id: int
    status: str  # Flower's word: finished:completed, finished:failed or finished:stopped
    details: str

    @property
    def completed(self) -> bool:
        return self.status == "finished:completed"


class _RunLog:
    """The log of a run, every line once: each stream of it begins with the first line again."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._passed_on = 0
        self._place: int | None = None  # in the current stream; None before its first line
        self._first_stream = True
        self.last: deque[str] = deque(maxlen=_LINES_KEPT)
        self.run_id: int | None = None

    def feed(self, line: str) -> None:
        """A line of a command that streams the log; what it prints beforehand is passed on the first time only."""
        if self._place is None:
            if found := _STARTED.search(line):
                self.run_id = int(found[1])
            if _LOG_BEGINS in line:
                self._place = 0
            fresh = self._first_stream
        else:
            self._place += 1
            fresh = self._place > self._passed_on
            self._passed_on = max(self._passed_on, self._place)
        if fresh:
            self.last.append(line)
            self._on_line(line)

    def end(self, code: int) -> None:
        """The command has ended; if it failed, its last words are not lines of the log."""
        while code and self._place and self.last and _OF_FLWR.match(self.last[-1]):
            self.last.pop()
            self._passed_on -= 1
        self._place, self._first_stream = None, False


@dataclass(frozen=True)
class SuperLink:
    """A running SuperLink of ours; see ``superlink``."""

    group: ProcessGroup
    process: subprocess.Popen[str]
    address: str  # host:port, on this machine
    log: Path

    def run(
        self,
        app: Path,
        settings: Mapping[str, Value] | None = None,
        federation: Mapping[str, float] | None = None,
        on_line: Callable[[str], None] = lambda line: None,
    ) -> Outcome:
        """Submit the Flower app in a folder and wait for its end; every line it logs goes to ``on_line``.

        ``settings`` override the app's, ``federation`` is for ``--federation-config``. A run that fails is an outcome.
        """
        arguments = ["run", str(app), CONNECTION, "--stream"]
        if settings:
            overrides = write_whole(self.group.home / "settings.toml", as_toml(settings))
            arguments += ["--run-config", str(overrides)]
        if federation:
            arguments += ["--federation-config", " ".join(f"{name}={value}" for name, value in federation.items())]
        log = _RunLog(on_line)
        self._stream(arguments, log)
        if log.run_id is None:
            raise FedGAError(f"Flower did not start the run: {self._reason(chr(10).join(log.last))}")
        while not (outcome := self._runs("--run-id", str(log.run_id))[0]).status.startswith("finished"):
            self._stream(["log", str(log.run_id), CONNECTION, "--stream"], log)  # which broke off before the end
            time.sleep(_RESUME_AFTER_S)
        return outcome

    def _stream(self, arguments: Sequence[str], log: _RunLog) -> None:
        process = self.group.start("flwr", *arguments)
        assert process.stdout is not None
        with process:
            for line in process.stdout:
                log.feed(plain(line.rstrip("\r\n")))
        log.end(process.returncode)
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
def superlink(home: Path, arguments: Sequence[str], log: Path, ca: Path | None = None) -> Iterator[SuperLink]:
    """A SuperLink on a free port of 127.0.0.1, ready for runs; it and all it started end with the block.

    ``arguments`` are those of ``flower-superlink``: ``--insecure``, or the ``--ssl-…`` files where ``ca`` is given.
    """
    with process_group(home) as group:
        yield start_superlink(group, arguments, log, ca)


def start_superlink(group: ProcessGroup, arguments: Sequence[str], log: Path, ca: Path | None = None) -> SuperLink:
    """``superlink`` for a group that has other processes, too."""
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
