"""A Hugging Face Hub on 127.0.0.1 that answers HEAD and GET for the files it is given."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from fedga.spec.catalog import Hub


class FakeHub:
    """``files`` maps a path in the repository to its bytes; ``stated`` overrules the SHA-256 that is told for one."""

    def __init__(self, hub: Hub, files: dict[str, bytes]) -> None:
        self.files = {f"/datasets/{hub.repository}/resolve/{hub.revision}/{path}": data for path, data in files.items()}
        self.revision = hub.revision
        self.stated: dict[str, str] = {}
        self.without_checksum = False
        self.ignores_range = False
        self.requests: list[tuple[str, str, str | None]] = []  # method, path, Range header
        self.tokens: list[str | None] = []
        self.endpoint = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path, wanted = handler.path.split("?")[0], handler.headers.get("Range")
        self.requests.append((handler.command, path, wanted))
        self.tokens.append(handler.headers.get("Authorization"))
        data = self.files.get(path)
        if data is None:
            handler.send_response(404)
            handler.send_header("X-Error-Code", "EntryNotFound")
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        start = int(wanted.split("=")[1].split("-")[0]) if wanted and not self.ignores_range else 0
        etag = "0123abcd" if self.without_checksum else self.stated.get(path, hashlib.sha256(data).hexdigest())
        handler.send_response(206 if start else 200)
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        handler.send_header("ETag", f'"{etag}"')
        handler.send_header("X-Linked-Etag", f'"{etag}"')
        handler.send_header("X-Linked-Size", str(len(data)))
        handler.send_header("X-Repo-Commit", self.revision)
        handler.send_header("Content-Length", str(len(data) - start))
        handler.end_headers()
        if handler.command == "GET":
            handler.wfile.write(data[start:])

    @property
    def downloads(self) -> list[tuple[str, str | None]]:
        """(file name, Range header) of every GET."""
        return [(path.rsplit("/", 1)[1], wanted) for method, path, wanted in self.requests if method == "GET"]


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            hub.answer(self)

        def do_GET(self) -> None:
            hub.answer(self)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
