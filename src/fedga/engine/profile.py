"""Where the time of a round goes: spans of named phases, each second counted once.

The engine and the sweep mark their work with ``profile.span(PHASE)``. A plain `Profile` does nothing with it; a
`Stopwatch` adds up. Time in nested spans is the inner one's; time in no span is ``other``: the phases always sum to the
time that passed.
"""

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

DATA = "data"  # who trains on which samples in which order, and their inputs put together
LOCAL_TRAINING = "local training"  # the clients' steps
ASKING = "broadcast and survey"  # before clients train: FedRL's broadcast, CLIMB's evaluation of all clients
AGGREGATION = "aggregation"  # weights, mean of the updates, the server's step
EVALUATION = "evaluation"  # scores of the global and the averaged models
DIAGNOSIS = "diagnosis"  # clients' models evaluated class by class, every --diagnose-every rounds
STORE = "store"  # commits, checkpoints, model files
OTHER = "other"  # progress shown, and what is in no other phase
PHASES = (DATA, LOCAL_TRAINING, ASKING, AGGREGATION, EVALUATION, DIAGNOSIS, STORE, OTHER)

Work = TypeVar("Work", bound=Callable[..., Any])
_NOTHING = nullcontext()


class Profile:
    """What may be measured. This one measures nothing, and costs nothing."""

    def span(self, phase: str) -> AbstractContextManager[None]:
        """The time inside is that phase's, except inner spans."""
        return _NOTHING

    def round(self, lanes: int) -> AbstractContextManager[None]:
        """One round of so many stacked runs, from choosing clients to what is stored."""
        return _NOTHING

    def built(self) -> None:
        """There is a new engine, whose first rounds are slower than those that follow."""

    def trained(self, steps: Tensor) -> None:
        """Clients took these numbers of local steps."""

    def carried(self, work: Work) -> Work:
        """``work`` for other threads or processes, in the phase that the caller is in."""
        return work

    def works_in(self, workers: str) -> None:
        """What carries such work, as "2 processes"."""

    def take(self) -> Any:
        """What workers have measured since the last call, to be handed over from their process."""

    def add(self, measured: Any) -> None:
        """What workers of another process have measured; None where the caller did their work, and measured it."""


NO_PROFILE = Profile()


@dataclass
class Stage:
    """Rounds of one kind, added up."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    rounds: int = 0  # of a whole stack of runs
    run_rounds: int = 0  # the same, counted once per run
    client_steps: int = 0

    @property
    def wall(self) -> float:
        return sum(self.seconds.values())

    def share(self, phase: str) -> float:
        return self.seconds[phase] / self.wall if self.wall else 0.0

    def as_json(self) -> dict[str, Any]:
        phases = {
            phase.replace(" ", "_"): {"seconds": seconds, "share": self.share(phase)}
            for phase, seconds in self.seconds.items()
        }
        counts = {"rounds": self.rounds, "run_rounds": self.run_rounds, "client_steps": self.client_steps}
        return {"seconds": self.wall, **counts, "phases": phases}


class _Clock:
    """The spans that one thread is in, and its seconds by phase."""

    def __init__(self, phase: str) -> None:
        self.phases, self.since = [phase], time.perf_counter()
        self.seconds: Counter[str] = Counter()

    def tick(self) -> None:
        now = time.perf_counter()
        self.seconds[self.phases[-1]] += now - self.since  # type: ignore[assignment]
        self.since = now


class Stopwatch(Profile):
    """Measures from the moment it is made, for the thread that made it.

    On CUDA a call returns when its work is queued: every span waits for the device at both its ends. On a CPU clients
    train in workers, a few ahead of the caller: the time of an outermost span is divided by what the workers did
    in it, not by what the caller happened to wait for.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.outside = Stage()  # reading data, building engines, waiting for other processes: all that is in no round
        self.warm_up = Stage()  # an engine's first round; on CUDA two, since the second records what later ones replay
        self.steady = Stage()
        self._stage, self._cold = self.outside, 0
        self._thread, self._lock = threading.local(), threading.Lock()
        self._main = self._thread.clock = _Clock(OTHER)
        self._worked: Counter[str] = Counter()  # by workers, in the current outermost span
        self._steps = 0  # that clients took in it
        self.workers = ""  # what trained last

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
        self._settle(self._main)
        self._stage = self.warm_up if self._cold else self.steady
        self._cold = max(0, self._cold - 1)
        self._stage.rounds += 1
        self._stage.run_rounds += lanes
        try:
            yield
            self._wait_for_device()
        finally:
            self._settle(self._main)
            self._stage = self.outside

    def built(self) -> None:
        self._cold = 1 if self.device.type == "cpu" else 2

    def trained(self, steps: Tensor) -> None:
        taken = int(steps.sum())
        with self._lock:
            self._steps += taken

    def works_in(self, workers: str) -> None:
        self.workers = workers

    def take(self) -> tuple[Counter[str], int]:
        with self._lock:
            found = self._worked, self._steps
            self._worked, self._steps = Counter(), 0
        return found

    def add(self, measured: tuple[Counter[str], int] | None) -> None:
        if measured is None:
            return
        worked, steps = measured
        with self._lock:
            self._worked.update(worked)
            self._steps += steps

    def carried(self, work: Work) -> Work:
        phase = self._main.phases[-1]

        def timed(*args: Any) -> Any:
            before, clock = getattr(self._thread, "clock", None), _Clock(phase)
            self._thread.clock = clock
            try:
                return work(*args)
            finally:
                clock.tick()
                self._thread.clock = before
                with self._lock:
                    self._worked.update(clock.seconds)

        return timed  # type: ignore[return-value]

    @property
    def shown(self) -> Stage:
        """The steady rounds; where there are none, the first ones."""
        self._settle(self._main)
        return self.steady if self.steady.rounds else self.warm_up

    def peak_memory(self) -> dict[str, int | None]:
        """The most bytes that this process ever had, of memory and on the GPU; None where that is unknown."""
        cuda = torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None
        try:
            import resource
        except ImportError:
            return {"peak_memory_bytes": None, "peak_cuda_memory_bytes": cuda}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return {"peak_memory_bytes": peak * (1 if sys.platform == "darwin" else 1024), "peak_cuda_memory_bytes": cuda}

    def as_json(self) -> dict[str, Any]:
        self._settle(self._main)
        stages = {"outside_rounds": self.outside, "warm_up_rounds": self.warm_up, "steady_rounds": self.steady}
        place = {"device": str(self.device), "threads": torch.get_num_threads(), "workers": self.workers}
        return place | self.peak_memory() | {name: stage.as_json() for name, stage in stages.items()}

    def _settle(self, clock: _Clock) -> None:
        """Between outermost spans: add the seconds since the last call to the stage."""
        clock.tick()
        if clock is not self._main or len(clock.phases) > 1:
            return
        seconds, clock.seconds = clock.seconds, Counter()
        worked, steps = self.take()
        self._stage.client_steps += steps
        if total := sum(worked.values()):
            waited = sum(seconds.pop(phase, 0.0) for phase in worked)
            seconds.update({phase: waited * value / total for phase, value in worked.items()})
        for phase, value in seconds.items():
            self._stage.seconds[phase] += value

    def _wait_for_device(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
