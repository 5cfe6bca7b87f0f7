"""What Python really does while a block runs: which files it opens, which processes it starts, what it imports."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

_STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "pty.spawn", "webbrowser.open")


@dataclass
class Seen:
    """Names of files and modules, and events that start a program or open a connection."""

    opened: list[str] = field(default_factory=list)
    imported: list[str] = field(default_factory=list)
    started: list[str] = field(default_factory=list)


_watching: list[Seen] = []


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if not _watching:
        return
    for seen in _watching:
        if event == "open":
            seen.opened.append(str(arguments[0]))
        elif event == "import":
            seen.imported.append(str(arguments[0]))
        elif event in _STARTS or event == "socket.connect":
            seen.started.append(f"{event} {arguments!r}")


sys.addaudithook(_hook)  # for good: there is no way to take one back


@contextmanager
def watched() -> Iterator[Seen]:
    seen = Seen()
    _watching.append(seen)
    try:
        yield seen
    finally:
        _watching.remove(seen)
