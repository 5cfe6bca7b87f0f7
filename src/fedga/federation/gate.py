"""The gate before Flower's server: it lets the requests of sites through, and nothing else.

Flower's SuperLink authenticates the messages of nodes, but not the control of runs, on the same port: whoever reached
it could start a run, which is code on the server and at every site. So it listens on the loopback address alone, and
this gate for the sites: over TLS, and for the paths of the Fleet API only. Every account of the server's machine still
reaches the loopback address, and so must be trusted.

Flower reads a request before it asks who sent it. So the gate checks the signature first: without that of an admitted
site one gets no further than a short request to be let in. Sites have limits on connections, length and time as well.
"""

import asyncio
import base64
import contextlib
import logging
import math
import re
import resource
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import httpx
import uvicorn
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedga.errors import FedGAError
from fedga.federation import connections as limits
from fedga.federation.connections import Connections, Refusals, peer_of
from fedga.federation.keys import read_public_key

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
_FOR_SITES = "This gate is for the sites of a federation, which sign their requests.\n"

Result = TypeVar("Result")
Headers = list[tuple[bytes, bytes]]


class RefusedError(Exception):
    """A request is too long or too slow: the status of HTTP, and what it counts as."""

    def __init__(self, status: int, what: str) -> None:
        super().__init__(what)
        self.status, self.what = status, what


class Admitted:
    """The keys of the admitted sites, which are files in a folder; one that is added counts within a second."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._keys: dict[bytes, tuple[str, ec.EllipticCurvePublicKey]] = {}
        self._read_at = -_READ_KEYS_EVERY_S

    def signer(self, headers: Headers) -> str | None:
        """The admitted site whose signature a request carries; Flower checks that the signature is fresh."""
        if time.monotonic() - self._read_at >= _READ_KEYS_EVERY_S:
            self._read_at = time.monotonic()
            self._keys = _read_keys(self._folder)
        public, timestamp, signature = (dict(headers).get(name, b"") for name in SIGNED)
        site, key = self._keys.get(public, (None, None))
        if key is None:
            return None
        try:
            key.verify(base64.b64decode(signature, validate=True), timestamp, ec.ECDSA(hashes.SHA256()))
        except (ValueError, InvalidSignature):
            return None
        return site


def _read_keys(folder: Path) -> dict[bytes, tuple[str, ec.EllipticCurvePublicKey]]:
    """The keys in a folder and whose they are, by what Flower's nodes send as their public key."""
    form = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    keys = {}
    for path in folder.glob("*.pub"):
        with contextlib.suppress(FedGAError):  # half copied, perhaps
            public = read_public_key(path)
            keys[base64.b64encode(public.key.public_bytes(*form))] = (public.site, public.key)
    return keys


class Connection(H11Protocol):
    """A connection to the gate; the headers of a request have a limit of their own, in bytes and in time."""

    all: Connections
    _headers_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.all.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self.all.remove(peer_of(self.transport))
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._expect_headers()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._expect_headers()

    def _expect_headers(self) -> None:
        """The rest of a request that has begun has to come soon."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self._headers_due is None and self.conn.trailing_data[0]:
            self._headers_due = self.loop.call_later(limits.SIGN_WITHIN_S, self._cut)

    def timeout_keep_alive_handler(self) -> None:
        self.all.refusals.count(limits.IDLE)
        super().timeout_keep_alive_handler()

    def _cut(self) -> None:
        self.all.refusals.count(limits.SLOW)
        self.transport.abort()

    def _stop_waiting(self) -> None:
        if self._headers_due is not None:
            self._headers_due.cancel()
            self._headers_due = None


class Gate:
    """Before the SuperLink at ``target``; without ``admitted`` nobody signs. A reply has at most ``most_bytes``."""

    def __init__(
        self,
        target: str,
        verify: ssl.SSLContext | None,
        admitted: Admitted | None = None,
        most_bytes: int = MOST_BYTES,
        say: Callable[[str], None] = print,
    ) -> None:
        self.target, self.admitted, self.most_bytes = target, admitted, most_bytes
        self.refusals = Refusals(say)
        self.connections = Connections(self.refusals)
        self._left: dict[str, int] = {}  # bytes of the reply that a site may still send
        self.client = httpx.AsyncClient(
            verify=verify or False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            timeout=httpx.Timeout(None, connect=10.0),
            trust_env=False,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def answer(status: int, text: str) -> None:
            await PlainTextResponse(text, status, {"connection": "close"})(scope, receive, send)

        path = scope.get("raw_path", scope["path"].encode()).decode("ascii", errors="replace")
        if scope["method"] != "POST" or scope["query_string"] or not FLEET.fullmatch(path):
            await answer(404, _FOR_SITES)
            return
        peer, headers = scope.get("client"), scope["headers"]
        site = self.admitted.signer(headers) if self.admitted else ""
        if site is not None:
            self.connections.signed(peer, site or f"{peer}")
        elif path != _ACTIVATE or not {name for name, _ in headers}.issuperset(SIGNED):
            await answer(401, _FOR_SITES)
            return
        body = self._body(receive, path, site)
        request = self.client.build_request("POST", self.target + path, headers=_forwarded(headers), content=body)
        try:
            response = await self.client.send(request, stream=True)
        except httpx.TransportError:
            await answer(503, "The server is not ready.\n")
            return
        except RefusedError as error:
            self.refusals.count(error.what, site or "")
            await answer(error.status, "This request is too long or too slow.\n")
            return
        try:
            start = {"status": response.status_code, "headers": _forwarded(response.headers.raw)}
            await send({"type": "http.response.start", **start})
            async for chunk in response.aiter_raw():
                await _within(send({"type": "http.response.body", "body": chunk, "more_body": True}))
            await _within(send({"type": "http.response.body", "body": b""}))
        except RefusedError as error:  # whoever asked does not take the answer
            self.refusals.count(error.what, site or "")
            self.connections.cut(peer)
        finally:
            await response.aclose()

    async def _body(self, receive: Receive, path: str, site: str | None) -> AsyncIterator[bytes]:
        """The body of a request as it comes, as long as it is neither too long nor too slow."""
        most = _LONG_BYTES if path in _LONG else _SHORT_BYTES
        limited = site if path in _LONG else None
        if limited and path == _MESSAGE:
            self._left[limited] = self.most_bytes
        more, length, began = True, 0, time.monotonic()
        while more:
            event = await _within(receive(), limits.STALLS_FOR_S + length / limits.LEAST_RATE, began)
            if event["type"] == "http.disconnect":
                raise httpx.ReadError("the site has gone")
            body, more = event.get("body", b""), event.get("more_body", False)
            length += len(body)
            if limited:
                self._left[limited] = self._left.get(limited, self.most_bytes) - len(body)
            if length > most or (limited and self._left[limited] < 0):
                raise RefusedError(413, limits.LONG)
            yield body


async def _within(action: Awaitable[Result], seconds: float = math.inf, began: float = 0.0) -> Result:
    """What comes before the line has stalled for too long, or ``seconds`` have passed since it ``began``."""
    left = min(limits.STALLS_FOR_S, began + seconds - time.monotonic())
    try:
        return await asyncio.wait_for(action, max(0.0, left))
    except TimeoutError:
        raise RefusedError(408, limits.SLOW) from None


def _forwarded(headers: Headers) -> Headers:
    return [(name, value) for name, value in headers if name.lower() not in _OF_ONE_CONNECTION]


class _Server(uvicorn.Server):
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for nobody."""
        for connection in list(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await super().shutdown(sockets)
        assert isinstance(self.config.app, Gate)
        await self.config.app.client.aclose()


@contextlib.contextmanager
def open_gate(
    gate: Gate,
    listener: socket.socket,
    log: Path,
    on_failure: Callable[[], None],
    certificate: Path | None = None,
    key: Path | None = None,
) -> Iterator[None]:
    """The gate, open while the block lasts, in a thread of its own; ``on_failure`` is called if that ends earlier."""
    handler = logging.FileHandler(log, mode="w", delay=True)
    for name in ("uvicorn", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # as many connections as the system allows
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    Connection.all = gate.connections
    config = uvicorn.Config(
        gate,
        http=Connection,
        ws="none",
        h11_max_incomplete_event_size=_HEADER_BYTES,
        timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=1,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        log_config=None,
        log_level="warning",
        lifespan="off",
        proxy_headers=False,
        server_header=False,
        date_header=False,
    )
    server = _Server(config)

    def serve() -> None:
        try:
            server.run([listener])
        except Exception:
            logging.getLogger("uvicorn").exception("the gate failed")
        finally:
            if not server.should_exit:
                on_failure()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    while thread.is_alive() and not server.started:
        time.sleep(0.01)
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()
        handler.close()
        gate.refusals.report()
