"""What is started for a federation: processes that end together, the door of the server, and what is heard of them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from fedga.errors import FedGAError
from fedga.flower import guard
from fedga.flower.deployment.gate import Gate
from fedga.flower.deployment.heard import Heard
from fedga.flower.processes import family

# A child with a child of its own in another session, as Flower starts them; "deaf" ones do not end when asked to.
NEST = """
import signal, subprocess, sys, time
behaviour, depth = sys.argv[1:]
if behaviour == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if depth == "outer":
    subprocess.Popen([sys.executable, __file__, behaviour, "inner"], start_new_session=True)
time.sleep(600)
"""
PARENT = """
import sys, time
from pathlib import Path
from fedga.flower.processes import family
home, *arguments = sys.argv[1:]
with family(Path(home)) as members:
    members.start(sys.executable, *arguments)
    time.sleep(600)
"""


@pytest.fixture
def nest(tmp_path: Path) -> str:
    path = tmp_path / "nest.py"
    path.write_text(NEST)
    return str(path)


def until(happened: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def mark_of(home: Path) -> str:
    with family(home) as members:
        return members.mark.partition(".")[0] + "."


@pytest.mark.parametrize("behaviour", ["polite", "deaf"])
def test_a_killed_parent_takes_its_whole_family_along(tmp_path: Path, nest: str, behaviour: str) -> None:
    home = tmp_path / "home"
    mark = mark_of(home)
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(home), nest, behaviour, "outer"])
    until(lambda: len(guard.members(mark)) == 2)
    with pytest.raises(FedGAError, match="another process works in"), family(home):
        pass
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    with family(home):  # at once: it waits for what is left
        assert guard.members(mark) == set()


def test_a_family_ends_with_its_block(tmp_path: Path, nest: str) -> None:
    home = tmp_path / "home"
    with family(home) as members:
        members.start(sys.executable, nest, "polite", "outer", log=home / "log")
        until(lambda: len(guard.members(members.mark)) == 2)
    assert guard.members(members.mark) == set()


def test_children_are_kept_from_calling_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")
    monkeypatch.setenv("NO_PROXY", "example.org")
    with family(tmp_path) as members:
        seen = members.environment()
    wanted = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    wanted |= {"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "FLWR_HOME": str(tmp_path)}
    assert seen.items() >= (wanted | {"NO_PROXY": "example.org,127.0.0.1,localhost"}).items()
    assert seen["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)


# --- the door --------------------------------------------------------------------------------------------------------


def knock(method: str, path: str, body: bytes = b"", query: bytes = b"") -> tuple[int, bytes, list[httpx.Request]]:
    """What the door answers, and the requests that came through it."""
    passed: list[httpx.Request] = []

    async def behind(request: httpx.Request) -> httpx.Response:
        await request.aread()
        passed.append(request)
        return httpx.Response(200, stream=httpx.ByteStream(b"from Flower"))

    gate = Gate("https://127.0.0.1:1", None)
    sent: list[Any] = []

    async def ask() -> None:
        gate.client = httpx.AsyncClient(transport=httpx.MockTransport(behind))
        halves = [
            {"type": "http.request", "body": body[:2], "more_body": True},
            {"type": "http.request", "body": body[2:]},
        ]

        async def receive() -> Any:
            return halves.pop(0)

        async def send(event: Any) -> None:
            sent.append(event)

        headers = [(b"host", b"fl.example.org"), (b"flwr-signature", b"signed"), (b"connection", b"close")]
        scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": query}
        await gate(scope | {"headers": headers}, receive, send)
        await gate.client.aclose()

    asyncio.run(ask())
    return sent[0]["status"], b"".join(event.get("body", b"") for event in sent[1:]), passed


def test_the_door_lets_sites_through() -> None:
    status, answer, [request] = knock("POST", "/v1/fleet/pull-messages", b"protobuf")
    assert (status, answer) == (200, b"from Flower")
    assert request.url.path == "/v1/fleet/pull-messages"
    assert request.content == b"protobuf"
    assert request.headers["flwr-signature"] == "signed"
    assert request.headers["host"] == "127.0.0.1:1"


@pytest.mark.parametrize(
    ("method", "path", "query"),
    [
        ("POST", "/v1/control/start-run", b""),
        ("POST", "/v1/control/register-node", b""),
        ("POST", "/v1/runtime/acquire-task", b""),
        ("POST", "/v1/fleet/../control/start-run", b""),
        ("POST", "/v1/fleet/%2e%2e/control/start-run", b""),
        ("POST", "//v1/fleet/pull-messages", b""),
        ("POST", "/v1/fleet/pull-messages/", b""),
        ("POST", "/v1/fleet/pull-messages", b"a=b"),
        ("GET", "/v1/fleet/pull-messages", b""),
        ("GET", "/docs", b""),
        ("GET", "/health", b""),
    ],
)
def test_the_door_is_shut_for_everything_else(method: str, path: str, query: bytes) -> None:
    status, _, passed = knock(method, path, query=query)
    assert status == 404
    assert passed == []


def test_a_server_that_is_not_ready() -> None:
    async def ask() -> list[Any]:
        gate, sent = Gate("http://127.0.0.1:1", None), []

        async def receive() -> Any:
            return {"type": "http.request", "body": b""}

        async def send(event: Any) -> None:
            sent.append(event)

        scope = {"type": "http", "method": "POST", "path": "/v1/fleet/get-run", "query_string": b"", "headers": []}
        await gate(scope, receive, send)
        await gate.client.aclose()
        return sent

    assert asyncio.run(ask())[0]["status"] == 503  # at which Flower's nodes try again


# --- what is heard ---------------------------------------------------------------------------------------------------


def heard(*lines: str, connected: bool = False) -> tuple[list[str], str]:
    said: list[str] = []
    listener = Heard(said.append)
    listener.connected = connected
    for line in lines:
        listener.take(line + "\n")
    return said, listener.error


def test_flowers_own_remarks_are_left_out() -> None:
    said, _ = heard(
        "Successfully started run 42",
        "\x1b[92mINFO \x1b[0m:      Starting logstream for run_id `42`",
        "INFO:     Uvicorn running on http://127.0.0.1:38299 (Press CTRL+C to quit)",
        "\x1b[92mINFO \x1b[0m:      ",
        "fedga, round 1 of 4: accuracy 0.376",
        "  class    kind",
        "\x1b[93mWARNING \x1b[0m:   something is odd",
    )
    assert said == ["fedga, round 1 of 4: accuracy 0.376", "  class    kind", "something is odd"]


def test_of_our_errors_the_sentence_is_said_and_of_others_all() -> None:
    trace = ["ERROR :     Traceback (most recent call last):", '  File "a.py", line 1, in f', "    f()"]
    assert heard(*trace, "fedga.errors.FedGAError: wrong: do this", "after") == (
        ["wrong: do this", "after"],
        "wrong: do this",
    )
    assert heard(*trace, "httpx.HTTPStatusError: Client error '401 Unauthorized'", "after")[0] == ["after"]
    said, error = heard(*trace, "ValueError: odd")
    assert said == ["Traceback (most recent call last):", *trace[1:], "ValueError: odd"]
    assert error == ""


def test_an_absent_server_is_mentioned_once() -> None:
    away = "WARNING :   Connection attempt failed, retrying in 0.30 seconds"
    back = "INFO :      Connection successful after 5.53 seconds and 4 tries."
    assert heard(away, away, back, away, connected=True)[0] == [
        "the server is away: trying again until it is back",
        "the server is back",
        "the server is away: trying again until it is back",
    ]
    assert heard(away, back)[0] == []
