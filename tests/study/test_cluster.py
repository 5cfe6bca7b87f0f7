"""Engines in processes that Ray starts, killed at random: the results are those of one engine left in peace."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fedga.engine.server import LaneRound
from fedga.errors import FedGAError
from fedga.spec.settings import RunSpec
from fedga.store.store import Store
from fedga.study import cluster, dispatch, prepare
from fedga.study.cluster import RayEngines, on_cluster, on_devices, parse_devices
from fedga.study.sweep import Interrupted, Observer
from tests.cli.program import done, fedga, split
from tests.patience import PATIENCE_S
from tests.study.test_dispatch import CPU, ENDS, check_equal, train

pytestmark = [  # Ray waits for none of the processes that it starts
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

OWN = """
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from fedga.algorithms.base import Algorithm


@dataclass(frozen=True)
class Halved(Algorithm):
    def local_loss(self, batch):
        return F.cross_entropy(batch.logits, batch.targets, reduction="none") / 2


class Small(torch.nn.Sequential):
    def __init__(self, input_shape, num_classes):
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(64, num_classes))
"""


def descendants(of: int) -> set[int]:
    """All processes below one."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:  # gone meanwhile
            continue
    found, new = set[int](), {of}
    while new:
        found |= new
        new = {pid for pid, parent in parents.items() if parent in new}
    return found - {of}


def engines_below(of: int) -> list[int]:
    """The processes of engines."""
    return [pid for pid in descendants(of) if "RemoteEngine" in called(pid)]


def called(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def wait_until_gone(pids: set[int]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while left := {pid: called(pid) for pid in pids if called(pid)}:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of one engine."""
    folder = tmp_path_factory.mktemp("whole")
    assert train(folder) == ENDS
    return folder


@pytest.fixture(scope="module")
def engines() -> Iterator[RayEngines]:
    """Two engines on the CPU; when they are closed, no process of Ray is left."""
    before = signal.getsignal(signal.SIGTERM)
    with on_devices([CPU, CPU], 1, None) as engines:
        assert str(engines) == "2 engines (1 CPU thread each)"
        assert signal.getsignal(signal.SIGTERM) is before
        yield engines
        started = descendants(os.getpid())
    wait_until_gone({pid for pid in started if "ray" in called(pid)})


@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.long)])
def test_killed_while_training(
    kills: int,
    engines: RayEngines,
    whole: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatch, "MOST_DEATHS", kills + 1)  # chance may strike one group again and again
    chance, killed, notices = random.Random(time.time_ns()), list[int](), list[str]()
    begun: list[int] = []

    def kill(specs: Sequence[RunSpec], rounds: Sequence[LaneRound]) -> None:
        """One of the engines that are at work now."""
        if len(killed) < kills and (victims := set(engines_below(os.getpid())) - set(killed)):
            killed.append(chance.choice(sorted(victims)))
            time.sleep(chance.uniform(0, 0.05))  # anywhere in its round
            os.kill(killed[-1], signal.SIGKILL)

    observer = Observer(lambda specs, round_: begun.append(round_), kill, notices.append)
    assert train(tmp_path, observer, pool=engines, together=2, commit_every_s=-1.0) == ENDS
    assert len(killed) == kills
    assert capsys.readouterr() == ("", "")  # what Ray says of it is not for our users
    assert [each for each in notices if "died (it crashed or was killed): another goes on" in each]
    check_equal(tmp_path, whole)


def test_stopped_and_continued(engines: RayEngines, whole: Path, tmp_path: Path) -> None:
    """On engines that have trained others before; what they were in the middle of is kept."""
    seen: list[int] = []
    observer = Observer(advanced=lambda specs, rounds: seen.append(len(rounds)), should_stop=lambda: len(seen) > 1)
    with pytest.raises(Interrupted):
        train(tmp_path, observer, pool=engines, commit_every_s=-1.0)
    with Store(tmp_path) as store:
        assert sum(run.rounds_done for run in store.runs()) == sum(seen)
    assert train(tmp_path, pool=engines) == ENDS
    check_equal(tmp_path, whole)


def test_what_goes_wrong_in_the_training_is_said_here(
    engines: RayEngines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare.Preparation, "fingerprints", lambda self, specs: {s.run_id: "other" for s in specs})
    with pytest.raises(FedGAError, match=r"the data on .* are not those of this machine: copy them there"):
        train(tmp_path, pool=engines)


@pytest.mark.long
def test_command_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With parts of one's own; nothing of Ray outlives it, and one device goes on with what it left."""
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)
    Path("fedga.toml").write_text('[algorithms]\nhalved = "own.py:Halved"\n[models]\nsmall = "own.py:Small"\n')
    command = (
        "run --dataset digits --clients 10 --active 2 --model small --algorithm halved,fedga --rounds 6,40 "
        "--no-pictures --diagnose-every 5"
    )
    program = "from fedga.study import sweep; sweep.COMMIT_EVERY_S = -1.0; from fedga.cli import main; main()"
    arguments = [*split(command), "--out", "out", "--devices", "cpu,cpu"]
    with open("log.txt", "w") as log:
        process = subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while "done" not in statuses(Path("out")):
            assert process.poll() is None, Path("log.txt").read_text()
            assert time.monotonic() < deadline, Path("log.txt").read_text()
            time.sleep(0.05)
        started = descendants(process.pid)
        assert len(engines_below(process.pid)) == 2
    finally:
        process.kill()
        process.wait()
    wait_until_gone(started)
    assert set(statuses(Path("out"))) != {"done"}
    assert "continuing" in done(f"{command} --threads 1 --out out").err
    done(f"{command} --threads 1 --out whole")
    assert done("results out --format csv").out == done("results whole --format csv").out


def statuses(folder: Path) -> list[str]:
    try:
        with Store(folder) as store:
            return [run.status for run in store.runs()]
    except FedGAError:  # nothing is there yet
        return []


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--devices cpu,cpu --device cpu", "--device and --devices are both given"),
        ("--devices cpu,cpu --cluster ray", "--devices and --cluster are both given"),
        ("--devices cpu,cpu --engine flower", "--engine flower places its clients by itself: leave --devices out"),
        ("--cluster ray --profile", "--profile looks into one engine in this process: leave it out with --cluster"),
        ("--devices cpu,", "--devices 'cpu,' must name each device, as in cuda:0,cuda:1"),
        ("--devices auto", "--devices 'auto' must name each device"),
        ("--devices cpu,gpu", "--devices gpu is not a device"),
        ("--devices cpu,cpu:3", "--devices cpu:3 is not there"),
        ("--cluster rya", "unknown cluster 'rya': did you mean 'ray'?"),
        ("--cluster ray://", "or an address as in ray://HOST:10001"),
    ],
)
def test_contradictions(flags: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in fedga(f"run --dataset digits {flags}").complaint
    assert not Path("runs").exists()


def test_where_ray_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cluster, "find_spec", lambda name: None)
    said = "training on several devices needs ray, which is not installed: pip install 'fedga[cluster]'"
    assert fedga("run --dataset digits --devices cpu,cpu").complaint == said
    assert fedga("run --dataset digits --cluster ray").complaint == said
    assert fedga("run --dataset digits --rounds 1 --devices cpu --threads 1 --no-pictures").code == 0  # one needs none


def test_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(prepare.torch.cuda, "device_count", lambda: 2)
    assert [device.index for device in parse_devices("cuda:0, cuda:1")] == [0, 1]
    for text, said in {
        "cuda:1,cuda:1": "names cuda:1 twice",
        "cuda,cuda:0": "names cuda:0 twice",
        "cpu,cuda:0": "mixes CPU and GPU, which round differently",
        "cuda:0,cuda:2": "there are only 2 CUDA devices",
    }.items():
        with pytest.raises(FedGAError, match=said):
            parse_devices(text)


def test_a_cluster_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    for address in ("ray", "ray://127.0.0.1:1"):
        with pytest.raises(FedGAError, match="no Ray cluster answers at"), on_cluster(address, 1, None, None):
            pass
