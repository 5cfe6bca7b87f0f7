"""The one door of the server: it lets the requests of sites through to Flower, and nothing else.

Flower's SuperLink serves three things on one port: messages of nodes, which it authenticates, and the control of runs
and the interface of running apps, which it does not. Whoever reached that port could register a key of his own or start
a run, which is code on the server and at every site. So the SuperLink listens on the loopback address alone, and this
program listens for the sites: over TLS, and forwarding the paths of the Fleet API only.
"""

from __future__ import annotations

import argparse
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

import httpx
import uvicorn

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

FLEET = re.compile(r"/v1/fleet/[a-z-]+")  # exact: no dots or escapes that a router behind could read differently
_OF_ONE_CONNECTION = {b"host", b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"te", b"trailer"}


class Gate:
    """An ASGI app in front of the SuperLink at ``target``."""

    def __init__(self, target: str, verify: ssl.SSLContext | None) -> None:
        self.target = target
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
        request = self.client.build_request(
            "POST", self.target + path, headers=_passed_on(scope["headers"]), content=_body(receive)
        )
        try:
            response = await self.client.send(request, stream=True)
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


async def _body(receive: Receive) -> AsyncIterator[bytes]:
    more = True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise httpx.ReadError("the site has gone")
        more = event.get("more_body", False)
        yield event.get("body", b"")


async def _answer(send: Send, status: int, text: bytes) -> None:
    await send(_start(status, [(b"content-type", b"text/plain"), (b"content-length", str(len(text)).encode())]))
    await send({"type": "http.response.body", "body": text})


def _start(status: int, headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": headers}


def _passed_on(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name.lower() not in _OF_ONE_CONNECTION]


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--host", "--port", "--target", "--ca", "--certificate", "--key"):
        parser.add_argument(name)
    given = parser.parse_args()
    secure = given.ca is not None
    gate = Gate(given.target, ssl.create_default_context(cafile=given.ca) if secure else None)
    uvicorn.run(
        gate,
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


if __name__ == "__main__":
    main()
