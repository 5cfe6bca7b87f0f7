"""Engines on several devices, of this machine or of many: Ray starts their processes, places them and sees them die.

An engine is an actor that has one device, with the data on it, and trains one group after the other. It is asked for a
second's worth of rounds at a time, which is also what crosses `ray://`.
"""

import logging
import os
import secrets
import signal
import socket
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from fedga.common import guard
from fedga.errors import FedGAError, needs_extra, unknown_name
from fedga.store.database import one_line
from fedga.study.dispatch import Died, Dispatch, Trained
from fedga.study.prepare import choose_device
from fedga.study.remote_engine import Assignment, RemoteEngine, Workplace
from fedga.study.sweep import GroupJob, Groups

CLIENT = "ray://"  # before the address of a cluster that is joined from outside
COUNT_EVERY_S = 5.0  # how old the known number of devices may be
PATIENCE_S = 30.0  # without a device, before that is said
ANSWER_WITHIN_S = 10.0
_CHECK = "check the address, and on that machine `ray status`"
WAITING = "Ray is still starting engines, or others are using the devices: waiting for them"
_LONGEST_FOLDER = 40  # characters: sockets below it have long names, and the system allows 107 in all
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


def require_ray() -> None:
    """Refuse in one sentence where Ray is not installed."""
    if find_spec("ray") is None:
        raise needs_extra("ray", "cluster", "training on several devices")


def parse_devices(text: str) -> list[torch.device]:
    """The devices of ``--devices``: all of one kind, since a CPU rounds otherwise than a GPU."""
    devices = []
    for name in (each.strip() for each in text.split(",")):
        if name in ("", "auto"):
            raise FedGAError(f"--devices {text!r} must name each device, as in cuda:0,cuda:1")
        devices.append(choose_device(name, "--devices"))
    if len({device.type for device in devices}) > 1:
        raise FedGAError(f"--devices {text} mixes CPU and GPU, which round differently: give devices of one kind")
    gpus = [device.index or 0 for device in devices if device.type == "cuda"]
    if twice := [number for number in gpus if gpus.count(number) > 1]:
        raise FedGAError(f"--devices {text} names cuda:{twice[0]} twice: an engine fills its GPU, so give each once")
    return devices


def check_cluster(text: str) -> str:
    """The value of ``--cluster``: ray, or the address of one."""
    if text != "ray" and not (text.startswith(CLIENT) and text.removeprefix(CLIENT)):
        raise FedGAError(f"{unknown_name('cluster', text, ['ray'])}, or an address as in ray://HOST:10001")
    return text


@dataclass
class _Actor:
    """An engine as this process knows it."""

    handle: Any
    name: Any  # of its machine, once it has one
    asked: float = field(default_factory=time.monotonic)
    placed: bool = False
    answer: Any = None  # to the call that is under way


class RayEngines:
    """Engines that Ray places; as many as there are devices, each made when a group first needs it."""

    def __init__(self, ray: Any, workplace: Workplace, fixed: int | None) -> None:
        self.ray, self.workplace, self._fixed, self.kind = ray, workplace, fixed, workplace.device
        self._counted, self._size = -COUNT_EVERY_S, 0
        self._idle: list[_Actor] = []
        self._busy: dict[int, _Actor] = {}
        self._groups: Groups | None = None
        self._said = False
        cores, gpus = (1, 0) if fixed else (workplace.threads, 0)
        if workplace.device == "cuda":
            cores, gpus = 1, 1
        self._actor = ray.remote(num_cpus=cores, num_gpus=gpus)(RemoteEngine)

    def __str__(self) -> str:
        count, threads = self.size, self.workplace.threads
        share = f"{threads} CPU thread{'s' * (threads != 1)} each"
        return f"{count} engine{'s' * (count != 1)} ({'one GPU and ' * (self.kind == 'cuda')}{share})"

    def train(self, groups: Groups) -> None:
        self._groups = groups
        Dispatch(groups, self).run()

    @property
    def size(self) -> int:
        if self._fixed is not None:
            return self._fixed
        if (now := time.monotonic()) - self._counted > COUNT_EVERY_S:
            self._counted, self._size = now, max(1, _places(self.ray, self.workplace))
        return self._size

    def begin(self, number: int, job: GroupJob, commit_every_s: float) -> None:
        assert self._groups is not None
        assignment = Assignment.of(job, self._groups.preparation.fingerprints(job.specs), commit_every_s)
        if self._idle:
            actor = self._idle.pop()
        else:
            handle = self._actor.remote(self.workplace)
            actor = _Actor(handle, handle.machine.remote())
        actor.answer = actor.handle.begin.remote(assignment)
        self._busy[number] = actor

    def go_on(self, number: int) -> None:
        actor = self._busy[number]
        actor.answer = actor.handle.go_on.remote()

    def save(self, number: int) -> None:
        actor = self._busy[number]
        actor.answer = actor.handle.save.remote()

    def has_begun(self, number: int) -> bool:
        actor = self._busy[number]
        actor.placed = actor.placed or bool(self.ray.wait([actor.name], timeout=0)[0])
        return actor.placed

    def replies(self, wait_s: float) -> list[tuple[int, Trained | Died]]:
        self._say_what_waits()
        asked = {actor.answer: number for number, actor in self._busy.items()}
        with _connection():
            self.ray.wait(list(asked), timeout=wait_s)
            ready, _ = self.ray.wait(list(asked), num_returns=len(asked), timeout=0)
        return [(asked[answer], self._reply(asked[answer], answer)) for answer in ready]

    def _reply(self, number: int, answer: Any) -> Trained | Died:
        self._busy[number].answer = None
        try:
            with _connection():
                return self.ray.get(answer)
        except self.ray.exceptions.RayTaskError as error:  # of the training itself
            cause = getattr(error, "cause", None)
            raise (cause if isinstance(cause, Exception) else error) from error
        except self.ray.exceptions.RayError as error:
            self._kill(self._busy[number])
            return Died(_reason(error))

    def _say_what_waits(self) -> None:
        for number, actor in self._busy.items():
            if not self._said and time.monotonic() - actor.asked > PATIENCE_S and not self.has_begun(number):
                assert self._groups is not None
                self._groups.observer.noticed(WAITING)
                self._said = True

    def free(self, number: int) -> None:
        actor = self._busy.pop(number)
        if actor.answer is not None:
            self._kill(actor)
        if actor.handle is not None:
            self._idle.append(actor)

    def _kill(self, actor: _Actor) -> None:
        handle, actor.handle = actor.handle, None
        if handle is not None:
            with suppress(Exception):  # it is dead, or the cluster is
                self.ray.kill(handle)

    def close(self) -> None:
        for actor in (*self._busy.values(), *self._idle):
            self._kill(actor)


def _places(ray: Any, workplace: Workplace) -> int:
    """How many engines the machines of the cluster have room for."""
    there = _resources(ray)
    if workplace.device == "cuda":
        return sum(int(each.get("GPU", 0)) for each in there)
    return sum(int(each.get("CPU", 0) // workplace.threads) for each in there)


def _resources(ray: Any) -> list[dict[str, float]]:
    with _connection():
        return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _reason(error: Exception) -> str:
    """What Ray says of a death, in a few words."""
    said = str(error)
    if "creation task" in said:  # fedga is not there, or cannot be imported
        return said.strip().splitlines()[-1]
    signs = {"NODE_OUT_OF_MEMORY": "its machine was out of memory", "node has died": "its machine is gone"}
    return next((meaning for sign, meaning in signs.items() if sign in said), "it crashed or was killed")


@contextmanager
def _connection() -> Iterator[None]:
    """Whatever a cluster that is gone raises is one sentence."""
    from ray.exceptions import RayError

    try:
        yield
    except OSError as error:
        if isinstance(error, RayError):  # one of an engine, which Ray gives the type of its cause
            raise
        lost = f"the connection to the Ray cluster was lost ({one_line(error)})"
        raise FedGAError(
            f"{lost}: everything committed is in the results folder, and the same command continues"
        ) from error


@contextmanager
def on_devices(devices: Sequence[torch.device], threads: int | None, data_dir: Path | None) -> Iterator[RayEngines]:
    """An engine on each of these devices of this machine."""
    kind, count = devices[0].type, len(devices)
    threads = threads or max(1, torch.get_num_threads() // count)
    gpus = [device.index or 0 for device in devices] if kind == "cuda" else []
    with (
        _own_ray(gpus, num_cpus=count, num_gpus=len(gpus)) as ray,
        _closing(ray, kind, threads, data_dir, count) as engines,
    ):
        yield engines


@contextmanager
def on_cluster(address: str, runs: int, threads: int | None, data_dir: Path | None) -> Iterator[RayEngines]:
    """An engine on each GPU of a Ray cluster, or on its CPUs if it has none, so many that each of the runs has cores.

    ``address`` is ray:// and so on, or ray: then RAY_ADDRESS is joined, and without it this machine is the cluster.
    """
    joined_at = address if address.startswith(CLIENT) else os.environ.get("RAY_ADDRESS", "local")
    with _own_ray() if joined_at == "local" else _joined(joined_at) as ray:
        there = _resources(ray)
        cores, gpus = (sum(int(each.get(name, 0)) for each in there) for name in ("CPU", "GPU"))
        largest = max((int(each.get("CPU", 0)) for each in there), default=1)
        if threads and threads > largest and not gpus:
            raise FedGAError(f"--threads {threads} is more than the {largest} CPUs of a machine there: give fewer")
        shared = cores // gpus if gpus else min(cores // max(1, runs), largest)
        with _closing(ray, "cuda" if gpus else "cpu", threads or max(1, shared), data_dir, None) as engines:
            yield engines


@contextmanager
def _closing(ray: Any, kind: str, threads: int, data_dir: Path | None, fixed: int | None) -> Iterator[RayEngines]:
    engines = RayEngines(ray, Workplace.here(kind, threads, data_dir), fixed)
    try:
        yield engines
    finally:
        engines.close()


@contextmanager
def _own_ray(gpus: Sequence[int] = (), **resources: int) -> Iterator[Any]:
    """Ray on this machine, for this process alone: nobody else can use it, and it ends with us, however we end."""
    mark = secrets.token_hex(16)
    environment = _QUIET | {guard.VARIABLE: mark} | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _token()}
    if gpus:
        seen = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = seen.split(",") if seen else [str(number) for number in range(torch.cuda.device_count())]
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(names[number].strip() for number in gpus)
    folder = tempfile.mkdtemp(prefix="fedga-ray-")  # for Ray's sockets and logs
    options: dict[str, Any] = {"include_dashboard": False, **resources}
    if len(folder) <= _LONGEST_FOLDER:  # else Ray chooses one
        options["_temp_dir"] = folder
    # Parts of Ray outlive a killed driver for a minute, unless somebody ends them.
    with guard.watching(mark, folder), _changed_environment(environment), _connected("local", **options) as ray:
        yield ray


@contextmanager
def _joined(address: str) -> Iterator[Any]:
    _check_answers(address)
    with _changed_environment(_QUIET), _connected(address) as ray:
        yield ray


def _check_answers(address: str) -> None:
    """Refuse an address at which nobody listens: Ray would try for a quarter of an hour."""
    host, _, port = address.removeprefix(CLIENT).partition("/")[0].rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host.strip("[]"), int(port)), ANSWER_WITHIN_S).close()
        except (OSError, OverflowError) as error:
            raise FedGAError(f"no Ray cluster answers at {address} ({one_line(error)}): {_CHECK}") from error


@contextmanager
def _connected(address: str, **options: Any) -> Iterator[Any]:
    import ray
    from ray._private import worker

    # Ray prints what it sees dying to stdout, which is for our tables; we say it ourselves, on the other stream.
    printer = "print_to_stdstream"
    before, handler = vars(worker).get(printer), signal.getsignal(signal.SIGTERM)
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Ray advises is not for our users
            ray.init(address, log_to_driver=False, configure_logging=False, **options)
    except (OSError, RuntimeError, ValueError) as error:
        if address == "local":
            raise FedGAError(f"Ray does not start on this machine ({one_line(error)}): train on one device") from error
        raise FedGAError(f"no Ray cluster answers at {address} ({one_line(error)}): {_CHECK}") from error
    try:
        vars(worker)[printer] = lambda *_, **__: None
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray has put its own in place of it
        yield ray
    finally:
        ray.shutdown()
        vars(worker)[printer] = before


@contextmanager
def _changed_environment(changes: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@cache
def _token() -> str:
    """Without it nobody can use the Ray that we start; Ray reads it once in a process."""
    return secrets.token_hex(32)
