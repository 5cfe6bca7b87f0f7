"""Independent pieces of work in processes that are forked for them, see the caller's memory and end with them.

A fork shares everything the caller has, copy-on-write: networks, samples and closures cross without being sent, and
only results come back, through a pipe. Nothing outlives the call, so that a killed worker costs one piece of work.
"""

import ctypes
import gc
import os
import pickle
import selectors
import signal
import struct
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import BytesIO
from types import FrameType
from typing import Any, NoReturn

import torch
from torch import Tensor

_NUMBER = struct.Struct("<Q")
_HEADER = struct.Struct("<QQ")  # number of a piece and bytes that follow: none where it is begun, or has failed
_BEGUN, _FAILED, _DONE = b"b", b"f", b"d"
_PIPE_BYTES = 1 << 20  # so that a worker need not wait until its result is read
_AHEAD = 2  # pieces for every worker that are begun before the caller has taken the results of those before
_PR_SET_PDEATHSIG = 1  # of prctl.h


def why_no_forks() -> str | None:
    """What keeps pieces of work from running in forked processes here; None where nothing does."""
    if not sys.platform.startswith("linux"):
        return f"processes that share memory by fork are not tried on {sys.platform}"
    if torch.accelerator.is_available():
        return "PyTorch cannot take gradients in a forked process where there is a GPU"
    return None


def is_at_work_elsewhere() -> bool:
    """Whether another thread may be inside PyTorch: a forked process would find the lock it holds held for ever."""
    own = threading.get_ident()
    return any(_uses_torch(frame) for thread, frame in sys._current_frames().items() if thread != own)


def _uses_torch(frame: FrameType) -> bool:
    """Whether the innermost function of a thread is PyTorch's, or of a module that knows PyTorch."""
    names = (getattr(each, "__module__", None) or getattr(each, "__name__", "") for each in frame.f_globals.values())
    return any(str(name).partition(".")[0] == "torch" for name in (frame.f_globals.get("__name__"), *names))


def map_in_forks(
    work: Callable[[Any], Any],
    items: Sequence[Any],
    count: int,
    noticed: Callable[[str], None],
    here: Callable[[Any], Any] | None = None,
) -> Iterator[Any]:
    """``work`` of all items in ``count`` processes, results in the order of the items.

    What a process could not finish, since it was killed or failed, the caller does itself, by ``here`` where that is
    given: an error is then raised where it can be seen. ``noticed`` hears of a process that was killed.
    """
    here, found, workers = here or work, dict[int, Any](), list[_Worker]()
    numbers = _Numbers(len(items))
    try:
        with selectors.DefaultSelector() as selector:
            _fork_all(work, items, min(count, len(items)), numbers, workers)
            for worker in workers:
                selector.register(worker.pipe, selectors.EVENT_READ, worker)
            numbers.hand_out(_AHEAD * len(workers))
            for number in range(len(items)):
                while number not in found and selector.get_map():
                    for key, _ in selector.select():
                        if not key.data.read(found):
                            selector.unregister(key.fileobj)
                            key.data.join(found, noticed)
                done = found.pop(number, _FAILED)
                numbers.hand_out(1)
                yield here(items[number]) if done is _FAILED else done
    finally:
        numbers.close()
        for worker in workers:
            worker.stop()


class _Numbers:
    """Numbers of the pieces that may be begun, in a pipe: whoever is free reads the next."""

    def __init__(self, pieces: int) -> None:
        self.left = iter(range(pieces))
        self.source, self.sink = os.pipe()
        self.is_open = True

    def hand_out(self, count: int) -> None:
        """Let so many more be begun; readers see the end after the last."""
        for _ in range(count):
            number = next(self.left, None)
            if number is None:
                self.end()
                return
            os.write(self.sink, _NUMBER.pack(number))

    def __iter__(self) -> Iterator[int]:
        while taken := os.read(self.source, _NUMBER.size):
            yield _NUMBER.unpack(taken)[0]

    def end(self) -> None:
        if self.is_open:
            self.is_open = False
            os.close(self.sink)

    def close(self) -> None:
        self.end()
        os.close(self.source)


@dataclass
class _Worker:
    """A forked process, and what its pipe has brought."""

    pid: int
    pipe: int
    text: bytearray = field(default_factory=bytearray)
    begun: int | None = None  # the piece it is at
    ended: bool = False

    def read(self, found: dict[int, Any]) -> bool:
        """Take in what is there; False at the end."""
        new = os.read(self.pipe, _PIPE_BYTES)
        self.text += new
        while len(self.text) > _HEADER.size:
            number, size = _HEADER.unpack_from(self.text)
            end = _HEADER.size + 1 + size
            if len(self.text) < end:
                break
            kind = bytes(self.text[_HEADER.size : _HEADER.size + 1])
            if kind == _BEGUN:
                self.begun = number
            else:
                self.begun = None
                found[number] = _FAILED if kind == _FAILED else pickle.loads(self.text[_HEADER.size + 1 : end])
            del self.text[:end]
        return bool(new)

    def join(self, found: dict[int, Any], noticed: Callable[[str], None]) -> None:
        """Wait for its end, and note what it did not finish."""
        status = self._wait()
        if self.begun is not None:
            found.setdefault(self.begun, _FAILED)
        if status < 0:
            noticed(f"a worker process was ended by signal {-status}")

    def stop(self) -> None:
        """End it where it has not ended; its results are wanted no more."""
        if not self.ended:
            os.kill(self.pid, signal.SIGKILL)
            self._wait()

    def _wait(self) -> int:
        self.ended = True
        os.close(self.pipe)
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:  # where SIGCHLD is ignored, the system does not keep the status
            return 0


def _fork_all(
    work: Callable[[Any], Any], items: Sequence[Any], count: int, numbers: _Numbers, workers: list[_Worker]
) -> None:
    """Add ``count`` processes to ``workers``, or as many as the system allows."""
    import fcntl  # not everywhere

    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()  # or every process would write it again
    for _ in range(count):
        with _without_interrupts():
            source, sink = os.pipe()
            try:
                pid = _fork()
            except OSError:  # no more processes allowed, or no memory for their tables
                os.close(source)
                os.close(sink)
                return
            if not pid:
                for pipe in (source, numbers.sink, *(worker.pipe for worker in workers)):
                    os.close(pipe)
                _work_off(work, items, numbers, sink)
            os.close(sink)
            workers.append(_Worker(pid, source))
        with suppress(OSError):  # the system's limit for users other than root
            fcntl.fcntl(source, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def _fork() -> int:
    with warnings.catch_warnings():
        # Python warns of forks beside threads, which may hold a lock: see `is_at_work_elsewhere`.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Ctrl-C comes after, in the caller: it must not unwind the caller's frames in a process that was just forked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work_off(work: Callable[[Any], Any], items: Sequence[Any], numbers: _Numbers, sink: int) -> NoReturn:
    """All a forked process does. It ends without any cleaning up, which is the caller's."""
    try:
        _end_with_the_caller()
        gc.freeze()  # what a collection would finalise belongs to the caller
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")  # the first round, in the caller's own process, has shown them
        for number in numbers:
            _send(sink, number, _BEGUN)
            try:
                with torch.no_grad():
                    result = _pickled(work(items[number]))
            except Exception:  # the caller does it again, and sees what is wrong
                _send(sink, number, _FAILED)
            else:
                _send(sink, number, _DONE, result)
        sys.stdout.flush()
    except BrokenPipeError:  # the caller is gone
        pass
    finally:
        os._exit(0)


def _end_with_the_caller() -> None:
    """Be killed when the caller is; leave Ctrl-C, which reaches all processes, to it."""
    caller = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != caller:
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _send(sink: int, number: int, kind: bytes, body: bytes | memoryview = b"") -> None:
    for part in (_HEADER.pack(number, len(body)) + kind, body):
        left = memoryview(part)
        while left:
            left = left[os.write(sink, left) :]


class _Pickler(pickle.Pickler):
    """Tensors as arrays: a tensor pickles all of the memory that it is a view of, and slowly."""

    def reducer_override(self, given: Any) -> Any:
        if isinstance(given, Tensor) and given.dtype != torch.bfloat16:
            return torch.from_numpy, (given.detach().contiguous().numpy(),)
        return NotImplemented


def _pickled(result: Any) -> memoryview:
    text = BytesIO()
    _Pickler(text, protocol=5).dump(result)
    return text.getbuffer()
