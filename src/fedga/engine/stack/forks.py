"""Independent pieces of work in processes that are forked for them, see the caller's memory and end with them.

A fork shares everything the caller has, copy-on-write: networks, samples and closures cross without being sent, and
only results come back, through a pipe. Nothing outlives the call, so that a killed worker costs one piece of work.
"""

import gc
import os
import pickle
import selectors
import signal
import struct
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, NoReturn

import torch
from torch import Tensor

_NUMBER = struct.Struct("<Q")
_HEADER = struct.Struct("<QQ")  # number of a piece and bytes that follow: none where it is begun, or has failed
_BEGUN, _FAILED, _DONE = b"b", b"f", b"d"
_MOST_PIECES = 4096  # whose numbers a pipe takes at once; more go together
_PIPE_BYTES = 1 << 20  # so that a worker need not wait until its result is read


def why_no_forks() -> str | None:
    """What keeps pieces of work from running in forked processes here; None where nothing does."""
    if not sys.platform.startswith("linux"):
        return f"processes that share memory by fork are not tried on {sys.platform}"
    if torch.accelerator.is_available():
        return "PyTorch cannot take gradients in a forked process where there is a GPU"
    return None


def map_in_forks(
    work: Callable[[Any], Any], items: Sequence[Any], count: int, lost: Callable[[int], None]
) -> Iterator[Any]:
    """``work`` of all items in ``count`` processes, results in the order of the items.

    What a process could not finish, since it was killed or failed, the caller does itself: an error is then raised
    where it can be seen. ``lost`` hears the signal that ended a process.
    """
    numbers = _Numbers(len(items))
    workers = [_Worker.fork(work, items, numbers) for _ in range(min(count, len(items)))]
    numbers.close()
    found: dict[int, Any] = {}
    try:
        with selectors.DefaultSelector() as selector:
            for worker in workers:
                selector.register(worker.pipe, selectors.EVENT_READ, worker)
            for number in range(len(items)):
                while number not in found and selector.get_map():
                    for key, _ in selector.select():
                        if not key.data.read(found):
                            selector.unregister(key.fileobj)
                            key.data.join(found, lost)
                yield found.pop(number) if found.get(number, _FAILED) is not _FAILED else work(items[number])
                found.pop(number, None)
    finally:
        for worker in workers:
            worker.stop()


class _Numbers:
    """Numbers of the pieces that nobody has taken yet, in a pipe: whoever is free reads the next."""

    def __init__(self, pieces: int) -> None:
        self.pieces, self.together = pieces, -(-pieces // _MOST_PIECES) or 1
        self.source, sink = os.pipe()
        for first in range(0, pieces, self.together):
            os.write(sink, _NUMBER.pack(first))
        os.close(sink)  # readers see the end where nothing is left

    def __iter__(self) -> Iterator[int]:
        while taken := os.read(self.source, _NUMBER.size):
            (first,) = _NUMBER.unpack(taken)
            yield from range(first, min(first + self.together, self.pieces))

    def close(self) -> None:
        os.close(self.source)


@dataclass
class _Worker:
    """A forked process, and what its pipe has brought."""

    pid: int
    pipe: int
    text: bytearray = field(default_factory=bytearray)
    begun: int | None = None  # the piece it is at
    ended: bool = False

    @classmethod
    def fork(cls, work: Callable[[Any], Any], items: Sequence[Any], numbers: _Numbers) -> "_Worker":
        source, sink = os.pipe()
        with warnings.catch_warnings():
            # Python warns of forks beside threads, which may hold a lock: a worker runs PyTorch on one thread, and
            # takes no lock of others.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if not pid:
            os.close(source)
            _work_off(work, items, numbers, sink)
        os.close(sink)
        return cls(pid, source)

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

    def join(self, found: dict[int, Any], lost: Callable[[int], None]) -> None:
        """Wait for its end, and note what it did not finish."""
        status = self._wait()
        if self.begun is not None:
            found.setdefault(self.begun, _FAILED)
        if status < 0:
            lost(-status)

    def stop(self) -> None:
        """End it where it has not ended; its results are wanted no more."""
        if not self.ended:
            os.kill(self.pid, signal.SIGKILL)
            self._wait()

    def _wait(self) -> int:
        self.ended = True
        os.close(self.pipe)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _work_off(work: Callable[[Any], Any], items: Sequence[Any], numbers: _Numbers, sink: int) -> NoReturn:
    """All a forked process does. It ends without any cleaning up, which is the caller's."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; it is for the caller to act on
        gc.disable()  # what a collection would finalise belongs to the caller
        torch.set_num_threads(1)
        for number in numbers:
            _send(sink, number, _BEGUN)
            try:
                with torch.no_grad():
                    result = _pickled(work(items[number]))
            except Exception:  # the caller does it again, and sees what is wrong
                _send(sink, number, _FAILED)
            else:
                _send(sink, number, _DONE, result)
    except BrokenPipeError:  # the caller is gone
        pass
    finally:
        os._exit(0)


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
