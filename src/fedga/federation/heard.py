"""What Flower's programs say, without what only concerns Flower."""

from __future__ import annotations

import re
from collections.abc import Callable

from fedga.flower.processes.words import plain

Say = Callable[[str], None]

_LEVEL = re.compile(r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) ?:\s*")
_OUR_ERROR = re.compile(r"(?:fedga\.errors\.)?FedGAError: (.+)")
_CONNECTION_LOST = re.compile(r"httpx\.\w+: ")  # with which Flower's node ends; we start another
_TRACEBACK = "Traceback (most recent call last):"
_REMARKS = re.compile(
    # of the command that submits a run, and of the server's app
    r"Using SuperLink: |Successfully (?:started run|installed) |Starting logstream |Start(?:ing)? `?(?:Flower|flwr-)|"
    r"ServerApp raised an exception|Exit Code: |An unhandled exception occurred in the |"
    r"For more information(?:, visit| check): |"
    # of a node
    r"Started server process |Waiting for application |Application (?:startup|shutdown) complete|Uvicorn running |"
    r"FastAPI lifespan: |Shutting down$|Finished server process |SuperNode ID: |\[RUN \d+|Receiving: |Sending: |"
    r"Received successfully|Sent successfully|SuperNode terminated|SuperExec terminated|"
    r"Failed to initialize the connection |\[code: \d+\] |The SuperNode could not |SSL/TLS handshake error|"
    r"Exception in thread |"
    # warnings of Python's, which are for developers
    r"\S+\.py:\d+: \w*Warning: |warnings\.warn\("
)
_LONGEST_LINE = 2_000  # letters
_AWAY = re.compile(r"Connection attempt failed, retrying in ")
_BACK = re.compile(r"Connection successful after ")


def harmless(line: str) -> str:
    """A line that others may have had a hand in, as a terminal may show it: cut, and nothing in it that one obeys.

    >>> print(harmless("a\\x1b]0;b\\r" + "c" * 3000)[:12])
    a\\x1b]0;b\\rc
    """
    text = plain(line).rstrip()
    shown = text[:_LONGEST_LINE] + "…" * (len(text) > _LONGEST_LINE)
    return "".join(letter if letter.isprintable() or letter == "\t" else repr(letter)[1:-1] for letter in shown)


class Heard:
    """Takes lines as they come and says those that are meant for people.

    An error of ours arrives as a traceback; what is said, and kept in ``error``, is its sentence. Flower reports every
    failed attempt to reach the server: once ``connected`` is set, that it is away is said, and said once.
    """

    def __init__(self, say: Say, say_errors: bool = True) -> None:
        self._say = say
        self._say_errors = say_errors
        self._held: list[str] = []
        self._away = False
        self.connected = False
        self.error = ""

    def take(self, line: str) -> None:
        text = harmless(line)
        text = _LEVEL.sub("", text, count=1) if _LEVEL.match(text) else text
        if text.lstrip() == _TRACEBACK or (self._held and (not text or text[0].isspace())):
            self._held.append(text)
        elif found := _OUR_ERROR.match(text):
            self._held.clear()
            self.error = found[1]
            if self._say_errors:
                self._say(self.error)
        elif _CONNECTION_LOST.match(text):
            self._held.clear()
        else:
            self._release()
            self._pass_on(text)

    def _release(self) -> None:
        for text in self._held:
            self._say(text)
        self._held.clear()

    def _pass_on(self, text: str) -> None:
        if _AWAY.match(text):
            if self.connected and not self._away:
                self._say("the server is away: trying again until it is back")
                self._away = True
        elif _BACK.match(text):
            if self._away:
                self._say("the server is back")
            self._away = False
        elif text.strip() and not _REMARKS.match(text.lstrip()):
            self._say(text)
