"""The one door of the server: it lets the requests of sites through to Flower, and nothing else.

Flower's SuperLink serves three things on one port: messages of nodes, which it authenticates, and the control of runs
and the interface of running apps, which it does not. Whoever reached that port could register a key of his own or start
a run, which is code on the server and at every site. So the SuperLink listens on the loopback address alone, and this
program listens for the sites: over TLS, and forwarding the paths of the Fleet API only. The loopback address is open to
every account of the machine. Run it on a machine where only trusted people have accounts: each of them can reach
Flower's control of the runs, and so run code at every site.

Flower reads all of a request before it asks who sent it. So the gate looks at the signature first: who cannot show that
of an admitted site gets no further than a short request to be let in, and is soon disconnected. An admitted site has
limits as well: so many connections, so long a reply, and no request that stalls.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import math
import re
import resource
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any, TypeVar

import httpx
import uvicorn
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedga.errors import FedGAError
from fedga.federation import connections
from fedga.federation.connections import (
    Allowances,
    Connections,
    Refusals,
    TooLongError,
    TooSlowError,
    peer_of,
)
from fedga.federation.keys import read_public_key

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

Given = TypeVar("Given")

FLEET = re.compile(r"/v1/fleet/[a-z-]+")  # exact: no dots or escapes that a router behind could read differently
SIGNED = (b"flwr-public-key", b"flwr-timestamp", b"flwr-signature")  # the headers of a node, by Flower's names
_ACTIVATE = "/v1/fleet/activate-node"  # Flower itself tells a node that it does not know its key
_MESSAGE = "/v1/fleet/push-messages"  # with which a reply begins: what it consists of
_LONG = {_MESSAGE, "/v1/fleet/push-object"}  # with models in them; all other requests are short
_LONG_BYTES = 16_000_000  # Flower's nodes send arrays in pieces of 5 MB
_SHORT_BYTES = 1_000_000
_HEADER_BYTES = 65_536
MOST_BYTES = 256_000_000  # of a whole reply, unless the settings say otherwise
_IDLE_S = 30
_READ_KEYS_EVERY_S = 1.0
_OF_ONE_CONNECTION = {b"host", b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"te", b"trailer"}


class Admitted:
    """The keys of the admitted sites, which are files in a folder; one that is added counts at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._keys: dict[bytes, tuple[str, ec.EllipticCurvePublicKey]] = {}
        self._read_at = -_READ_KEYS_EVERY_S

    def signer(self, headers: list[tuple[bytes, bytes]]) -> str | None:
        """The admitted site whose signature a request carries; that it is fresh, Flower sees to."""
        given = dict(headers)
        public, timestamp, signature = (given.get(name, b"") for name in SIGNED)
        found = self._find(public)
        if found is None:
            return None
        site, key = found
        try:
            key.verify(base64.b64decode(signature, validate=True), timestamp, ec.ECDSA(hashes.SHA256()))
        except (ValueError, InvalidSignature):
            return None
        return site

    def _find(self, public: bytes) -> tuple[str, ec.EllipticCurvePublicKey] | None:
        if time.monotonic() - self._read_at >= _READ_KEYS_EVERY_S:
            self._read_at = time.monotonic()
            self._keys = _read_keys(self._folder)
        return self._keys.get(public)


def _read_keys(folder: Path) -> dict[bytes, tuple[str, ec.EllipticCurvePublicKey]]:
    """The keys in a folder and whose they are, by what Flower's nodes send as their public key."""
    form = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    keys = {}
    for path in folder.glob("*.pub"):
        with contextlib.suppress(FedGAError):  # half copied, perhaps
            read = read_public_key(path)
            key = serialization.load_ssh_public_key(read.text.encode())
            assert isinstance(key, ec.EllipticCurvePublicKey)
            keys[base64.b64encode(key.public_bytes(*form))] = (read.site, key)
    return keys


class Connection(H11Protocol):
    """A connection to the door; the headers of a request have a limit of their own, in bytes and in time."""

    open: Connections | None = None  # one for all connections; None where nobody has to show himself
    _headers_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.open is not None:
            self.open.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        if self.open is not None:
            self.open.remove(peer_of(self.transport))
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._expect_headers()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._expect_headers()

    def _expect_headers(self) -> None:
        """Of a request that has begun and is not under way yet, the rest is to come soon."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self._headers_due is None and self.conn.trailing_data[0]:
            self._headers_due = self.loop.call_later(connections.SHOW_WITHIN_S, self._cut)

    def timeout_keep_alive_handler(self) -> None:
        if self.open is not None:
            self.open.refusals.count(connections.IDLE)
        super().timeout_keep_alive_handler()

    def _cut(self) -> None:
        if self.open is not None:
            self.open.refusals.count(connections.SLOW)
        self.transport.abort()

    def _stop_waiting(self) -> None:
        if self._headers_due is not None:
            self._headers_due.cancel()
            self._headers_due = None


class Gate:
    """An ASGI app in front of the SuperLink at ``target``; without ``admitted``, signatures are nobody's concern.

    ``most_bytes`` is the length of the longest reply of a site.
    """

    def __init__(
        self,
        target: str,
        verify: ssl.SSLContext | None,
        admitted: Admitted | None = None,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.target = target
        self.admitted = admitted
        self.refusals = Refusals(_say)
        self.open = Connections(self.refusals) if admitted else None
        self.allowances = Allowances(most_bytes)
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
        site = self.admitted.signer(scope["headers"]) if self.admitted else None
        if site is not None and self.open is not None:
            self.open.shown(scope.get("client"), site)
        if self.admitted is not None and site is None and not _asks_to_be_let_in(scope, path):
            await _answer(send, 401, b"This door is for the sites of a federation, which sign their requests.\n")
            return
        try:
            await self._pass_on(scope, path, self._body(receive, path, site), send)
        except TooLongError:
            self.refusals.count(connections.LONG, site or "")
            await _answer(send, 413, b"This is longer than requests of this kind are.\n")
        except TooSlowError:
            self.refusals.count(connections.SLOW, site or "")
            await _answer(send, 408, b"This comes too slowly.\n")

    async def _pass_on(self, scope: Scope, path: str, body: AsyncIterator[bytes], send: Send) -> None:
        request = self.client.build_request(
            "POST", self.target + path, headers=_passed_on(scope["headers"]), content=body
        )
        try:
            response = await self.client.send(request, stream=True)
        except httpx.TransportError:
            await _answer(send, 503, b"The server is not ready.\n")
            return
        try:
            await send(_start(response.status_code, _passed_on(response.headers.raw)))
            async for chunk in response.aiter_raw():
                await _within(send({"type": "http.response.body", "body": chunk, "more_body": True}))
            await _within(send({"type": "http.response.body", "body": b""}))
        except TooSlowError:  # whoever asked does not take the answer
            self.refusals.count(connections.SLOW)
            if self.open is not None:
                self.open.cut(scope.get("client"))
        finally:
            await response.aclose()

    async def _body(self, receive: Receive, path: str, site: str | None) -> AsyncIterator[bytes]:
        """The body of a request as it comes, as long as it is neither too long nor too slow."""
        most = _LONG_BYTES if path in _LONG else _SHORT_BYTES
        if path == _MESSAGE and site is not None:
            self.allowances.renew(site)
        more, length, began = True, 0, time.monotonic()
        while more:
            event = await _within(receive(), connections.STALLS_FOR_S + length / connections.LEAST_RATE, began)
            if event["type"] == "http.disconnect":
                raise httpx.ReadError("the site has gone")
            body = event.get("body", b"")
            more = event.get("more_body", False)
            length += len(body)
            if length > most:
                raise TooLongError
            if path in _LONG and site is not None:
                self.allowances.spend(site, len(body))
            yield body


def _asks_to_be_let_in(scope: Scope, path: str) -> bool:
    return path == _ACTIVATE and {name for name, _ in scope["headers"]}.issuperset(SIGNED)


async def _within(action: Awaitable[Given], seconds: float = math.inf, began: float = 0.0) -> Given:
    """What comes before the line has stalled for too long, or ``seconds`` have passed since it ``began``."""
    left = min(connections.STALLS_FOR_S, began + seconds - time.monotonic())
    try:
        return await asyncio.wait_for(action, max(0.0, left))
    except TimeoutError:
        raise TooSlowError from None


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
    parser.add_argument("--most-bytes", type=int, default=MOST_BYTES)
    given = parser.parse_args()
    if given.ca is None:
        gate = Gate(given.target, None)
    else:
        trusted, admitted = ssl.create_default_context(cafile=given.ca), Admitted(Path(given.admitted))
        gate = Gate(given.target, trusted, admitted, given.most_bytes)
    Connection.open = gate.open
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
    gate.refusals.tell()


def _say(text: str) -> None:
    print(text, flush=True)


def _raise_file_limit() -> None:
    """As many connections as the system allows us, handshakes under way among them."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    main()
