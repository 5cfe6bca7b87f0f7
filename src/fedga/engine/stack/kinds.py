"""Threads or processes: whichever trains a network faster on this machine, tried in turn and remembered.

Processes hand every result over and are forked for each round; threads wait for each other between their operations.
Which costs less depends on the network, its batches and the machine, so both are timed on rounds that have to be
trained anyway. The numbers are the same, whichever is chosen.
"""

import hashlib
import json
import os
import platform
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedga.common.files import write_whole
from fedga.data.cache import cache_dir
from fedga.engine.stack.forks import is_at_work_elsewhere
from fedga.version import __version__

THREADS, PROCESSES = KINDS = ("threads", "processes")
_TRIED = 2  # rounds of each kind, after a first one that warms up
_MOST_DEATHS = 3  # of processes; then threads it is


class KindOfWorker:
    """Which kind of worker is next. One that is given is kept; else both are tried, unless the cache knows."""

    def __init__(self, fixed: str | None = None, *, key: str = "") -> None:
        """``key`` stands for all that the choice depends on, see `key_of`."""
        self._key, self._chosen, self._deaths = key, fixed or _remembered(key), 0
        self._warm = fixed is not None  # what is made on first use is made in this process, and forks find it
        self._draws_globally = False
        self._seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}

    @contextmanager
    def turn(self, amount: Callable[[], float] | None = None) -> Iterator[str]:
        """The kind for the next work; its time counts where ``amount`` says at its end how much it was, above 0."""
        kind, before = self._next(), None if self._warm else _global_generators()
        began = time.perf_counter()
        yield kind
        seconds = time.perf_counter() - began
        if amount is None or not (done := amount()):
            return
        if self._warm and self._chosen is None:
            self._seconds[kind].append(seconds / done)
            if all(len(taken) >= _TRIED for taken in self._seconds.values()):
                self._choose()
        elif not self._warm and before != _global_generators():
            self._draws_globally = True  # every process would draw the same numbers
        self._warm = True

    def _next(self) -> str:
        alone = self._deaths >= _MOST_DEATHS or self._draws_globally
        if not self._warm or alone or is_at_work_elsewhere():
            return THREADS
        return self._chosen or min(reversed(KINDS), key=lambda kind: len(self._seconds[kind]))

    def _choose(self) -> None:
        best = {kind: min(taken) for kind, taken in self._seconds.items()}
        self._chosen = min(best, key=lambda kind: best[kind])
        _remember(self._key, self._chosen)

    def died(self) -> bool:
        """A process was killed; whether processes are used all the same."""
        self._deaths += 1
        return self._deaths < _MOST_DEATHS


def _global_generators() -> tuple[Any, ...]:
    """The states of the generators that a network or hook of the user's own may draw from."""
    state: Any = np.random.get_state()  # noqa: NPY002 - we look at it, and draw from none
    return random.getstate(), state[1].tobytes(), state[2:], torch.get_rng_state().tolist()


def key_of(*parts: object) -> str:
    """What a choice depends on: ``parts``, this machine, and the versions."""
    here = (_processor(), os.cpu_count(), torch.get_num_threads(), torch.__version__, __version__)
    return hashlib.sha256(repr((parts, here)).encode()).hexdigest()[:32]


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line
    return platform.processor()


def _file(key: str) -> Path:
    return cache_dir() / "workers" / f"{key}.json"


def _remembered(key: str) -> str | None:
    with suppress(OSError, ValueError, TypeError, KeyError):  # an entry that is not there, or no longer whole
        kind = json.loads(_file(key).read_text(encoding="utf-8"))["kind"]
        return kind if kind in KINDS else None
    return None


def _remember(key: str, kind: str) -> None:
    with suppress(OSError):  # a cache that cannot be written to costs the trial of the next run
        _file(key).parent.mkdir(parents=True, exist_ok=True)
        write_whole(_file(key), json.dumps({"kind": kind}))
