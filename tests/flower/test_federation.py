"""A real federation on this machine: TLS, keys, a server and three sites, each a process that can be killed.

Rounds take seconds, so one story holds all scenarios, and the tests read what it left behind: FedGA is trained through
the death of the server, and then through the death of a site.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedga.common import guard
from fedga.data import load_dataset, make_federation
from fedga.flower.processes.group import free_port
from fedga.spec.settings import RunSpec
from tests.cli.program import done
from tests.flower.runs import on_engine
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.timeout(3600)  # for the story: two minutes on two free cores

SITES = ("north", "south", "west")
ROUNDS = 3
LAST_WHOLE_ROUND = ROUNDS - 1  # before a site was killed
IMPATIENT = "from fedga.federation import site; site.REFUSED_FOR_S = 1.0"


class Program:
    """`fedga flower …` in a process of its own; what it says goes to a file."""

    def __init__(self, folder: Path, *arguments: str, prelude: str = "") -> None:
        self.log = folder / f"{'-'.join(arguments[:2])}-{time.monotonic_ns()}.txt"
        with self.log.open("wb") as log:
            program = ["-c", f"{prelude}; from fedga.cli import main; main()"] if prelude else ["-m", "fedga"]
            command = [sys.executable, *program, "flower", *arguments]
            environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
            self.process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)

    @property
    def said(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def hears(self, words: str) -> None:
        """Wait until it says so."""
        until(lambda: words in self.said or self.process.poll() is not None, lambda: f"no {words!r}:\n{self.said}")
        assert words in self.said, self.said

    def ends(self) -> int:
        until(lambda: self.process.poll() is not None, lambda: f"does not end:\n{self.said}")
        return int(self.process.returncode)

    def sends(self, number: int) -> None:
        self.process.send_signal(number)


def until(happened: Callable[[], bool], otherwise: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline, otherwise()
        time.sleep(0.1)


def running(home: Path) -> set[int]:
    """Everything that works for a server or a site."""
    return guard.members(hashlib.sha256(str(home.resolve()).encode()).hexdigest()[:16])


@dataclass
class Story:
    folder: Path
    port: int
    said: dict[str, str] = field(default_factory=dict)
    codes: dict[str, int] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    left: dict[str, set[int]] = field(default_factory=dict)

    def path(self, *parts: str) -> str:
        return str(self.folder.joinpath(*parts))

    def ended(self, name: str, program: Program) -> None:
        self.codes[name] = program.ends()
        self.said[name] = program.said


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    story = Story(tmp_path_factory.mktemp("federation"), free_port())
    write_files(story.folder)
    found(story)
    programs: list[Program] = []
    try:
        tell(story, programs)
        yield story
    finally:
        for program in programs:
            with contextlib.suppress(ProcessLookupError):
                program.process.kill()
                program.process.wait()


def write_files(folder: Path) -> None:
    """digits partitioned over the sites, a table each; the server has the test split; whole.csv has all of it."""
    dataset = load_dataset("digits")
    federation = make_federation(dataset, clients=len(SITES), seed=0, alpha=0.5)
    test = rows(dataset.test_inputs, dataset.test_targets, "test")
    write(folder / "server.csv", test)
    whole = [[*row, SITES[0]] for row in test]
    for client, site in enumerate(SITES):
        places = federation.client(client)
        train = rows(dataset.train_inputs[places], dataset.train_targets[places], "train")
        write(folder / f"{site}.csv", train)
        whole += [[*row, site] for row in train]
    write(folder / "whole.csv", whole, "client")


def rows(inputs: np.ndarray, labels: np.ndarray, split: str) -> list[list[Any]]:
    pixels = (inputs.reshape(len(inputs), -1) / 16).tolist()
    return [[*row, label, split] for row, label in zip(pixels, labels.tolist(), strict=True)]


def write(path: Path, content: list[list[Any]], *more: str) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"pixel{place}" for place in range(64)), "label", "split", *more])
        writer.writerows(content)


def found(story: Story) -> None:
    """Certificates and keys: those of two sites are admitted, the third's and an intruder's are not."""
    path, address = story.path, f"localhost:{story.port}"
    training = ("--algorithm", "fedga", "--rounds", str(ROUNDS), "--batch-size", "16")
    parties = ("--sites", ",".join(SITES), "--classes", ",".join(map(str, range(10))))
    done("flower init", path("server"), "--address", address, *parties, "--server-data", path("server.csv"), *training)
    done("flower init", path("other"), "--address", address, "--sites", "a,b", "--classes", "x,y")
    settings = story.folder / "server" / "app" / "pyproject.toml"
    settings.write_text(settings.read_text().replace('device = "auto"', 'device = "cpu"'))
    for site in SITES:
        join(story, site, site, "server")
    join(story, "intruder", "west", "server")
    join(story, "misled", "west", "other")
    done("flower admit", path("server"), path("north", "north.pub"), path("south", "south.pub"))


def join(story: Story, folder: str, site: str, authority: str) -> None:
    server = ("--server", f"localhost:{story.port}", "--ca", story.path(authority, "ca.crt"))
    data = ("--data", story.path(f"{site}.csv"), "--label-column", "label")
    done("flower join", story.path(folder), "--site", site, *server, *data)


def tell(story: Story, programs: list[Program]) -> None:
    def start(*arguments: str, prelude: str = "") -> Program:
        programs.append(Program(story.folder, *arguments, prelude=prelude))
        return programs[-1]

    home = {name: story.folder / name / "flower" for name in ("server", *SITES)}
    sites = {name: start("site", name) for name in ("north", "south")}
    server = start("serve", "server")
    server.hears("the server is ready at")
    intruder, misled = start("site", "intruder", prelude=IMPATIENT), start("site", "misled")
    story.answers = knock(story)
    done("flower admit", story.path("server"), story.path("west", "west.pub"))  # while the server runs
    server.hears("west may take part")
    sites["west"] = start("site", "west")
    story.ended("intruder", intruder)
    story.ended("misled", misled)

    server.hears("fedga, round 1 of")
    server.sends(signal.SIGKILL)
    story.ended("killed server", server)
    server = start("serve", "server")  # at once
    server.hears("fedga, round 2 of")
    until(lambda: len(running(home["west"])) > 2, lambda: "west does not begin to train")
    for pid in (sites["west"].process.pid, *running(home["west"])):  # as if its machine had lost power
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    story.ended("server", server)
    story.left["server"] = running(home["server"])
    sites["north"].sends(signal.SIGINT)
    sites["south"].sends(signal.SIGKILL)
    for name in ("north", "south"):
        story.ended(name, sites[name])
    until(lambda: not running(home["south"]), lambda: f"{running(home['south'])} still run")
    story.left["north"] = running(home["north"])


def knock(story: Story) -> dict[str, Any]:
    """What the open door answers those who are no sites."""
    trusting = ssl.create_default_context(cafile=story.path("server", "ca.crt"))
    return {
        "control": ask(f"https://localhost:{story.port}/v1/control/list-runs", trusting),
        "unsigned": ask(f"https://localhost:{story.port}/v1/fleet/activate-node", trusting),
        "plain text": say_hello(story.port),
    }


def ask(url: str, context: ssl.SSLContext) -> int:
    request = urllib.request.Request(url, data=b"", headers={"content-type": "application/protobuf"}, method="POST")
    try:
        with urllib.request.urlopen(request, context=context, timeout=20) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def say_hello(port: int) -> bytes:
    with socket.create_connection(("localhost", port), timeout=20) as line:
        line.sendall(b"POST /v1/fleet/activate-node HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n")
        try:
            return line.recv(100)
        except ConnectionError:
            return b""


# --- what the story left behind --------------------------------------------------------------------------------------


def results(folder: Path) -> dict[tuple[str, int], float]:
    """Accuracy by algorithm and round."""
    table = csv.DictReader(io.StringIO(done("results --format csv", folder).out))
    return {(row["algorithm"], int(row["round"])): float(row["accuracy"]) for row in table}


def test_the_run_ends_well(story: Story) -> None:
    assert story.codes["server"] == 0, story.said["server"]
    assert "the federation has finished: fedga results server/results" in story.said["server"]
    reached = results(story.folder / "server/results")
    assert set(reached) == {("fedga", number) for number in range(1, ROUNDS + 1)}


def test_it_equals_the_built_in_engine_as_long_as_all_sites_live(story: Story) -> None:
    settings = {"dataset": str(story.folder / "whole.csv"), "label_column": "label", "client_column": "client"}
    settings |= {"partition": "natural", "active": len(SITES), "rounds": ROUNDS, "batch_size": 16}
    expected = results(on_engine([RunSpec(**settings, algorithm="fedga")], story.folder / "engine"))
    reached = results(story.folder / "server/results")
    for number in range(1, LAST_WHOLE_ROUND + 1):
        assert reached["fedga", number] == pytest.approx(expected["fedga", number], abs=0.01)


def test_a_killed_server_goes_on_after_its_last_round(story: Story) -> None:
    assert "fedga, round 1 of" in story.said["killed server"]
    assert "continued after round" in story.said["server"]
    assert "fedga, round 1 of" not in story.said["server"]


def test_a_killed_site_does_not_stop_the_run(story: Story) -> None:
    assert f"fedga, round {ROUNDS} of {ROUNDS}" in story.said["server"]
    assert "west" in story.said["server"].partition("fedga, round 2 of")[2]  # is missed


def test_an_unknown_key_is_refused(story: Story) -> None:
    assert story.codes["intruder"] == 2
    assert "the server refuses the key of west for now" in story.said["intruder"]
    assert (
        "fedga: the server does not know this site's key: its owner has to run fedga flower admit"
        in story.said["intruder"]
    )
    assert "takes part" not in story.said["intruder"]


def test_a_server_that_the_certificate_does_not_vouch_for_is_refused(story: Story) -> None:
    assert story.codes["misled"] == 2
    assert f"localhost:{story.port} is not the server that misled/ca.crt vouches for" in story.said["misled"]


def test_nobody_gets_in_without_tls_or_without_a_signature(story: Story) -> None:
    assert not story.answers["plain text"].startswith(b"HTTP/1.1 2")
    assert story.answers["unsigned"] == 401


def test_control_of_the_runs_is_not_for_the_network(story: Story) -> None:
    assert story.answers["control"] == 404


def test_a_site_is_told_what_happens_and_stops_on_ctrl_c(story: Story) -> None:
    assert "north takes part in the federation at" in story.said["north"]
    assert "site north, round 1" in story.said["north"]
    assert "the server is away" in story.said["north"]
    assert story.codes["north"] == 130
    assert "fedga: stopped; the same command takes part again" in story.said["north"]


def test_nothing_keeps_running(story: Story) -> None:
    assert story.left["server"] == story.left["north"] == set()


def test_insecure_has_to_be_said_and_is_warned_of(tmp_path: Path) -> None:
    story = Story(tmp_path, free_port())
    write_files(tmp_path)
    found(story)
    (tmp_path / "server/keys/server.crt").unlink()
    server, site = Program(tmp_path, "serve", "server", "--insecure"), Program(tmp_path, "site", "west", "--insecure")
    try:
        server.hears("the server is ready at")
        site.hears("west takes part in the federation")  # without having been admitted
        server.sends(signal.SIGTERM)
        site.sends(signal.SIGTERM)
        assert (server.ends(), site.ends()) == (130, 130)
    finally:
        server.process.kill()
        site.process.kill()
    assert server.said.startswith("WITHOUT ENCRYPTION AND WITHOUT KEYS")
    assert site.said.startswith("WITHOUT ENCRYPTION AND WITHOUT KEYS")
    assert "fedga: stopped; everything so far is in server/results, and the same command continues" in server.said
    assert running(tmp_path / "server/flower") == running(tmp_path / "west/flower") == set()
