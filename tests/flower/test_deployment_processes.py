"""What is started for a federation: processes that end together, the door of the server, and what is heard of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

from fedga.common import guard
from fedga.errors import FedGAError
from fedga.federation import connections, site
from fedga.federation.folder import SiteFolder
from fedga.federation.gate import SIGNED, Admitted, Gate, open_gate
from fedga.federation.keys import make_key_pair
from fedga.federation.output import OutputFilter
from fedga.flower.processes import superlink as superlinks
from fedga.flower.processes.group import ProcessGroup, process_group
from fedga.flower.processes.superlink import SuperLink
from tests.cli.program import done
from tests.patience import PATIENCE_S

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
from fedga.flower.processes.group import process_group
home, *arguments = sys.argv[1:]
with process_group(Path(home)) as group:
    group.start(sys.executable, *arguments)
    time.sleep(600)
"""


@pytest.fixture
def nest(tmp_path: Path) -> str:
    path = tmp_path / "nest.py"
    path.write_text(NEST)
    return str(path)


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def mark_of(home: Path) -> str:
    with process_group(home) as members:
        return members.mark.partition(".")[0] + "."


@pytest.mark.parametrize("behaviour", ["polite", "deaf"])
def test_a_killed_parent_takes_its_whole_family_along(tmp_path: Path, nest: str, behaviour: str) -> None:
    home = tmp_path / "home"
    mark = mark_of(home)
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(home), nest, behaviour, "outer"])
    until(lambda: len(guard.members(mark)) == 2)
    with pytest.raises(FedGAError, match="another process works in"), process_group(home):
        pass
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    with process_group(home):  # at once: it waits for what is left
        assert guard.members(mark) == set()


def test_a_family_ends_with_its_block(tmp_path: Path, nest: str) -> None:
    home = tmp_path / "home"
    with process_group(home) as members:
        members.start(sys.executable, nest, "polite", "outer", log=home / "log")
        until(lambda: len(guard.members(members.mark)) == 2)
    assert guard.members(members.mark) == set()


def test_children_are_kept_from_calling_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")
    monkeypatch.setenv("NO_PROXY", "example.org")
    with process_group(tmp_path) as members:
        seen = members.environment()
    wanted = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    wanted |= {"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "FLWR_HOME": str(tmp_path)}
    assert seen.items() >= (wanted | {"NO_PROXY": "example.org,127.0.0.1,localhost"}).items()
    assert seen["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)


# --- the door --------------------------------------------------------------------------------------------------------


Headers = list[tuple[bytes, bytes]]


def knock(
    method: str,
    path: str,
    body: bytes = b"",
    query: bytes = b"",
    admitted: Admitted | None = None,
    headers: Headers | None = None,
    gate: Gate | None = None,
) -> tuple[int, bytes, list[httpx.Request]]:
    """What the door answers, and the requests that came through it."""
    passed: list[httpx.Request] = []

    async def behind(request: httpx.Request) -> httpx.Response:
        await request.aread()
        passed.append(request)
        return httpx.Response(200, stream=httpx.ByteStream(b"from Flower"))

    gate = gate or Gate("https://127.0.0.1:1", None, admitted)
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

        given = [(b"host", b"fl.example.org"), (b"connection", b"close")]
        given += [(b"flwr-signature", b"signed")] if headers is None else headers
        scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": query}
        await gate(scope | {"headers": given}, receive, send)
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


@pytest.fixture
def admitted(tmp_path: Path) -> Path:
    make_key_pair("north", tmp_path / "keys/north.key", tmp_path / "admitted/north.pub")
    make_key_pair("west", tmp_path / "keys/west.key", tmp_path / "west.pub")
    return tmp_path / "admitted"


def signature(key: Path) -> Headers:
    """What Flower's nodes send to show who they are."""
    private = serialization.load_ssh_private_key(key.read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    timestamp = b"2026-11-16T00:00:00+00:00"
    public, signed = public_key_to_bytes(private.public_key()), sign_message(private, timestamp)
    return list(zip(SIGNED, (b64encode(public), timestamp, b64encode(signed)), strict=True))


def test_signatures_have_flowers_names() -> None:
    names = (FLEET_HTTP_PUBLIC_KEY_HEADER, TIMESTAMP_HEADER, FLEET_HTTP_SIGNATURE_HEADER)
    assert names == tuple(name.decode() for name in SIGNED)


def test_only_admitted_sites_are_listened_to(admitted: Path) -> None:
    keys, push = Admitted(admitted), "/v1/fleet/push-object"
    north, west = (signature(admitted.parent / f"keys/{name}.key") for name in ("north", "west"))
    assert knock("POST", push, admitted=keys, headers=north)[0] == 200
    for headers in (west, [*west[:2], north[2]], [north[0], *west[1:]], north[:2], []):
        status, _, passed = knock("POST", push, admitted=keys, headers=headers)
        assert (status, passed) == (401, [])
    assert knock("POST", "/v1/fleet/activate-node", admitted=keys, headers=west)[0] == 200  # Flower says no itself
    assert knock("POST", "/v1/fleet/activate-node", admitted=keys, headers=[])[0] == 401


def test_a_site_that_is_admitted_later_is_listened_to(admitted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedga.federation.gate._READ_KEYS_EVERY_S", 0.0)
    keys, west = Admitted(admitted), signature(admitted.parent / "keys/west.key")
    assert keys.signer(west) is None
    (admitted.parent / "west.pub").rename(admitted / "west.pub")
    (admitted / "half.pub").write_text("ecdsa-sha2")
    assert keys.signer(west) == "west"


def test_only_models_are_long(admitted: Path) -> None:
    body = bytes(1_000_001)
    assert knock("POST", "/v1/fleet/push-object", body)[0] == 200
    status, _, passed = knock("POST", "/v1/fleet/pull-messages", body)
    assert (status, passed) == (413, [])


class Behind(BaseHTTPRequestHandler):
    """A SuperLink that takes everything."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()


@pytest.fixture
def behind() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Behind) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def door(admitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], ssl.SSLSocket]]:
    """Connections to a gate that is open, before a SuperLink that is not."""
    with gate_before("https://127.0.0.1:1", admitted, tmp_path, monkeypatch, []) as connect:
        yield connect


@pytest.fixture
def reported() -> list[str]:
    return []


@pytest.fixture
def busy_door(
    admitted: Path, tmp_path: Path, behind: str, monkeypatch: pytest.MonkeyPatch, reported: list[str]
) -> Iterator[Callable[[], ssl.SSLSocket]]:
    with gate_before(behind, admitted, tmp_path, monkeypatch, reported) as connect:
        yield connect


@contextlib.contextmanager
def gate_before(
    target: str, admitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> Iterator[Callable[[], ssl.SSLSocket]]:
    limits = {"SIGN_WITHIN_S": 1.0, "STALLS_FOR_S": 3.0, "REPORT_EVERY_S": 0.1, "STRANGERS": 3, "OF_ONE_SITE": 4}
    for name, value in limits.items():
        monkeypatch.setattr(connections, name, value)
    done("flower init", tmp_path / "server", "--address", "localhost", "--sites", "north", "--classes", "x,y")
    listener, keys = socket.create_server(("127.0.0.1", 0)), tmp_path / "server/keys"
    trusting = ssl.create_default_context(cafile=str(tmp_path / "server/ca.crt"))
    gate = Gate(target, trusting, Admitted(admitted), say=said.append)

    def connect() -> ssl.SSLSocket:
        line = socket.create_connection(("127.0.0.1", listener.getsockname()[1]), timeout=20)
        return closing.enter_context(trusting.wrap_socket(line, server_hostname="localhost"))

    failed: list[bool] = []
    pair = (keys / "server.crt", keys / "server.key")
    with (
        listener,
        open_gate(gate, listener, tmp_path / "gate.log", lambda: failed.append(True), *pair),
        contextlib.ExitStack() as closing,
    ):
        yield connect
    assert not failed


def send(line: ssl.SSLSocket, headers: Headers) -> bytes:
    """The first line of the answer, if any, to a request with a body that never ends."""
    request = [b"POST /v1/fleet/push-object HTTP/1.1", b"host: localhost", b"content-length: 1000000000"]
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        line.sendall(b"\r\n".join([*request, *(name + b": " + value for name, value in headers), b"", b"some"]))
        return line.recv(1000).partition(b"\r\n")[0]
    return b""


def gone(line: ssl.SSLSocket) -> bool:
    """Whether nothing more comes than the rest of an answer."""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while line.recv(1000):
            pass
    return True


def test_strangers_are_kept_short(admitted: Path, door: Callable[[], ssl.SSLSocket]) -> None:
    site = signature(admitted.parent / "keys/north.key")
    idle = [door() for _ in range(3)]
    assert send(door(), []).startswith(b"HTTP/1.1 401")  # at once, without its body
    assert send(door(), [(b"x", b"y" * 2_000_000)]) in (b"HTTP/1.1 400 Bad Request", b"")
    assert all(gone(line) for line in idle)
    guest = door()
    request = b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n"
    shown = b"\r\n".join(name + b": " + value for name, value in site)
    guest.sendall(request + shown + b"\r\n\r\n1")
    time.sleep(1.5)  # a site may take its time
    guest.sendall(b"2")
    assert guest.recv(1000).startswith(b"HTTP/1.1 503")


def ask(line: ssl.SSLSocket, site: Headers, length: int = 2, body: bytes = b"12") -> None:
    """A site's request, or the beginning of one."""
    request = b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n" % length
    line.sendall(request + b"\r\n".join(name + b": " + value for name, value in site) + b"\r\n\r\n" + body)


def answered(line: ssl.SSLSocket) -> bytes:
    return line.recv(10_000).partition(b"\r\n")[0]


def test_a_site_that_stalls_is_cut(admitted: Path, busy_door: Callable[[], ssl.SSLSocket], reported: list[str]) -> None:
    site = signature(admitted.parent / "keys/north.key")
    body, headers = busy_door(), busy_door()
    ask(headers, site)
    assert answered(headers).startswith(b"HTTP/1.1 200")
    headers.sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: local")
    ask(body, site, length=1000)
    assert answered(body).startswith(b"HTTP/1.1 408")
    assert gone(body)
    assert gone(headers)
    until(lambda: "2 requests cut that came too slowly (north)" in "".join(reported))


def test_a_site_has_so_many_connections(admitted: Path, busy_door: Callable[[], ssl.SSLSocket]) -> None:
    site = signature(admitted.parent / "keys/north.key")
    lines = []
    for _ in range(6):
        lines.append(busy_door())
        ask(lines[-1], site)
        assert answered(lines[-1]).startswith(b"HTTP/1.1 200")
    assert gone(lines[0])
    assert gone(lines[1])
    for line in lines[2:]:
        ask(line, site)
        assert answered(line).startswith(b"HTTP/1.1 200")


def test_a_reply_is_so_long(admitted: Path) -> None:
    site = signature(admitted.parent / "keys/north.key")
    gate = Gate("https://127.0.0.1:1", None, Admitted(admitted), most_bytes=3_000_000)

    def push(path: str, length: int) -> int:
        return knock("POST", f"/v1/fleet/{path}", bytes(length), headers=site, gate=gate)[0]

    assert push("push-messages", 1000) == 200
    assert [push("push-object", 1_000_000) for _ in range(4)] == [200, 200, 413, 413]
    assert push("push-messages", 1000) == 200  # the next reply
    assert push("push-object", 1_000_000) == 200
    assert push("push-object", 17_000_000) == 413


def test_a_gate_that_closes_by_itself_is_noticed(tmp_path: Path) -> None:
    failed: list[bool] = []
    listener = socket.socket()
    listener.close()
    gate, log = Gate("http://127.0.0.1:1", None), tmp_path / "gate.log"
    with open_gate(gate, listener, log, lambda: failed.append(True)):
        until(lambda: bool(failed))
    assert "the gate failed" in log.read_text()


# --- a site that is refused ------------------------------------------------------------------------------------------

NO = "print('[code: 2004] Failed to activate SuperNode')"
YES = "print('SuperNode ID: 7')"
KILLED = "import os; print('SuperNode ID: 7', flush=True); os.kill(os.getpid(), 9)"


@pytest.fixture
def attend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """What a site says whose nodes fare as these programs do, until it is interrupted."""
    said: list[str] = []

    def run(*lives: str) -> list[str]:
        left = list(lives)

        def start(members: ProcessGroup, program: str, *arguments: str) -> subprocess.Popen[str]:
            if not left:
                raise KeyboardInterrupt
            command = [sys.executable, "-c", left.pop(0)]
            return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

        monkeypatch.setattr(ProcessGroup, "start", start)
        monkeypatch.setattr(site, "_reach", lambda *_: None)
        monkeypatch.setattr(site, "_TRY_EVERY_S", 0.01)
        with pytest.raises(KeyboardInterrupt):
            site.run_site(SiteFolder(tmp_path / "north"), insecure=True, say=said.append)
        return said

    done("flower init", tmp_path / "server", "--address", "localhost", "--sites", "north", "--classes", "x,y")
    (tmp_path / "data.csv").write_text("x,label\n1,0\n")
    place = ("--site", "north", "--server", "localhost", "--ca", tmp_path / "server/ca.crt")
    done("flower join", tmp_path / "north", *place, "--data", tmp_path / "data.csv")
    return run


def test_a_site_waits_until_the_server_lets_go_of_its_former_connection(attend: Callable[..., list[str]]) -> None:
    [refused, *_, taking_part, _] = said = attend(NO, NO, YES)
    assert refused.startswith("the server refuses the key of north for now: it does not know the key, or still ")
    assert refused.endswith("trying for 90 s")
    assert len(said) == 3
    assert "takes part" in taking_part


def test_a_killed_node_comes_back(attend: Callable[..., list[str]]) -> None:
    takes_part = "north takes part in the federation at localhost:9092"
    killed = "Flower's node was killed (signal 9): starting another"
    waiting = "waiting for the server to drop the former connection"
    again = "the server no longer knows north by its number: asking for another"
    assert attend(KILLED, NO, NO, YES) == [takes_part, killed, waiting, takes_part, again]


def test_a_key_that_is_refused_for_long_is_unknown(
    attend: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "REFUSED_FOR_S", 0.01)
    with pytest.raises(FedGAError, match="the server does not know this site's key: its owner has to run"):
        attend(NO, NO, NO)


# --- the log of a run ------------------------------------------------------------------------------------------------

RUN = ["Successfully built app.fab", "Successfully started run 42", "INFO : Starting logstream for run_id `42`"]
BROKEN = ["╭─ Error ─────╮", "│ unavailable │", "╰─────────────╯"]


def test_a_log_that_breaks_off_is_taken_up_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lives = [
        ([*RUN, "one", "two", *BROKEN], 1),
        (['{"runs": [{"run-id": 42, "status": "running"}]}'], 0),
        (
            ["INFO : Starting logstream for run_id `42`", "one", "two", "three", "fedga.errors.FedGAError: bad"],
            0,
        ),
        (['{"runs": [{"run-id": 42, "status": "finished:failed"}]}'], 0),
    ]

    def start(*_: object, **__: object) -> subprocess.Popen[str]:
        lines, code = lives.pop(0)
        program = f"import sys; print(*{lines!r}, sep='\\n'); sys.exit({code})"
        return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)

    monkeypatch.setattr(ProcessGroup, "start", start)
    monkeypatch.setattr(superlinks, "_RESUME_AFTER_S", 0.0)
    alive = cast(Any, SimpleNamespace(poll=lambda: None))
    taken: list[str] = []
    outcome = SuperLink(ProcessGroup(tmp_path, "mark"), alive, "", tmp_path / "log").run(tmp_path, on_line=taken.append)
    assert outcome.status == "finished:failed"
    assert taken == [*RUN, "one", "two", *BROKEN, "three", "fedga.errors.FedGAError: bad"]


# --- what is heard ---------------------------------------------------------------------------------------------------


def heard(*lines: str, connected: bool = False) -> tuple[list[str], str]:
    said: list[str] = []
    listener = OutputFilter(said.append)
    listener.connected = connected
    for line in lines:
        listener.feed(line + "\n")
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
