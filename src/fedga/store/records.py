"""The values that go into a results folder and come out of it, and their form inside the file."""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from fedga.data.formats.npz import unpack_npz
from fedga.measures.columns import OF_CLIENTS, OF_MODELS
from fedga.spec.settings import RunSpec

AVERAGED = tuple(f"averaged_{name}" for name in OF_MODELS)
METRICS = (*OF_MODELS, *AVERAGED, *OF_CLIENTS)  # those with a column in the file; all others are rows, like one's own


@dataclass(frozen=True)
class Run:
    """A run as the store knows it; ``key`` is its number inside this file."""

    key: int
    run_id: str
    spec: RunSpec
    fingerprint: str
    status: str  # pending, running, done or diverged
    rounds_done: int
    note: str

    @property
    def finished(self) -> bool:
        return self.status in ("done", "diverged")


@dataclass(frozen=True, init=False)
class RoundMetrics:
    """What was measured of one run after one round: numbers by name, None or NaN where there is none.

    >>> RoundMetrics("a", 1, 0.5, **{"worst-recall": 0.25}).values
    {'accuracy': 0.5, 'worst-recall': 0.25}
    """

    run_id: str
    round: int
    values: Mapping[str, float | None]

    def __init__(
        self,
        run_id: str,
        round: int,  # noqa: A002 - the field's own name
        *built_in: float | None,
        values: Mapping[str, float | None] | None = None,
        **named: float | None,
    ) -> None:
        """Built-in metrics in the order of ``METRICS``, ``values`` by name, and further ones by their names."""
        found = {**dict(zip(METRICS, built_in, strict=False)), **(values or {}), **named}
        vars(self).update(run_id=run_id, round=round, values=found)  # past the frozen attributes


def _pack(arrays: Mapping[str, np.ndarray]) -> bytes:
    """A compressed npz: NaN and number formats are kept, and anyone can read it without this program."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **{name: np.asarray(of) for name, of in arrays.items()})
    return buffer.getvalue()


@dataclass(frozen=True)
class ClientRound:
    """Class-wise evaluations of a run's active clients in one round: arrays whose first axis is the client."""

    run_id: str
    round: int
    arrays: Mapping[str, np.ndarray]

    def pack(self) -> bytes:
        return _pack(self.arrays)

    @classmethod
    def unpack(cls, run_id: str, round: int, packed: bytes) -> Self:  # noqa: A002 - the field's own name
        return cls(run_id, round, unpack_npz(packed))


@dataclass(frozen=True, eq=False)
class PartitionRecord:
    """Who holds which classes: one partition that runs of the folder were trained on."""

    dataset: str
    partition: str
    alpha: float | None
    clients: int
    seed: int
    class_names: tuple[str, ...]
    class_counts: np.ndarray  # int64 [clients, classes], of the first clients where there are very many
    client_names: tuple[str, ...] = ()  # of those clients, where they have names

    @property
    def key(self) -> str:
        """Its name, unique in a folder."""
        return json.dumps([self.dataset, self.partition, self.alpha, self.clients, self.seed])

    def pack(self) -> bytes:
        arrays = {"class_names": np.array(self.class_names, np.str_), "class_counts": self.class_counts}
        if self.client_names:
            arrays["client_names"] = np.array(self.client_names, np.str_)
        return _pack(arrays)

    @classmethod
    def unpack(cls, key: str, packed: bytes) -> Self:
        arrays = unpack_npz(packed)
        classes, clients = (tuple(map(str, arrays.get(name, ()))) for name in ("class_names", "client_names"))
        dataset, partition, alpha, number, seed = json.loads(key)
        return cls(dataset, partition, alpha, number, seed, classes, arrays["class_counts"], clients)


@dataclass(frozen=True)
class Group:
    """Runs that train stacked, in the order of their lanes; to be continued after ``round`` from ``checkpoint``."""

    id: int
    run_ids: tuple[str, ...]
    round: int
    checkpoint: Path | None


@dataclass(frozen=True)
class Summary:
    """A run in one line: its last evaluated round, the mean over its curve (rounds from 1 on), its best accuracy.

    ``last`` and ``mean`` hold every built-in metric, None where it was not measured; class-wise diagnoses are made in
    some rounds only, so read them from ``mean``.
    """

    run: Run
    last_round: int | None
    last: Mapping[str, float | None]
    mean: Mapping[str, float | None]
    best_accuracy: float | None
    best_round: int | None
