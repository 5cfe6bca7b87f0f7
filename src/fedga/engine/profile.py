"""Where the time of a round goes: spans of named phases, each second counted once.

The engine and the sweep mark their work with ``profile.span(PHASE)``. A plain `Profile` does nothing with it; a
`Stopwatch` adds up. Where a span holds another, the time is the inner one's; time in no span is ``other``: the phases
always sum to the time that passed.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

DATA = "data"
LOCAL_TRAINING = "local training"
ASKING = "broadcast and survey"
AGGREGATION = "aggregation"
EVALUATION = "evaluation"
DIAGNOSIS = "diagnosis"
STORE = "store"
OTHER = "other"

PHASES = {
    DATA: "who trains on which samples in which order, and their inputs put together",
    LOCAL_TRAINING: "the clients' steps",
    ASKING: "what some algorithms compute before clients train: FedRL's broadcast, CLIMB's survey of all clients",
    AGGREGATION: "weights, mean of the updates, the server's step",
    EVALUATION: "scores of the global and the averaged models",
    DIAGNOSIS: "clients' models examined class by class, every --diagnose-every rounds",
    STORE: "commits, checkpoints, model files",
    OTHER: "progress shown, and what is in no other phase",
}

Work = TypeVar("Work", bound=Callable[..., Any])
_NOTHING = nullcontext()


class Profile:
    """What may be measured. This one measures nothing, and costs nothing."""

    def span(self, phase: str) -> AbstractContextManager[None]:
        """The time inside is that phase's, but for inner spans."""
        return _NOTHING

    def round(self, lanes: int) -> AbstractContextManager[None]:
        """One round of so many stacked runs, from choosing clients to what is stored."""
        return _NOTHING

    def built(self) -> None:
        """There is a new engine, whose first rounds are slower than those that follow."""

    def trained(self, steps: Tensor) -> None:
        """Clients took these numbers of local steps."""

    def carried(self, work: Work) -> Work:
        """``work`` for other threads, in the phase that the caller is in."""
        return work


NO_PROFILE = Profile()


@dataclass(frozen=True)
class Stage:
    """Rounds of one kind, added up."""

    seconds: dict[str, float]  # by phase, all of `PHASES`
    rounds: int = 0  # of a whole stack of runs
    run_rounds: int = 0  # the same, counted once per run
    client_steps: int = 0

    @property
    def wall(self) -> float:
        return sum(self.seconds.values())

    def share(self, phase: str) -> float:
        return self.seconds[phase] / self.wall if self.wall else 0.0


@dataclass(frozen=True)
class Measured:
    """What a stopwatch found."""

    device: str
    threads: int
    outside: Stage  # reading data, building engines, waiting for other processes: all that is in no round
    warm_up: Stage  # an engine's first round; on CUDA two, since the second records what later ones replay
    steady: Stage
    peak_memory: int | None  # bytes of this process
    peak_cuda_memory: int | None

    @property
    def telling(self) -> Stage:
        """The steady rounds; where there are none, the first ones."""
        return self.steady if self.steady.rounds else self.warm_up

    def as_json(self) -> dict[str, Any]:
        stages = {"outside_rounds": self.outside, "warm_up_rounds": self.warm_up, "steady_rounds": self.steady}
        return {
            "device": self.device,
            "threads": self.threads,
            "peak_memory_bytes": self.peak_memory,
            "peak_cuda_memory_bytes": self.peak_cuda_memory,
            **{name: _stage_as_json(stage) for name, stage in stages.items()},
        }


def _stage_as_json(stage: Stage) -> dict[str, Any]:
    return {
        "seconds": stage.wall,
        "rounds": stage.rounds,
        "run_rounds": stage.run_rounds,
        "client_steps": stage.client_steps,
        "phases": {
            phase.replace(" ", "_"): {"seconds": seconds, "share": stage.share(phase)}
            for phase, seconds in stage.seconds.items()
        },
    }


class _Clock:
    """The spans that one thread is in, and its seconds by phase."""

    def __init__(self, phase: str) -> None:
        self.phases = [phase]
        self.since = time.perf_counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def tick(self) -> None:
        now = time.perf_counter()
        self.seconds[self.phases[-1]] += now - self.since
        self.since = now


class Stopwatch(Profile):
    """Measures from the moment it is made, for the thread that made it.

    On CUDA a call returns when its work is queued: every span waits for the device at both its ends. On a CPU clients
    train in worker threads, a few ahead of what the caller has taken: the time of an outermost span is divided by what
    the workers did in it, not by what the caller happened to wait for.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._main = _Clock(OTHER)
        self._thread = threading.local()
        self._thread.clock = self._main
        self._lock = threading.Lock()
        self._worked: defaultdict[str, float] = defaultdict(float)  # by workers, in the current outermost span
        self._outside, self._warm_up, self._steady = _Sums(), _Sums(), _Sums()
        self._stage, self._cold = self._outside, 0

    @contextmanager
    def span(self, phase: str) -> Iterator[None]:
        clock: _Clock = self._thread.clock
        self._wait_for_device()
        self._settle(clock)
        clock.phases.append(phase)
        try:
            yield
            self._wait_for_device()
        finally:
            clock.tick()
            clock.phases.pop()
            self._settle(clock)

    @contextmanager
    def round(self, lanes: int) -> Iterator[None]:
        self._wait_for_device()
        self._enter(self._warm_up if self._cold else self._steady)
        self._cold = max(0, self._cold - 1)
        self._stage.rounds += 1
        self._stage.run_rounds += lanes
        try:
            yield
            self._wait_for_device()
        finally:
            self._enter(self._outside)

    def built(self) -> None:
        self._cold = 1 if self.device.type == "cpu" else 2

    def trained(self, steps: Tensor) -> None:
        taken = int(steps.sum())
        with self._lock:
            self._stage.client_steps += taken

    def carried(self, work: Work) -> Work:
        phase = self._main.phases[-1]

        def timed(*args: Any) -> Any:
            clock = self._thread.clock = _Clock(phase)
            try:
                return work(*args)
            finally:
                clock.tick()
                with self._lock:
                    _add(self._worked, clock.seconds)

        return timed  # type: ignore[return-value]

    def measured(self) -> Measured:
        """What was found so far."""
        self._settle(self._main)
        on_cuda = self.device.type == "cuda"
        return Measured(
            device=str(self.device),
            threads=torch.get_num_threads(),
            outside=self._outside.stage(),
            warm_up=self._warm_up.stage(),
            steady=self._steady.stage(),
            peak_memory=_peak_memory(),
            peak_cuda_memory=torch.cuda.max_memory_allocated(self.device) if on_cuda else None,
        )

    def _enter(self, stage: _Sums) -> None:
        self._settle(self._main)
        self._stage = stage

    def _settle(self, clock: _Clock) -> None:
        """Between outermost spans: add the seconds since the last call to the stage."""
        clock.tick()
        if clock is not self._main or len(clock.phases) > 1:
            return
        seconds, clock.seconds = clock.seconds, defaultdict(float)
        with self._lock:
            worked, self._worked = self._worked, defaultdict(float)
        if total := sum(worked.values()):
            waited = sum(seconds.pop(phase, 0.0) for phase in worked)
            _add(seconds, {phase: waited * value / total for phase, value in worked.items()})
        _add(self._stage.seconds, seconds)

    def _wait_for_device(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


@dataclass
class _Sums:
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    rounds: int = 0
    run_rounds: int = 0
    client_steps: int = 0

    def stage(self) -> Stage:
        seconds = {phase: self.seconds[phase] for phase in PHASES}
        return Stage(seconds, self.rounds, self.run_rounds, self.client_steps)


def _add(sums: defaultdict[str, float], values: dict[str, float]) -> None:
    for name, value in values.items():
        sums[name] += value


def _peak_memory() -> int | None:
    """The most memory that this process ever had, in bytes; None where the system does not say."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
