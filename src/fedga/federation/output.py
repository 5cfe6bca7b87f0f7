"""What Flower's programs print, without what concerns Flower alone."""

import re
from collections.abc import Callable
from pathlib import Path

from fedga.flower.processes.words import plain

Say = Callable[[str], None]

_LEVEL = re.compile(r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) ?:\s*")
_OUR_ERROR = re.compile(r"(?:fedga\.errors\.)?FedGAError: (.+)")
_CONNECTION_LOST = re.compile(r"httpx\.\w+: ")  # with which Flower's node ends; we start another
_TRACEBACK = "Traceback (most recent call last):"
_LISTED = Path(__file__).with_name("remarks.txt").read_text("utf-8").splitlines()
_REMARKS = re.compile("|".join(each for each in _LISTED if not each.startswith("#")))
_LONGEST_LINE = 2_000  # letters
_AWAY, _BACK = "Connection attempt failed, retrying in ", "Connection successful after "


def printable(line: str) -> str:
    """A line that others may have written, as a terminal may show it: cut, and without control characters.

    >>> print(printable("a\\x1b]0;b\\r" + "c" * 3000)[:12])
    a\\x1b]0;b\\rc
    """
    text = plain(line).rstrip()
    shown = text[:_LONGEST_LINE] + "…" * (len(text) > _LONGEST_LINE)
    return "".join(letter if letter.isprintable() or letter == "\t" else repr(letter)[1:-1] for letter in shown)


class OutputFilter:
    """Says the lines that are meant for people; of an error of ours, kept in ``error``, the sentence alone.

    Flower reports every failed attempt to reach the server: once ``connected`` is set, the first one is said.
    """

    def __init__(self, say: Say, say_errors: bool = True) -> None:
        self._say, self._say_errors = say, say_errors
        self._traceback: list[str] = []  # that may be one of ours
        self._away = False
        self.connected = False
        self.error = ""

    def feed(self, line: str) -> None:
        text = printable(line)
        text = text[found.end() :] if (found := _LEVEL.match(text)) else text
        if text.lstrip() == _TRACEBACK or (self._traceback and (not text or text[0].isspace())):
            self._traceback.append(text)
            return
        ours = _OUR_ERROR.match(text)
        before, self._traceback = self._traceback, []
        if ours:
            self.error = ours[1]
            if self._say_errors:
                self._say(self.error)
        elif not _CONNECTION_LOST.match(text):
            for each in before:
                self._say(each)
            self._pass_on(text)

    def _pass_on(self, text: str) -> None:
        if text.startswith((_AWAY, _BACK)):
            away = text.startswith(_AWAY)
            if away != self._away and (self.connected or self._away):
                self._away = away
                self._say("the server is away: trying again until it is back" if away else "the server is back")
        elif text.strip() and not _REMARKS.match(text.lstrip()):
            self._say(text)
