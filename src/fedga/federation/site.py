"""`fedga flower site`: a site's part of a federation, for as long as its owner wants."""

from __future__ import annotations

import re
import socket
import ssl
import threading
import time
import urllib.request
from collections import deque
from typing import IO

from fedga.common.files import write_whole
from fedga.errors import FedGAError, quoted
from fedga.federation.folder import SiteFolder
from fedga.federation.heard import Heard, Say
from fedga.flower.processes.group import ProcessGroup, family, free_port
from fedga.flower.processes.words import as_toml, last_words

_TRY_EVERY_S = 2.0
_ANSWER_WITHIN_S = 20.0
_LINES_KEPT = 200
REFUSED_FOR_S = 90.0  # Flower's server holds on to a connection that broke off for two heartbeats, 60 s
_ACTIVE = "SuperNode ID: "
_REFUSED = re.compile(r"\[code: 2004\]|Failed to activate SuperNode")  # an unknown key, or one that is connected
_PLAIN_TEXT = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL")
_NOT_TRUSTED = re.compile(r"certificate verify failed|CERTIFICATE_VERIFY_FAILED", re.IGNORECASE)


def attend(folder: SiteFolder, insecure: bool, say: Say) -> None:
    """Take part until interrupted: a server that is away is waited for, one that goes on refusing us is an error."""
    config = folder.node_config()
    if not insecure:
        folder.check_safe()
    with family(folder.home) as members:
        node = write_whole(folder.home / "node.toml", as_toml(config))
        arguments = _arguments(folder, str(node), insecure)
        refusal = _Refusal(folder, say)
        while True:
            _reach(folder, insecure, say)
            ended = _Node(members, arguments, folder, say)
            if ended.refused:
                refusal.bear()
            else:
                ended.check()
                refusal.over()
                say(ended.why)
            time.sleep(_TRY_EVERY_S)


def _arguments(folder: SiteFolder, node: str, insecure: bool) -> list[str]:
    where = ["--superlink", str(folder.server()), "--node-config", node, "--host", "127.0.0.1"]
    if insecure:
        return [*where, "--insecure"]
    files = {"--root-certificates": folder.authority, "--auth-supernode-private-key": folder.key()}
    return [*where, *(word for flag, path in files.items() for word in (flag, str(path.resolve())))]


class _Refusal:
    """The server's no, which passes if it is meant for a former connection of ours that the server has not let go."""

    def __init__(self, folder: SiteFolder, say: Say) -> None:
        self._folder, self._say = folder, say
        self._since: float | None = None
        self._was_connected = False

    def bear(self) -> None:
        """Say once what may be the matter; when it has lasted too long, it is the key."""
        now, folder = time.monotonic(), self._folder
        if self._since is None:
            self._since = now
            self._say(self._words())
        if now - self._since < REFUSED_FOR_S:
            return
        raise FedGAError(
            f"the server does not know this site's key: its owner has to run fedga flower admit with "
            f"{folder.public_key().name}, the file {folder.public_key()} here"
        )

    def over(self) -> None:
        """We were let in."""
        self._since, self._was_connected = None, True

    def _words(self) -> str:
        if self._was_connected:
            return "waiting for the server to let go of the former connection"
        return (
            f"the server refuses the key of {self._folder.site()} for now: it does not know the key, or has not let go "
            f"of a former connection of this site; trying for {REFUSED_FOR_S:.0f} s"
        )


class _Node:
    """One life of Flower's node, from its start to its end, which making this object waits for."""

    def __init__(self, members: ProcessGroup, arguments: list[str], folder: SiteFolder, say: Say) -> None:
        self._folder, self._say = folder, say
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._active = False
        process = members.start("flower-supernode", *arguments, "--port", str(free_port()))
        assert process.stdout is not None
        reader = threading.Thread(target=self._listen, args=(process.stdout,), daemon=True)
        reader.start()
        self._code = process.wait()  # its children end when they see it gone, and only then does the last line come
        reader.join(timeout=5)

    def _listen(self, lines: IO[str]) -> None:
        heard = Heard(self._say)
        with lines, open(self._folder.home / "site.log", "w", encoding="utf-8") as log:
            for line in lines:
                log.write(line)
                log.flush()
                self._lines.append(line)
                heard.take(line)
                if _ACTIVE in line:
                    self._active = heard.connected = True
                    self._say(f"{self._folder.site()} takes part in the federation at {self._folder.server()}")

    @property
    def refused(self) -> bool:
        """Whether the server did not let it in for its key's sake."""
        return not self._active and _REFUSED.search("".join(self._lines)) is not None

    @property
    def why(self) -> str:
        """What ended a node that was let in, and what comes next."""
        if self._code < 0:
            return f"Flower's node was killed (signal {-self._code}): starting another"
        return f"the server no longer knows {self._folder.site()} by its number: asking for another"

    def check(self) -> None:
        """A node that was never let in, and not for its key's sake, says why; it is of no use to try again."""
        if self._active:
            return
        said, folder = "".join(self._lines), self._folder
        if _NOT_TRUSTED.search(said):
            raise _not_the_server(folder)
        raise FedGAError(
            f"the server does not let {folder.site()} in: check that the clocks of both machines are right and both "
            f"have the same version of fedga (last words: {quoted(last_words(said), 300)})"
        )


def _not_the_server(folder: SiteFolder, reason: str = "") -> FedGAError:
    why = f" ({reason})" if reason else ""
    return FedGAError(
        f"{folder.server()} is not the server that {folder.authority} vouches for{why}: ask the server's owner for "
        "its address and its ca.crt"
    )


def _reach(folder: SiteFolder, insecure: bool, say: Say) -> None:
    """Wait until the server answers, and refuse one that is not ours before anything is sent to it.

    Behind a proxy the way is Flower's to find; it makes the same checks, if in worse words.
    """
    server = folder.server()
    if "https" in urllib.request.getproxies() and not urllib.request.proxy_bypass(server.host):
        return None
    trusted = None if insecure else ssl.create_default_context(cafile=str(folder.authority))
    told = False
    while True:
        try:
            with socket.create_connection((server.host, server.port), _ANSWER_WITHIN_S) as line:
                return _greet(line, trusted, folder)
        except OSError as error:
            if not told:
                say(f"{server} cannot be reached yet ({error.strerror or error}): trying again until it is there")
            told = True
        time.sleep(_TRY_EVERY_S)


def _greet(line: socket.socket, trusted: ssl.SSLContext | None, folder: SiteFolder) -> None:
    """A handshake with the server, secret or not as it should be."""
    if trusted is None:
        line.sendall(b"GET / HTTP/1.0\r\n\r\n")
        if not line.recv(5).startswith(b"HTTP"):
            raise FedGAError(f"{folder.server()} speaks over TLS only: leave --insecure out")
        return
    try:
        trusted.wrap_socket(line, server_hostname=folder.server().host).close()
    except ssl.SSLCertVerificationError as error:
        raise _not_the_server(folder, error.verify_message) from None
    except ssl.SSLError as error:
        if error.reason not in _PLAIN_TEXT:
            raise  # a server about to end, perhaps
        raise FedGAError(
            f"{folder.server()} does not speak over TLS ({error.reason}): another program listens there, or a server "
            "that was started with --insecure"
        ) from None
