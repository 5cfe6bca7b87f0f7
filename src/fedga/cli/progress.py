"""Live progress of a sweep: a bar, the rounds, and how accurate each algorithm is by now."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

from rich import progress as bars
from rich.console import RenderableType
from rich.text import Text

from fedga.cli.console import err, say
from fedga.report.series import setting_text
from fedga.report.words import grouped
from fedga.spec.settings import RunSpec

if TYPE_CHECKING:
    from fedga.engine.server import LaneRound

LOG_EVERY_S = 10.0  # where there is no terminal to draw on


@contextmanager
def stop_request() -> Iterator[Callable[[], bool]]:
    """Whether to stop: the first Ctrl-C lets the round finish and saves it; the second one stops at once."""
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        with suppress(RuntimeError):  # the signal came in the middle of another line: that one is worth more
            say("stopping after this round; press Ctrl-C again to stop at once")

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _TwoLines(bars.Progress):
    """The bar, and below it how accurate every algorithm is: side by side they would not fit a usual terminal."""

    def get_renderables(self) -> Iterator[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            if accuracy := task.fields["accuracy"]:
                yield Text(f"accuracy {accuracy}", style="cyan", no_wrap=True, overflow="ellipsis")


class SweepProgress:
    """Turns what a sweep reports into a bar; on a plain stream, into a line now and then."""

    def __init__(self, specs: Sequence[RunSpec], axes: Sequence[str], finished: int) -> None:
        self.wanted = {spec.run_id for spec in specs}
        self.axes = [name for name in axes if name not in ("algorithm", "seed")]
        self.total = sum(spec.rounds for spec in specs)
        self.bar = _bar(bars.TextColumn("rounds"), bars.TimeRemainingColumn(), kind=_TwoLines)
        self.task: bars.TaskID = self.bar.add_task("training", total=self.total, completed=finished, accuracy="")
        self.done, self.logged = finished, time.monotonic()
        self.latest: dict[str, tuple[str, float]] = {}

    def started(self, specs: Sequence[RunSpec], rounds: int) -> None:
        self.latest = {}
        if rounds:
            say(f"continuing {len(specs)} run{'s' * (len(specs) != 1)} after round {rounds}")
            self.done += sum(rounds for spec in specs if spec.run_id in self.wanted)

    def advanced(self, specs: Sequence[RunSpec], rounds: Sequence[LaneRound]) -> None:
        for spec, result in zip(specs, rounds, strict=True):
            if spec.run_id not in self.wanted:  # of an earlier command, in the same group
                continue
            self.done += 1
            of = {"accuracy": "", "client_accuracy": " (clients' own models)"}
            if known := [name for name in of if name in (result.metrics or ())]:
                label = f"{spec.algorithm}{'+' + spec.preset if spec.preset else ''}{of[known[0]]}"
                self.latest[spec.run_id] = (label, (result.metrics or {})[known[0]])
            if result.diverged:
                self.done += spec.rounds - result.round
                self.latest.pop(spec.run_id, None)
                settings = [f"{name} {setting_text(getattr(spec, name))}" for name in self.axes]
                name = ", ".join([spec.algorithm, *settings, f"seed {spec.seed}"])
                say(f"{name} diverged in round {result.round}: it ends here, and the table will say so")
        self.bar.update(self.task, completed=self.done, accuracy=self._accuracies())
        if not err.is_terminal and time.monotonic() - self.logged > LOG_EVERY_S:
            self.logged = time.monotonic()
            say(f"{self.done} of {self.total} rounds; accuracy {self._accuracies() or 'not measured yet'}")

    def _accuracies(self) -> str:
        """The mean over the runs of every algorithm and preset."""
        by_label = grouped(self.latest.values(), lambda latest: latest[0]).items()
        return "  ".join(f"{label} {sum(accuracy for _, accuracy in of) / len(of):.3f}" for label, of in by_label)


def _bar(*further: bars.ProgressColumn, kind: type[bars.Progress] = bars.Progress) -> bars.Progress:
    """A bar that shows names as they are, brackets and colons too."""
    name = bars.TextColumn("{task.description}", style="bold", markup=False)
    columns = (name, bars.BarColumn(bar_width=24), bars.MofNCompleteColumn(), *further)
    return kind(*columns, console=err, transient=True, disable=not err.is_terminal)


@contextmanager
def rounds_bar(total: int) -> Iterator[Callable[[int], None]]:
    """A bar of rounds, which is told how many more are done."""
    with _bar(bars.TextColumn("rounds"), bars.TimeRemainingColumn()) as bar:
        task = bar.add_task("training", total=total)
        yield lambda number: bar.update(task, advance=number)


@contextmanager
def decoding() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each file of pictures that is decoded for the first time."""
    with _bar() as bar:
        tasks: dict[str, bars.TaskID] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done)

        yield show
