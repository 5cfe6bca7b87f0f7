"""Flower's server, the SuperLink, as a child process.

A run takes two steps. ``superlink`` starts the server on a free port of this machine and ends it, with all it started,
when the block ends; ``SuperLink.run`` submits an app to it and follows the run to its end::

    arguments = ["--insecure", "--simulation"]
    with superlink(home, arguments, log=home / "superlink.log") as link:
        outcome = link.run(app, settings={"rounds": 3}, federation={"num-supernodes": 10}, on_line=print)
    if not outcome.completed:
        ...  # outcome.status, outcome.details
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import ssl
import subprocess
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedga.common.files import write_whole
from fedga.errors import FedGAError
from fedga.flower.processes.group import LOOPBACK, ProcessGroup, family, free_port
from fedga.flower.processes.words import Value, as_toml, as_words, last_words, plain, tail

CONNECTION = "fedga"  # the name of our server in Flower's own settings
_START_WITHIN_S = 90.0
_STARTED = re.compile(r"Successfully started run (\d+)")
_LOG_BEGINS = "Starting logstream for run_id"  # with which `flwr run --stream` and `flwr log` end their own remarks
_OF_FLWR = re.compile(r"\s*(?:[╭│╰]|Error: )")  # how they say that a stream has broken off
_LINES_KEPT = 200
_TAKE_UP_AFTER_S = 1.0


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
        self._place: int | None = None  # in the stream that runs; None before its first line
        self._first = True
        self._last: deque[str] = deque(maxlen=_LINES_KEPT)

    def take(self, line: str) -> None:
        """A line of a command that streams the log; what it says beforehand is passed on the first time only."""
        if self._place is None:
            if _LOG_BEGINS in line:
                self._place = 0
            if self._first:
                self._on_line(line)
            return
        self._place += 1
        if self._place > self._passed_on:
            self._passed_on = self._place
            self._last.append(line)
            self._on_line(line)

    def ended(self, code: int) -> None:
        """The command has ended; if it failed, its last words are no lines of the log."""
        while code and self._last and _OF_FLWR.match(self._last[-1]):
            self._last.pop()
            self._passed_on -= 1
        self._place, self._first = None, False


@dataclass(frozen=True)
class SuperLink:
    """A running SuperLink of ours; see ``superlink``."""

    family: ProcessGroup
    process: subprocess.Popen[str]
    address: str  # host:port, on this machine
    log: Path

    def flwr(self, *arguments: str) -> str:
        """What a command of Flower's says, asked of this SuperLink: ``flwr("supernode", "list")``."""
        process = self.family.start("flwr", *arguments, CONNECTION)
        said, _ = process.communicate()
        if process.returncode:
            raise FedGAError(f"flwr {' '.join(arguments[:2])} failed: {self._reason(said)}")
        return plain(said)

    def run(
        self,
        app: Path,
        settings: Mapping[str, Value] | None = None,
        federation: Mapping[str, Value] | None = None,
        on_line: Callable[[str], None] = lambda line: None,
    ) -> Outcome:
        """Submit the Flower app in a folder and wait until its run has ended; every line it logs goes to ``on_line``.

        ``settings`` override the app's ``[tool.flwr.app.config]``, ``federation`` is what ``--federation-config``
        takes, both with the names Flower gives them (hyphens). A run that could not be started, or a SuperLink that
        dies meanwhile, is a ``FedGAError``; a run that fails is an outcome.
        """
        arguments = ["run", str(app), CONNECTION, "--stream"]
        if settings:
            overrides = write_whole(self.family.home / "settings.toml", as_toml(settings))
            arguments += ["--run-config", str(overrides)]
        if federation:
            arguments += ["--federation-config", as_words(federation)]
        said: deque[str] = deque(maxlen=_LINES_KEPT)
        found: list[int] = []
        log = _RunLog(on_line)

        def take(line: str) -> None:
            if not found and (match := _STARTED.search(line)):
                found.append(int(match[1]))
            said.append(line)
            log.take(line)

        log.ended(self._follow(arguments, take))
        if not found:
            raise FedGAError(f"Flower did not start the run: {self._reason(os.linesep.join(said))}")
        return self._until_ended(found[0], log)

    def _until_ended(self, run_id: int, log: _RunLog) -> Outcome:
        """The stream of log lines may break off before the run ends: then it is taken up where it was."""
        while not (outcome := self.outcome(run_id)).status.startswith("finished"):
            log.ended(self._follow(["log", str(run_id), CONNECTION, "--stream"], log.take))
            time.sleep(_TAKE_UP_AFTER_S)
        return outcome

    def outcome(self, run_id: int) -> Outcome:
        """How a run stands."""
        [run] = self._runs("--run-id", str(run_id))
        return run

    def stop_unfinished(self) -> list[int]:
        """Stop the runs of a SuperLink that was killed, which its database still takes for running; their numbers."""
        left = [run.run_id for run in self._runs() if not run.status.startswith("finished")]
        for run_id in left:
            self.flwr("stop", str(run_id))
        return left

    def _runs(self, *arguments: str) -> list[Outcome]:
        process = self.family.start("flwr", "list", CONNECTION, *arguments, "--format", "json")
        said, _ = process.communicate()
        try:
            runs = json.loads(said[said.index("{") :])["runs"]
        except (ValueError, KeyError):
            raise FedGAError(f"Flower does not say how its runs stand: {self._reason(said)}") from None
        return [Outcome(int(run["run-id"]), run["status"], run.get("status-details", "")) for run in runs]

    def _follow(self, arguments: Sequence[str], on_line: Callable[[str], None]) -> int:
        process = self.family.start("flwr", *arguments)
        assert process.stdout is not None
        with process:
            for line in process.stdout:
                on_line(plain(line.rstrip("\r\n")))
        self.check()
        return process.returncode

    def check(self) -> None:
        """A SuperLink that has died is an error that says where to look."""
        if self.process.poll() is not None:
            raise FedGAError(f"Flower's SuperLink ended by itself: {self._reason('')}")

    def _reason(self, said: str) -> str:
        """The last words of a program, or of the SuperLink's log."""
        return last_words(said) or f"{last_words(tail(self.log)) or 'it said nothing'} (all of it: {self.log})"


@contextlib.contextmanager
def superlink(
    home: Path,
    arguments: Sequence[str],
    log: Path,
    ca: Path | None = None,
) -> Iterator[SuperLink]:
    """A SuperLink on a free port of 127.0.0.1, ready for runs; it and all it started end with the block.

    ``arguments`` are those of ``flower-superlink`` without host and port. Without ``ca`` it is spoken to in plain
    text, so ``arguments`` hold ``--insecure``; with the certificate of an authority, over TLS, so ``arguments`` hold
    the ``--ssl-…`` files, and the server's certificate is made out to 127.0.0.1 among others. ``log`` gets everything
    the SuperLink and the programs below it say.
    """
    with family(home) as members:
        yield start_superlink(members, arguments, log, ca)


def start_superlink(members: ProcessGroup, arguments: Sequence[str], log: Path, ca: Path | None = None) -> SuperLink:
    """``superlink`` for a family that has other members, too."""
    for _ in range(3):  # somebody else may take the free port first
        port = free_port()
        process = members.start("flower-superlink", *arguments, "--host", LOOPBACK, "--port", str(port), log=log)
        link = SuperLink(members, process, f"{LOOPBACK}:{port}", log)
        if _answers(link, ca):
            _write_settings(members.home, link.address, ca)
            return link
    link.check()
    raise FedGAError(f"Flower's SuperLink does not answer after {_START_WITHIN_S:.0f} s: its log is {log}")


def _answers(link: SuperLink, ca: Path | None) -> bool:
    """Wait for the SuperLink to say that it is well; False if it ended instead."""
    context = ssl.create_default_context(cafile=str(ca)) if ca else None
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if context is not None:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    opener = urllib.request.build_opener(*handlers)
    deadline = time.monotonic() + _START_WITHIN_S
    while link.process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            opener.open(f"{'https' if ca else 'http'}://{link.address}/health", timeout=5).close()
            return True
        time.sleep(0.1)
    return False


def _write_settings(home: Path, address: str, ca: Path | None) -> None:
    """Flower's own settings file, by which its commands find our SuperLink."""
    safety: dict[str, Value] = {"root-certificates": str(ca.resolve())} if ca else {"insecure": True}
    connection = as_toml({"address": address, **safety})
    write_whole(
        home / "config.toml", f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n{connection}'
    )
