"""A contender's side of the conversation with the driver: one line of JSON per answer, a round only when asked.

The driver writes ``round``, ``accuracy`` or ``stop``. Between rounds a contender blocks in `Turns.wait`, from its own
loop or from whatever hook its library calls between rounds, so that it takes no time from the one whose turn it is.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version


class Stop(BaseException):
    """The driver wants no more rounds; not an `Exception`, so that no library swallows it."""


class Turns:
    def __init__(self, *packages: str) -> None:
        """``packages`` are those whose versions belong beside the result."""
        # Libraries print: they get the log file behind stderr, and the driver keeps the pipes to itself.
        self._answers = os.fdopen(os.dup(1), "w", buffering=1)
        self._orders = os.fdopen(os.dup(0), "r")
        os.dup2(2, 1)
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        self._versions = {package: version(package) for package in packages}
        self._began: float | None = None

    def wait(self, accuracy: Callable[[], float]) -> None:
        """Answer for the round that just ended and return when the next one may begin."""
        if self._began is None:
            self._answer(versions=self._versions | {"python": sys.version.split()[0]})
        else:
            self._answer(seconds=time.perf_counter() - self._began)
        for order in self._orders:
            if order == "accuracy\n":
                self._answer(accuracy=accuracy())
            elif order == "round\n":
                self._began = time.perf_counter()
                return
            else:
                break
        raise Stop

    def rounds(self, accuracy: Callable[[], float]) -> Iterator[None]:
        """For libraries whose rounds are called one by one: one turn of a ``for`` loop is one round."""
        try:
            while True:
                self.wait(accuracy)
                yield
        except Stop:
            return

    def _answer(self, **values: object) -> None:
        print(json.dumps(values), file=self._answers, flush=True)
