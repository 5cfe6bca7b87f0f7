"""What a tracking service is to the follower: runs are begun, given their rounds in order, and ended."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedga.spec.settings import RunSpec

Held = Mapping[str, int]  # of each metric, the last round that a service has already


class TrackedRound(NamedTuple):
    """What was measured after one round; only metrics that have a value."""

    round: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class TrackedRun:
    spec: RunSpec
    name: str

    @property
    def run_id(self) -> str:
        return self.spec.run_id

    @property
    def config(self) -> dict[str, Any]:
        """Every setting, and the id under which results and models are stored."""
        options = dict(self.spec.algorithm_options)
        return {**dataclasses.asdict(self.spec), "algorithm_options": options, "run_id": self.run_id}

    @property
    def tags(self) -> dict[str, str]:
        """What runs are filtered by."""
        tags = {"dataset": Path(self.spec.dataset).stem, "algorithm": self.spec.algorithm_name}
        return tags | ({"preset": self.spec.preset} if self.spec.preset else {})


class Service(ABC):
    """One service, in one process and one thread. Whatever it raises ends tracking with it, and nothing else.

    ``token`` tells this results folder from others of the same name, such as one that was deleted and trained again.
    """

    def __init__(self, folder: Path, token: str, notify: Callable[[str], None]) -> None:
        self.folder, self.token, self.notify = folder.absolute(), token, notify

    @abstractmethod
    def begin(self, run: TrackedRun) -> Held:
        """Open the run, or open it again; returns what the service has, which will not be logged again."""

    @abstractmethod
    def log(self, run: TrackedRun, rounds: Sequence[TrackedRound]) -> None:
        """Rounds that follow those it has."""

    @abstractmethod
    def end(self, run: TrackedRun, diverged: bool, note: str) -> None:
        """The run is over."""

    @abstractmethod
    def close(self) -> None:
        """Leave; runs that are still open were interrupted."""


def setting_text(value: Any) -> str:
    """A setting where a service keeps text alone.

    >>> [setting_text(value) for value in (None, "", True, 0.1, {"mu": 0.01, "variant": "clamped"})]
    ['none', 'none', 'true', '0.1', 'mu=0.01:variant=clamped']
    """
    if isinstance(value, dict):
        return setting_text(":".join(f"{name}={setting_text(option)}" for name, option in value.items()))
    return "none" if value in (None, "") else str(value).lower() if isinstance(value, bool) else str(value)
