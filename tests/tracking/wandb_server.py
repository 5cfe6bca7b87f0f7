"""As much of a wandb server as its client needs to log runs and to continue them, on this machine."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class WandbServer(ThreadingHTTPServer):
    """``history`` has the logged steps of every run by its id, ``exits`` the code with which each was left last."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.history: dict[str, list[str]] = {}
        self.exits: dict[str, int] = {}

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is none of the test's business."""

    def steps(self, run: str) -> list[int]:
        return [json.loads(line)["_step"] for line in self.history[run]]

    def stream(self, run: str, sent: dict[str, Any]) -> dict[str, Any]:
        """Lines of a run's files, placed where the client says."""
        if lines := (sent.get("files") or {}).get("wandb-history.jsonl"):
            self.history.setdefault(run, [])[lines["offset"] :] = lines["content"]
        if "exitcode" in sent:
            self.exits[run] = sent["exitcode"]
        return {"limits": {}}

    def answer(self, query: str, given: dict[str, Any]) -> dict[str, Any]:
        project = {"id": "p", "name": "fedga", "entity": {"id": "e", "name": "me"}}
        match query:
            case "RunResumeStatus":
                lines = self.history.get(given["name"])
                return {"model": {**project, "bucket": _bucket(given["name"], lines) if lines else None}}
            case "UpsertBucket":
                bucket = {"id": "b", "name": given["name"], "displayName": given["displayName"], "config": "{}"}
                return {"upsertBucket": {"bucket": {**bucket, "project": project}, "inserted": True}}
            case "CreateRunFiles":
                files = [{"name": name, "uploadUrl": f"{self.url}/{name}"} for name in given["files"]]
                return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}
            case "ServerFeaturesQuery":
                return {"serverInfo": {"features": []}}
        return {"viewer": {"id": "u", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}}


def _bucket(name: str, lines: list[str]) -> dict[str, Any]:
    tails = {"historyTail": json.dumps(lines[-1:]), "historyLineCount": len(lines), "summaryMetrics": lines[-1]}
    others = {"eventsTail": "[]", "eventsLineCount": 0, "logLineCount": 0, "config": "{}", "tags": [], "notes": ""}
    return {"id": "b", "name": name, "displayName": name, "wandbConfig": '{"t": 1}', **tails, **others}


class _Handler(BaseHTTPRequestHandler):
    server: WandbServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        pass

    def do_PUT(self) -> None:
        self._body()
        self._reply({})

    def do_POST(self) -> None:
        sent = json.loads(self._body() or "{}")
        if self.path == "/graphql":
            self._reply({"data": self.server.answer(sent["operationName"], sent.get("variables") or {})})
        else:
            self._reply(self.server.stream(self.path.split("/")[-2], sent))

    def _body(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def _reply(self, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving() -> Iterator[WandbServer]:
    with WandbServer() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
