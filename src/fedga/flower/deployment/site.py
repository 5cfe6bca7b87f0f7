"""`fedga flower site`: a site's part of a federation, for as long as its owner wants."""

from __future__ import annotations

import re
import socket
import ssl
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Iterable

from fedga.errors import FedGAError
from fedga.files import write_whole
from fedga.flower.deployment.folder import SiteFolder
from fedga.flower.deployment.heard import Heard, Say
from fedga.flower.processes import Family, as_toml, family, free_port, last_words

_TRY_EVERY_S = 2.0
_ANSWER_WITHIN_S = 20.0
_LINES_KEPT = 200
_ACTIVE = "SuperNode ID: "
_KEY_UNKNOWN = re.compile(r"\[code: 2004\]|Failed to activate SuperNode")
_PLAIN_TEXT = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL")
_NOT_TRUSTED = re.compile(r"certificate verify failed|CERTIFICATE_VERIFY_FAILED", re.IGNORECASE)


def attend(folder: SiteFolder, insecure: bool, say: Say) -> None:
    """Take part until interrupted: a server that is away is waited for, one that refuses us is an error."""
    config = folder.node_config()
    if not insecure:
        folder.check_safe()
    with family(folder.home) as members:
        node = write_whole(folder.home / "node.toml", as_toml(config))
        arguments = _arguments(folder, str(node), insecure)
        while True:
            _reach(folder, insecure, say)
            ended = _Node(members, arguments, folder, say)
            ended.check()
            say(f"the server no longer knows {folder.site()} by its number: asking for another")
            time.sleep(_TRY_EVERY_S)


def _arguments(folder: SiteFolder, node: str, insecure: bool) -> list[str]:
    where = ["--superlink", str(folder.server()), "--node-config", node, "--host", "127.0.0.1"]
    if insecure:
        return [*where, "--insecure"]
    files = {"--root-certificates": folder.authority, "--auth-supernode-private-key": folder.key()}
    return [*where, *(word for flag, path in files.items() for word in (flag, str(path.resolve())))]


class _Node:
    """One life of Flower's node, from its start to its end, which making this object waits for."""

    def __init__(self, members: Family, arguments: list[str], folder: SiteFolder, say: Say) -> None:
        self._folder, self._say = folder, say
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._active = False
        process = members.start("flower-supernode", *arguments, "--port", str(free_port()))
        assert process.stdout is not None
        reader = threading.Thread(target=self._listen, args=(process.stdout,), daemon=True)
        reader.start()
        process.wait()  # its children end when they see it gone, and only then does the last line come
        reader.join(timeout=5)

    def _listen(self, lines: Iterable[str]) -> None:
        heard = Heard(self._say)
        with open(self._folder.home / "site.log", "w", encoding="utf-8") as log:
            for line in lines:
                log.write(line)
                log.flush()
                self._lines.append(line)
                heard.take(line)
                if _ACTIVE in line:
                    self._active = heard.connected = True
                    self._say(f"{self._folder.site()} takes part in the federation at {self._folder.server()}")

    def check(self) -> None:
        """A node that was never let in says why; it is of no use to try again."""
        if self._active:
            return
        said, folder = "".join(self._lines), self._folder
        if _KEY_UNKNOWN.search(said):
            raise FedGAError(
                f"the server does not know this site's key: its owner has to run fedga flower admit with "
                f"{folder.public_key().name}, the file {folder.public_key()} here"
            )
        if _NOT_TRUSTED.search(said):
            raise _not_the_server(folder)
        raise FedGAError(
            f"the server does not let {folder.site()} in: check that the clocks of both machines are right and both "
            f"have the same version of fedga (last words: {last_words(said) or 'none'})"
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
