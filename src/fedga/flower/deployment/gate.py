"""The one door of the server: it lets the requests of sites through to Flower, and nothing else.

Flower's SuperLink serves three things on one port: messages of nodes, which it authenticates, and the control of runs
and the interface of running apps, which it does not. Whoever reached that port could register a key of his own or start
a run, which is code on the server and at every site. So the SuperLink listens on the loopback address alone, and this
program listens for the sites: over TLS, and forwarding the paths of the Fleet API only. The loopback address is open to
every account of the machine. Run it on a machine where only trusted people have accounts: each of them can reach
Flower's control of the runs, and so run code at every site.

Flower reads all of a request before it asks who sent it. So the gate looks at the signature first: who cannot show that
of an admitted site gets no further than a short request to be let in, and is soon disconnected.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import re
import resource
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedga.errors import FedGAError
from fedga.flower.deployment.keys import read_public_key

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

FLEET = re.compile(r"/v1/fleet/[a-z-]+")  # exact: no dots or escapes that a router behind could read differently
SIGNED = (b"flwr-public-key", b"flwr-timestamp", b"flwr-signature")  # the headers of a node, by Flower's names
_ACTIVATE = "/v1/fleet/activate-node"  # Flower itself tells a node that it does not know its key
_LONG = {"/v1/fleet/push-object", "/v1/fleet/push-messages"}  # with models in them; all other requests are short
_SHORT_BYTES = 1_000_000
_HEADER_BYTES = 65_536
_STRANGERS = 256  # connections on which no site has shown itself yet
_SHOW_WITHIN_S = 15.0
_IDLE_S = 30
_READ_KEYS_EVERY_S = 1.0
_OF_ONE_CONNECTION = {b"host", b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"te", b"trailer"}


class Admitted:
    """The keys of the admitted sites, which are files in a folder; one that is added counts at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._keys: dict[bytes, ec.EllipticCurvePublicKey] = {}
        self._read_at = -_READ_KEYS_EVERY_S

    def signed(self, headers: list[tuple[bytes, bytes]]) -> bool:
        """Whether a request carries the signature of an admitted site; that it is fresh, Flower sees to."""
        given = dict(headers)
        public, timestamp, signature = (given.get(name, b"") for name in SIGNED)
        key = self._find(public)
        if key is None:
            return False
        try:
            key.verify(base64.b64decode(signature, validate=True), timestamp, ec.ECDSA(hashes.SHA256()))
        except (ValueError, InvalidSignature):
            return False
        return True

    def _find(self, public: bytes) -> ec.EllipticCurvePublicKey | None:
        if time.monotonic() - self._read_at >= _READ_KEYS_EVERY_S:
            self._read_at = time.monotonic()
            self._keys = _read_keys(self._folder)
        return self._keys.get(public)


def _read_keys(folder: Path) -> dict[bytes, ec.EllipticCurvePublicKey]:
    """The keys in a folder, by what Flower's nodes send as their public key."""
    form = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    keys = {}
    for path in folder.glob("*.pub"):
        with contextlib.suppress(FedGAError):  # half copied, perhaps
            key = serialization.load_ssh_public_key(read_public_key(path).text.encode())
            assert isinstance(key, ec.EllipticCurvePublicKey)
            keys[base64.b64encode(key.public_bytes(*form))] = key
    return keys


class Strangers:
    """Connections on which no site has shown itself yet: they end soon, and the oldest at once if there are many.

    A site shows itself with its first request, so however many connections others open, it has its turn.
    """

    def __init__(self) -> None:
        self._waiting: dict[Any, tuple[asyncio.Transport, asyncio.TimerHandle]] = {}

    def add(self, transport: asyncio.Transport) -> None:
        timer = asyncio.get_running_loop().call_later(_SHOW_WITHIN_S, transport.abort)
        self._waiting[_peer(transport)] = (transport, timer)
        if len(self._waiting) > _STRANGERS:
            oldest = next(iter(self._waiting))
            self._waiting[oldest][0].abort()
            self.remove(oldest)

    def remove(self, peer: Any) -> None:
        """It has shown itself, or has gone."""
        if found := self._waiting.pop(peer, None):
            found[1].cancel()


def _peer(transport: asyncio.Transport) -> Any:
    """Host and port of the other end, which are one connection's alone."""
    return tuple((transport.get_extra_info("peername") or ())[:2])


class Connection(H11Protocol):
    """A connection to the door; the headers of a request have a limit of their own."""

    strangers: Strangers | None = None  # one for all connections; None where nobody has to show himself

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.strangers is not None:
            self.strangers.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.strangers is not None:
            self.strangers.remove(_peer(self.transport))
        super().connection_lost(exc)


class TooLongError(Exception):
    """A request has a longer body than those of its kind have."""


class Gate:
    """An ASGI app in front of the SuperLink at ``target``; without ``admitted``, signatures are nobody's concern."""

    def __init__(self, target: str, verify: ssl.SSLContext | None, admitted: Admitted | None = None) -> None:
        self.target = target
        self.admitted = admitted
        self.strangers = Strangers() if admitted else None
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        patience = httpx.Timeout(None, connect=10.0)
        self.client = httpx.AsyncClient(
            verify=verify if verify is not None else False, limits=limits, timeout=patience, trust_env=False
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = scope.get("raw_path", scope["path"].encode()).decode("ascii", errors="replace")
        if scope["method"] != "POST" or scope["query_string"] or not FLEET.fullmatch(path):
            await _answer(send, 404, b"This door is for the sites of a federation.\n")
            return
        if not self._lets_in(scope, path):
            await _answer(send, 401, b"This door is for the sites of a federation, which sign their requests.\n")
            return
        body = _body(receive, None if path in _LONG else _SHORT_BYTES)
        request = self.client.build_request(
            "POST", self.target + path, headers=_passed_on(scope["headers"]), content=body
        )
        try:
            response = await self.client.send(request, stream=True)
        except TooLongError:
            await _answer(send, 413, b"Requests of this kind are short.\n")
            return
        except httpx.TransportError:
            await _answer(send, 503, b"The server is not ready.\n")
            return
        try:
            await send(_start(response.status_code, _passed_on(response.headers.raw)))
            async for chunk in response.aiter_raw():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            await response.aclose()

    def _lets_in(self, scope: Scope, path: str) -> bool:
        if self.admitted is None:
            return True
        if self.admitted.signed(scope["headers"]):
            if self.strangers is not None:
                self.strangers.remove(scope.get("client"))
            return True
        return path == _ACTIVATE and {name for name, _ in scope["headers"]}.issuperset(SIGNED)


async def _body(receive: Receive, most: int | None) -> AsyncIterator[bytes]:
    more, length = True, 0
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise httpx.ReadError("the site has gone")
        more = event.get("more_body", False)
        length += len(event.get("body", b""))
        if most is not None and length > most:
            raise TooLongError
        yield event.get("body", b"")


async def _answer(send: Send, status: int, text: bytes) -> None:
    length = str(len(text)).encode()
    headers = [(b"content-type", b"text/plain"), (b"content-length", length), (b"connection", b"close")]
    await send(_start(status, headers))
    await send({"type": "http.response.body", "body": text})


def _start(status: int, headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": headers}


def _passed_on(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name.lower() not in _OF_ONE_CONNECTION]


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--host", "--port", "--target", "--ca", "--certificate", "--key", "--admitted"):
        parser.add_argument(name)
    given = parser.parse_args()
    if given.ca is None:
        gate = Gate(given.target, None)
    else:
        gate = Gate(given.target, ssl.create_default_context(cafile=given.ca), Admitted(Path(given.admitted)))
    Connection.strangers = gate.strangers
    _raise_file_limit()
    uvicorn.run(
        gate,
        http=Connection,
        ws="none",
        h11_max_incomplete_event_size=_HEADER_BYTES,
        timeout_keep_alive=_IDLE_S,
        host=given.host,
        port=int(given.port),
        ssl_certfile=given.certificate,
        ssl_keyfile=given.key,
        log_level="warning",
        lifespan="off",
        proxy_headers=False,
        server_header=False,
        date_header=False,
    )


def _raise_file_limit() -> None:
    """As many connections as the system allows us, handshakes under way among them."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    main()
