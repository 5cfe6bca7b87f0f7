"""The process that follows a results folder: ``python -m fedga.tracking FOLDER SERVICE...``.

It goes on until its standard input is closed, by the program that trains or by its death, delivers what is left, and
ends. Every line of its standard output is a notice for the user.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from pathlib import Path

from fedga.tracking.follower import follow


def main() -> None:
    folder, *names = sys.argv[1:]
    notices = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # where libraries print, which are not to be taken for notices
    lock = threading.Lock()

    def notify(text: str) -> None:
        with lock, suppress(OSError):  # nobody may be left to read it
            print(text, file=notices, flush=True)

    stop = threading.Event()
    # A thread for each: a server that does not answer keeps nothing from the others.
    threads = [threading.Thread(target=follow, args=(name, Path(folder), stop, notify), name=name) for name in names]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    stop.set()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
