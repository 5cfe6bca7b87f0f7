"""The values that go into a results folder and come out of it, and their form inside the file."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from fedga.data.formats.npz import unpack_npz
from fedga.spec.settings import RunSpec


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


@dataclass(frozen=True)
class RoundMetrics:
    """What was measured of one run after one round; None or NaN where it was not."""

    run_id: str
    round: int
    accuracy: float | None = None
    macro_f1: float | None = None
    balanced_accuracy: float | None = None
    ea_ratio: float | None = None
    loss: float | None = None
    averaged_accuracy: float | None = None
    averaged_macro_f1: float | None = None
    averaged_balanced_accuracy: float | None = None
    averaged_ea_ratio: float | None = None
    averaged_loss: float | None = None
    client_ea_ratio: float | None = None
    forgetting_frequent: float | None = None
    forgetting_rare: float | None = None
    forgetting_missing: float | None = None
    own: Mapping[str, float] = field(default_factory=dict)  # metrics of the user's own, by name

    @classmethod
    def of(cls, run_id: str, round: int, measured: Mapping[str, float]) -> RoundMetrics:  # noqa: A002
        """Built-in metrics as fields, all others under ``own``.

        >>> RoundMetrics.of("a", 1, {"accuracy": 0.5, "worst-recall": 0.25}).own
        {'worst-recall': 0.25}
        """
        own = {name: value for name, value in measured.items() if name not in METRICS}
        return cls(run_id, round, own=own, **{name: measured[name] for name in METRICS if name in measured})

    def row(self, key: int) -> tuple[Any, ...]:
        """The cells of table ``metrics``."""
        return (key, self.round, *(_cell(getattr(self, name)) for name in METRICS))

    def own_rows(self, key: int) -> list[tuple[int, int, str, float | None]]:
        """The rows of table ``own_metrics``."""
        return [(key, self.round, name, _cell(value)) for name, value in self.own.items()]


METRICS = tuple(f.name for f in fields(RoundMetrics))[2:-1]
SHOWN = ("accuracy", "macro_f1", "balanced_accuracy", "ea_ratio", "loss")
AVERAGED = tuple(f"averaged_{name}" for name in SHOWN)


def _cell(value: float | None) -> float | None:
    """NaN is no value, and numbers of any library become Python's."""
    return None if value is None or math.isnan(value) else float(value)


@dataclass(frozen=True)
class ClientRound:
    """What was seen of the active clients of one run in one round: arrays whose first axis is the client."""

    run_id: str
    round: int
    arrays: Mapping[str, np.ndarray]

    def pack(self) -> bytes:
        """A compressed npz: NaN and number formats are kept, and anyone can read it without this program."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **{name: np.asarray(of) for name, of in self.arrays.items()})
        return buffer.getvalue()

    @classmethod
    def unpack(cls, run_id: str, round: int, packed: bytes) -> ClientRound:  # noqa: A002 - the field's own name
        return cls(run_id, round, unpack_npz(packed))


@dataclass(frozen=True, eq=False)
class Partition:
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
        """What tells it from the others of a folder."""
        return json.dumps([self.dataset, self.partition, self.alpha, self.clients, self.seed])

    def pack(self) -> bytes:
        buffer = io.BytesIO()
        names = np.array(self.class_names, dtype=np.str_)
        arrays = {"class_names": names, "class_counts": self.class_counts}
        if self.client_names:
            arrays["client_names"] = np.array(self.client_names, dtype=np.str_)
        np.savez_compressed(buffer, allow_pickle=False, **arrays)
        return buffer.getvalue()

    @classmethod
    def unpack(cls, key: str, packed: bytes) -> Partition:
        arrays = unpack_npz(packed)
        names, counts = tuple(map(str, arrays["class_names"])), arrays["class_counts"]
        clients_called = tuple(map(str, arrays["client_names"])) if "client_names" in arrays else ()
        dataset, partition, alpha, clients, seed = json.loads(key)
        return cls(dataset, partition, alpha, clients, seed, names, counts, clients_called)


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

    ``last`` and ``mean`` hold every metric, None where it was never measured; the class-wise diagnoses are made in some
    rounds only, so ``mean`` is the place to read them.
    """

    run: Run
    last_round: int | None
    last: Mapping[str, float | None]
    mean: Mapping[str, float | None]
    best_accuracy: float | None
    best_round: int | None
