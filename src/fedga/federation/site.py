"""`fedga flower site`: a site's part of a federation, for as long as its owner wants."""

import re
import socket
import ssl
import threading
import time
import urllib.request
from collections import deque

from fedga.common.files import write_whole
from fedga.errors import FedGAError, quoted
from fedga.federation.folder import SiteFolder
from fedga.federation.output import OutputFilter, Say
from fedga.flower.processes.group import ProcessGroup, free_port, process_group
from fedga.flower.processes.words import as_toml, last_words

_TRY_EVERY_S = 2.0
_ANSWER_WITHIN_S = 20.0
_LINES_KEPT = 200
REFUSED_FOR_S = 90.0  # Flower's server keeps a connection that broke off for two heartbeats, 60 s
_ACTIVE = "SuperNode ID: "
_REFUSED = re.compile(r"\[code: 2004\]|Failed to activate SuperNode")  # an unknown key, or one that is connected
_PLAIN_TEXT = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL")
_NOT_TRUSTED = re.compile(r"certificate verify failed", re.IGNORECASE)


def run_site(folder: SiteFolder, insecure: bool, say: Say) -> None:
    """Take part until interrupted: wait for a server that is away, and give up on one that does not know our key."""
    config = folder.node_config()
    if not insecure:
        folder.check_safe()
    refused_since, was_connected = None, False
    with process_group(folder.home) as group:
        node_config = write_whole(folder.home / "node.toml", as_toml(config))
        arguments = ["--superlink", str(folder.server()), "--node-config", str(node_config), "--host", "127.0.0.1"]
        if insecure:
            arguments.append("--insecure")
        else:
            arguments += ["--root-certificates", str(folder.authority.resolve())]
            arguments += ["--auth-supernode-private-key", str(folder.key().resolve())]
        while True:
            _reach(folder, insecure, say)
            if ending := _live(folder, group, arguments, say):
                say(ending)
                refused_since, was_connected = None, True
            elif refused_since is None:
                refused_since = time.monotonic()
                say(
                    "waiting for the server to drop the former connection"
                    if was_connected
                    else f"the server refuses the key of {folder.site()} for now: it does not know the key, or still "
                    f"keeps a former connection of this site; trying for {REFUSED_FOR_S:.0f} s"
                )
            elif time.monotonic() - refused_since >= REFUSED_FOR_S:
                key = f"{folder.public_key().name}, the file {folder.public_key()} here"
                cure = f"its owner has to run fedga flower admit with {key}"
                raise FedGAError(f"the server does not know this site's key: {cure}")
            time.sleep(_TRY_EVERY_S)


def _live(folder: SiteFolder, group: ProcessGroup, arguments: list[str], say: Say) -> str:
    """One life of Flower's node, which the server let in: what ended it; empty where the server rejected its key."""
    process, output = group.start("flower-supernode", *arguments, "--port", str(free_port())), OutputFilter(say)
    lines: deque[str] = deque(maxlen=_LINES_KEPT)

    def listen() -> None:
        assert process.stdout is not None
        with process.stdout, open(folder.home / "site.log", "w", encoding="utf-8", buffering=1) as log:
            for line in process.stdout:
                log.write(line)
                lines.append(line)
                output.feed(line)
                if _ACTIVE in line:
                    output.connected = True
                    say(f"{folder.site()} takes part in the federation at {folder.server()}")

    reader = threading.Thread(target=listen, daemon=True)
    reader.start()
    code = process.wait()  # its children end when they see it gone, and only then does the last line come
    reader.join(timeout=5)
    if output.connected and code < 0:
        return f"Flower's node was killed (signal {-code}): starting another"
    if output.connected:
        return f"the server no longer knows {folder.site()} by its number: asking for another"
    printed = "".join(lines)
    if _REFUSED.search(printed):
        return ""
    if _NOT_TRUSTED.search(printed.replace("_", " ")):
        raise _not_the_server(folder)
    cure = "check that the clocks of both machines are right and both have the same version of fedga"
    last = quoted(last_words(printed), 300)
    raise FedGAError(f"the server does not let {folder.site()} in: {cure} (last words: {last})")


def _not_the_server(folder: SiteFolder, reason: str = "") -> FedGAError:
    why = f" ({reason})" if reason else ""
    cure = "ask the server's owner for its address and its ca.crt"
    return FedGAError(f"{folder.server()} is not the server that {folder.authority} vouches for{why}: {cure}")


def _reach(folder: SiteFolder, insecure: bool, say: Say) -> None:
    """Wait until the server answers, and refuse one that is not ours; behind a proxy Flower does so itself."""
    server = folder.server()
    if "https" in urllib.request.getproxies() and not urllib.request.proxy_bypass(server.host):
        return
    trusted = None if insecure else ssl.create_default_context(cafile=str(folder.authority))
    said = False
    while True:
        try:
            with socket.create_connection((server.host, server.port), _ANSWER_WITHIN_S) as line:
                _greet(line, trusted, folder)
                return
        except OSError as error:
            if not said:
                say(f"{server} cannot be reached yet ({error.strerror or error}): trying again until it is there")
            said = True
        time.sleep(_TRY_EVERY_S)


def _greet(line: socket.socket, trusted: ssl.SSLContext | None, folder: SiteFolder) -> None:
    """A handshake with the server, encrypted or not as it should be."""
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
        other = "another program listens there, or a server that was started with --insecure"
        raise FedGAError(f"{folder.server()} does not speak over TLS ({error.reason}): {other}") from None
