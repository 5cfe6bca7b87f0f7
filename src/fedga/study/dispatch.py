"""Groups of runs on several engines: who trains which, what comes back goes into the store, and the dead are replaced.

Only this process writes to the store. What an engine sends counts once it is committed together with the checkpoint
after it, so that a group whose engine died goes on from there on another one, to the same numbers.
"""

import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

from fedga.errors import FedGAError
from fedga.study import sweep
from fedga.study.group import GroupRecord, ModelFile, PlayedRound
from fedga.study.sweep import GroupJob, Groups, Interrupted

MOST_DEATHS = 5  # of engines that train a group, without a commit between
LOOK_EVERY_S = 0.2


@dataclass(frozen=True)
class Trained:
    """Some rounds of a group, and what is left of it."""

    rounds: list[PlayedRound]
    models: list[ModelFile]  # of runs that are done with the last of them
    checkpoint: bytes | None  # after the last of them, where one was due
    over: bool  # all runs of the group have ended


@dataclass(frozen=True)
class Died:
    """The process that trained a group is gone."""

    reason: str


class Engines(Protocol):
    """What trains groups, each known by its number; a group has its engine from ``begin`` to ``free``."""

    @property
    def size(self) -> int:
        """How many groups can be trained at once."""

    def begin(self, number: int, job: GroupJob, commit_every_s: float) -> None:
        """Train the first rounds."""

    def go_on(self, number: int) -> None:
        """Train further rounds."""

    def save(self, number: int) -> None:
        """Train nothing, but send the checkpoint after the last round."""

    def has_begun(self, number: int) -> bool:
        """Whether there is a device for the group yet."""

    def replies(self, wait_s: float) -> list[tuple[int, Trained | Died]]:
        """Answers to the calls above, as they come in; what goes wrong in the training itself is raised."""

    def free(self, number: int) -> None:
        """The group needs its engine no longer."""


@dataclass
class _Running:
    record: GroupRecord
    hold: ExitStack
    runs: int
    round: int


class Dispatch:
    """Trains all pending groups; `run` returns when they are done."""

    def __init__(self, groups: Groups, engines: Engines) -> None:
        self.groups, self.engines, self.observer = groups, engines, groups.observer
        self.running: dict[int, _Running] = {}
        self.deaths: Counter[int] = Counter()  # of a group's engines since its last commit
        self._next_look = 0.0

    def run(self) -> None:
        try:
            while not self._finished():
                for number, reply in self.engines.replies(LOOK_EVERY_S):
                    if isinstance(reply, Died):
                        self._lose(number, reply)
                    else:
                        self._take(number, reply)
        finally:
            for number in list(self.running):
                self._give_back(number)

    def _finished(self) -> bool:
        """Whether nothing is left to do; else something is under way."""
        while True:
            stop = self.observer.should_stop()
            if stop:
                for number in [each for each in self.running if not self.engines.has_begun(each)]:
                    self._give_back(number)
            elif len(self.running) < self.engines.size and time.monotonic() >= self._next_look:
                self._hand_out()
            if self.running:
                return False
            if not self.groups.pending():
                return True
            if stop:
                raise Interrupted
            self.groups.wait()

    def _hand_out(self) -> None:
        """Give groups to engines that have none; those of other processes are looked at again in a while."""
        self._next_look = time.monotonic() + sweep.POLL_EVERY_S
        for number in self.groups.pending():
            if len(self.running) >= self.engines.size:
                return
            if number in self.running:
                continue
            with ExitStack() as hold:
                job = hold.enter_context(self.groups.take(number))
                if job is None:
                    continue
                self.engines.begin(number, job, self.groups.commit_every_s)
                self.running[number] = _Running(job.record, hold.pop_all(), len(job.lanes), job.round)
                self.observer.started(job.specs, job.round)

    def _take(self, number: int, trained: Trained) -> None:
        """Keep what came, and let the engine go on."""
        running, last = self.running[number], len(trained.rounds) - 1
        for place, played in enumerate(trained.rounds):
            running.record.keep(played, trained.models if place == last else ())
            running.round = played.round
        saved = trained.over or trained.checkpoint is not None
        if saved:
            running.record.commit(running.round, lambda: trained.checkpoint or b"")
            self.deaths[number] = 0
        if trained.over or (saved and self.observer.should_stop()):
            self._give_back(number)
        elif self.observer.should_stop():
            self.engines.save(number)
        else:
            self.engines.go_on(number)

    def _lose(self, number: int, died: Died) -> None:
        """Another engine is to go on with the group from its last commit."""
        runs = self.running[number].runs
        self._give_back(number)
        self.deaths[number] += 1
        which = "the run" if runs == 1 else f"the {runs} runs"
        if self.deaths[number] == MOST_DEATHS:
            often = f"{MOST_DEATHS} processes that trained {which} of group {number} died one after the other"
            cure = "give the same command with one --device to see more, or a smaller --batch-size or --model"
            raise FedGAError(f"{often} ({died.reason}): {cure}")
        self.observer.noticed(f"a process that trained {which} of group {number} died ({died.reason}): another goes on")

    def _give_back(self, number: int) -> None:
        self.engines.free(number)
        self.running.pop(number).hold.close()
        self._next_look = 0.0
