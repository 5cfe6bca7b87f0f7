"""Independent pieces of work on all cores of a CPU, in a fixed order of results.

Clients, and parts of a test split, do not depend on each other, so each core takes whole pieces and runs them on one
thread. Splitting single small operations over cores instead costs a barrier each, and lets the number of cores change
the order of sums; this way the numbers are the same on any number of them. On a GPU there is one worker: the caller.

Workers are threads or, for networks with convolutions, processes where those are faster (`fedga.engine.stack.kinds`):
between their operations threads wait for each other. The numbers are the same.
"""

import copy
import ctypes
import platform
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from queue import SimpleQueue
from typing import Any, TypeVar

import torch

from fedga.engine.profile import NO_PROFILE, Profile
from fedga.engine.stack.forks import map_in_forks
from fedga.engine.stack.kinds import PROCESSES, THREADS, KindOfWorker
from fedga.engine.stack.stacked import StackedModel

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h

Item = TypeVar("Item")
Result = TypeVar("Result")


@cache
def _keep_freed_memory() -> None:
    """Tell the C library not to give blocks below 32 MiB back to the system after each use.

    Every local step frees and takes the same megabytes of activations. To fetch them anew page by page, under a lock
    that all threads share, takes a tenth of a round of LeNet. Elsewhere than with glibc nothing is done.
    """
    if platform.libc_ver()[0] == "glibc":
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, 32 * 2**20)
        library.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


@contextmanager
def computing_in(precision: str) -> Iterator[None]:
    """TF32 (10 bits of mantissa in products, on CUDA only) on or off, and only cuDNN's repeatable algorithms.

    PyTorch itself leaves TF32 on for convolutions.
    """
    tf32 = precision == "tf32"
    products = torch.backends.cuda.matmul
    before = products.allow_tf32
    products.allow_tf32 = tf32
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=tf32):
            yield
    finally:
        products.allow_tf32 = before


class Workers:
    """Runs ``work(model, item)``, where ``model`` is a copy that no other piece of work uses at that moment."""

    def __init__(
        self,
        model: StackedModel,
        device: torch.device,
        profile: Profile = NO_PROFILE,
        kind: KindOfWorker | None = None,
        noticed: Callable[[str], None] = lambda text: None,
    ) -> None:
        """``kind`` chooses between threads and processes; None: threads. ``noticed`` hears of a worker that died."""
        self.count = torch.get_num_threads() if device.type == "cpu" else 1
        self.model, self._profile, self._on_cpu = model, profile, device.type == "cpu"
        self._kind, self._noticed = kind or KindOfWorker(THREADS), noticed
        self._copies: SimpleQueue[StackedModel] = SimpleQueue()
        self._pool: ThreadPoolExecutor | None = None
        if self._on_cpu:
            _keep_freed_memory()
        if self.count > 1:
            for _ in range(self.count):  # a forward pass borrows a module for its parameters
                self._copies.put(copy.deepcopy(model))
            self._pool = ThreadPoolExecutor(self.count, "fedga", initializer=torch.set_num_threads, initargs=(1,))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """The caller's own operations on one thread too: they are small, and two threads wait for each other.

        On a busy machine that wait is tens of milliseconds for an operation of one.
        """
        if not self._on_cpu:
            yield
            return
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def map(
        self,
        work: Callable[[StackedModel, Item], Result],
        items: Iterable[Item],
        amount: Callable[[], float] | None = None,
    ) -> Iterator[Result]:
        """Results in the order of the items.

        ``amount`` says at the end how much work that was, in any unit, where it was local training and nothing else:
        the kind of worker is chosen by the time that takes.
        """
        if self._pool is None:
            for item in items:
                yield work(self.model, item)
            return
        with self._kind.turn(amount) as kind:
            if amount is not None:
                self._profile.works_in(f"{self.count} {kind}")
            yield from (self._in_processes if kind == PROCESSES else self._in_threads)(work, items)

    def _in_threads(self, work: Callable[[StackedModel, Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Only a few pieces ahead of what the caller has taken."""
        assert self._pool is not None
        work = self._profile.carried(work)
        ahead: deque[Future[Result]] = deque()
        try:
            for item in items:
                ahead.append(self._pool.submit(self._on_a_copy, work, item))
                if len(ahead) > 2 * self.count:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()

    def _on_a_copy(self, work: Callable[[StackedModel, Item], Result], item: Item) -> Result:
        model = self._copies.get()
        try:
            with torch.no_grad():  # the mode of the calling thread does not reach this one
                return work(model, item)
        finally:
            self._copies.put(model)

    def _in_processes(self, work: Callable[[StackedModel, Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        carried, profile = self._profile.carried(work), self._profile
        model = self._copies.get()  # every process has a copy of its own of this one

        def measured(item: Item) -> tuple[Result, Any]:
            profile.take()  # what stood there was the caller's
            return carried(model, item), profile.take()

        def here(item: Item) -> tuple[Result, Any]:
            with torch.no_grad():
                return work(model, item), None

        try:
            for result, seconds in map_in_forks(measured, list(items), self.count, self._lost, here):
                profile.add(seconds)
                yield result
        finally:
            self._copies.put(model)

    def _lost(self, words: str) -> None:
        again = "what it was at is trained again" if self._kind.died() else "all that follows runs in threads"
        self._noticed(f"{words}: {again}")
