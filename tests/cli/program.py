"""The program as a user meets it: called in this process, or in others that can be stopped and killed."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from fedga.cli import main
from tests.patience import PATIENCE_S

# Two runs of three rounds: every part of the program in less than a second.
SMALL = "--dataset digits --rounds 3 --clients 10 --active 2 --threads 1 --evaluate-every 1 --no-pictures"

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tests.cli.program", "fedga.cli.commands.run", "fedga.study.sweep", "sklearn.datasets"])


@dataclass(frozen=True)
class Outcome:
    """What the program left behind."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The one sentence of a refused command; anything beside it fails the test."""
        assert self.code == 2, self
        assert self.out == "", self.out
        assert self.err.startswith("fedga: "), self.err
        assert self.err.count("\n") == 1, self.err
        assert "Traceback" not in self.err, self.err
        return self.err.removeprefix("fedga: ").rstrip("\n")


def split(command: str) -> list[str]:
    """Like a shell does; of an option given twice the last one stands, so that tests can vary ``SMALL``."""
    words, kept = shlex.split(command), []
    for place, word in enumerate(words):
        repeated = word.startswith("--") and word in words[place + 1 :]
        of_repeated = place > 0 and words[place - 1].startswith("--") and words[place - 1] in words[place:]
        if not repeated and not (of_repeated and not word.startswith("--")):
            kept.append(word)
    return kept


def fedga(command: str, *arguments: str | os.PathLike[str]) -> Outcome:
    """Call the program here; ``command`` is split like a shell does, ``arguments`` are taken as they are."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([*split(command), *map(os.fspath, arguments)])
        except SystemExit as end:
            code = int(end.code or 0)
    return Outcome(code, out.getvalue(), err.getvalue())


def done(command: str, *arguments: str | os.PathLike[str]) -> Outcome:
    """Call the program here, and expect it to succeed."""
    outcome = fedga(command, *arguments)
    assert outcome.code == 0, outcome.err
    return outcome


def files(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder, with its content."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@dataclass
class Other:
    """The program in another process; what it says goes to a file."""

    process: BaseProcess
    log: Path

    @property
    def err(self) -> str:
        return self.log.read_text(encoding="utf-8") if self.log.exists() else ""

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def wait(self, seconds: float = PATIENCE_S) -> int:
        self.process.join(seconds)
        assert self.process.exitcode is not None, f"still running after {seconds} s: {self.err}"
        return self.process.exitcode

    def until(self, happened: Callable[[], bool]) -> None:
        """Wait for something that this process should bring about."""
        deadline = time.monotonic() + PATIENCE_S
        while not happened():
            assert self.process.is_alive(), self.err
            assert time.monotonic() < deadline, self.err
            time.sleep(0.002)


def start(command: str, log: Path) -> Other:
    """The program in a process of its own, forked from a server that has loaded torch once for all of them.

    It commits every round, and writes every round it trains, with the runs of it, into ``trained.txt`` beside ``log``.
    """
    process = _SERVER.Process(target=_child, args=(command, str(log), os.getcwd()), daemon=True)
    process.start()
    return Other(process, log)


def trained(log: Path) -> list[tuple[str, int]]:
    """Every run and round that processes with such a ``log`` have trained."""
    path = log.with_name("trained.txt")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [(run_id, int(number)) for number, *run_ids in map(str.split, lines) for run_id in run_ids]


def _child(command: str, log: str, folder: str) -> None:
    import torch

    from fedga.engine.engine import Engine
    from fedga.engine.server import LaneRound
    from fedga.study import sweep

    os.chdir(folder)
    torch.set_num_threads(1)
    said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(said, 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sweep.COMMIT_EVERY_S, sweep.POLL_EVERY_S = 0.0, 0.05
    run_round = Engine.run_round

    def noted(self: Engine) -> list[LaneRound]:
        result = run_round(self)
        line = " ".join([str(self.round), *(lane.spec.run_id for lane in self.lanes)])
        with open(Path(log).with_name("trained.txt"), "a", encoding="utf-8") as notes:
            notes.write(line + "\n")
        return result

    Engine.run_round = noted  # type: ignore[method-assign]
    sys.argv = ["fedga", *split(command)]
    main()
