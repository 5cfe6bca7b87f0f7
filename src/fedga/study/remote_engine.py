"""The engine of one device in a process of its own, here or on another machine: what it is told and gives back."""

import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save

from fedga.data.cache import cache_dir
from fedga.engine.device_data import DeviceData
from fedga.engine.engine import Engine
from fedga.errors import FedGAError
from fedga.plugins import child_env
from fedga.spec.settings import RunSpec
from fedga.store.code import code_digest, own_code
from fedga.study.dispatch import Trained
from fedga.study.group import GroupTraining, PlayedRound
from fedga.study.prepare import Preparation
from fedga.study.states import joined, split
from fedga.study.sweep import GroupJob
from fedga.version import __version__

SLICE_S = 0.5  # how long an engine trains before it reports
_FOLDERS = ("FEDGA_DATA", "FEDGA_CACHE")


@dataclass(frozen=True)
class Workplace:
    """What a process of an engine has to know once."""

    device: str  # cpu, or cuda: the GPU that Ray lets it see
    threads: int  # of the CPU
    folder: str  # where the command was given
    data_dir: str | None
    environment: Mapping[str, str]  # the user's project and folders

    @classmethod
    def here(cls, device: str, threads: int, data_dir: Path | None) -> "Workplace":
        folders = {name: os.path.abspath(os.environ[name]) for name in _FOLDERS if os.environ.get(name)}
        at = None if data_dir is None else os.path.abspath(data_dir)
        return cls(device, threads, os.getcwd(), at, folders | child_env())

    def enter(self) -> None:
        """Make this process work as the command would; folders that this machine does not have are left out."""
        if os.path.isdir(self.folder):
            os.chdir(self.folder)
        os.environ.update({name: path for name, path in self.environment.items() if os.path.exists(path)})
        torch.set_num_threads(self.threads)


@dataclass(frozen=True)
class Assignment:
    """A group for an engine: which runs, from where on, and with which data and code."""

    specs: list[str]  # as JSON
    round: int
    states: bytes | None
    fingerprints: dict[str, str]  # of the data, by run id
    code: str  # digest of the user's own code
    version: str
    commit_every_s: float

    @classmethod
    def of(cls, job: GroupJob, fingerprints: dict[str, str], commit_every_s: float) -> "Assignment":
        specs = job.specs
        states = None
        if job.states is not None:
            states = save(joined(dict(zip([spec.run_id for spec in specs], job.states, strict=True))))
        code = code_digest(own_code(specs, measured=True))
        texts = [spec.to_json() for spec in specs]
        return cls(texts, job.round, states, fingerprints, code, __version__, commit_every_s)


class RemoteEngine:
    """The engine of one device, in a process of its own: trains the groups it is given."""

    def __init__(self, workplace: Workplace) -> None:
        workplace.enter()
        data_dir = Path(workplace.data_dir) if workplace.data_dir and os.path.isdir(workplace.data_dir) else None
        self.preparation = Preparation([], data_dir)
        self.on_device = cache(partial(DeviceData, device=torch.device(workplace.device)))
        self.training: GroupTraining | None = None
        self.saved = self.commit_every_s = 0.0

    def machine(self) -> str:
        return socket.gethostname()

    def begin(self, assignment: Assignment) -> Trained:
        """Take over a group, and train its first rounds."""
        self.training = None  # frees the memory of the last one
        if assignment.version != __version__:
            here = f"{self.machine()} has fedga {__version__} where the command has {assignment.version}"
            raise FedGAError(f"{here}: install the same version on all machines")
        specs = [RunSpec.from_json(text) for text in assignment.specs]
        if code_digest(own_code(specs, measured=True)) != assignment.code:
            raise FedGAError(f"your own code is another one on {self.machine()}: copy the project there as it is here")
        with _one_reads():
            fingerprints = self.preparation.fingerprints(specs)
        if fingerprints != assignment.fingerprints:
            raise FedGAError(f"the data on {self.machine()} are not those of this machine: copy them there")
        lanes = [self.preparation.lane(spec) for spec in specs]
        states = None
        if assignment.states is not None:
            states = list(split(load(assignment.states), [spec.run_id for spec in specs]).values())
        data = self.on_device(lanes[0].federation.dataset)
        # The one place where a worker's engine is made. It shares its cores by threads: Ray's processes must not fork.
        engine = Engine(lanes, data, round_number=assignment.round, states=states, processes=False)
        self.training = GroupTraining(engine)
        self.commit_every_s, self.saved = assignment.commit_every_s, time.monotonic()
        return self.go_on()

    def go_on(self) -> Trained:
        """Train for a moment: until runs end, a checkpoint is due or there is something to report."""
        training, rounds, began = self.training, list[PlayedRound](), time.monotonic()
        assert training is not None
        while True:
            rounds.append(played := training.play())
            models = list(training.models(played))
            training.leave(played)
            if training.engine is None:
                return Trained(rounds, models, None, over=True)
            if played.ended or time.monotonic() - self.saved > self.commit_every_s:
                return self._with_checkpoint(rounds, models)
            if time.monotonic() - began > SLICE_S:
                return Trained(rounds, models, None, over=False)

    def save(self) -> Trained:
        """The checkpoint after the last round."""
        return self._with_checkpoint([], [])

    def _with_checkpoint(self, rounds: list[PlayedRound], models: list[Any]) -> Trained:
        assert self.training is not None
        content = self.training.checkpoint()
        self.saved = time.monotonic()
        return Trained(rounds, models, content, over=False)


@contextmanager
def _one_reads() -> Iterator[None]:
    """Of the processes of a machine one decodes a data set, and the others find it in the cache."""
    with ExitStack() as held:
        with suppress(OSError, ImportError):  # without a cache, or on Windows, each reads for itself
            import fcntl

            folder = cache_dir()
            folder.mkdir(parents=True, exist_ok=True)
            fcntl.flock(held.enter_context(open(folder / "reading.lock", "w")), fcntl.LOCK_EX)
        yield
