"""The two values that data becomes: a data set, and the clients that share it out."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples with a central test split.

    Pictures are ``uint8 [samples, channels, height, width]`` and become ``pixel / input_scale`` in float32; feature
    tables are ``float32 [samples, features]`` and are taken as they are.
    """

    name: str
    train_inputs: np.ndarray
    train_targets: np.ndarray  # int64 [samples]
    test_inputs: np.ndarray
    test_targets: np.ndarray
    class_names: tuple[str, ...]
    input_scale: float = 255.0
    train_clients: np.ndarray | None = None  # int64 [samples]: the natural client of each sample, where there is one
    client_names: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = ()  # the columns of a table, where they have names
    fingerprint: str = ""  # content hash: a run is only continued on the data it began with

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.input_shape))
        samples = f"{len(self.train_targets):,} training and {len(self.test_targets):,} test samples of {shape}"
        return f"Dataset({self.name}: {samples}, {self.num_classes} classes)"

    def _repr_html_(self) -> str:
        from fedga.drawing import inline

        trained = np.bincount(self.train_targets, minlength=self.num_classes)
        facts = {
            "training samples": f"{len(self.train_targets):,}",
            "test samples": f"{len(self.test_targets):,}",
            "shape of a sample": " x ".join(map(str, self.input_shape)),
            "classes": f"{self.num_classes}, of {trained.min():,} to {trained.max():,} training samples each",
        }
        if self.train_clients is not None:
            facts["clients of its own"] = f"{len(self.client_names):,}"
        return inline.card(self.name, facts)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.train_inputs.shape[1:])


@dataclass(frozen=True, eq=False)
class Federation:
    """A data set partitioned among clients: client ``k`` holds ``indices[offsets[k]:offsets[k + 1]]``.

    Lists of indices, never copies of samples: 100,000 clients cost a few megabytes.
    """

    dataset: Dataset
    indices: np.ndarray = field(repr=False)  # int64 [samples that some client holds]
    offsets: np.ndarray = field(repr=False)  # int64 [clients + 1]
    held_out: np.ndarray | None = field(
        default=None, repr=False
    )  # of the clients, to score on instead of the test split

    def __repr__(self) -> str:
        held = f"{len(self.indices):,} of {len(self.dataset.train_targets):,} training samples"
        return f"Federation({self.num_clients:,} clients hold {held} of {self.dataset.name})"

    def _repr_html_(self) -> str:
        from fedga.drawing import inline

        of_client = (self.class_counts > 0).sum(1)
        facts = {
            "samples held": f"{len(self.indices):,} of {len(self.dataset.train_targets):,}",
            "samples of a client": f"{self.sizes.min():,} to {self.sizes.max():,}",
            "classes of a client": f"{of_client.min()} to {of_client.max()} of {self.dataset.num_classes}",
        }
        title = f"{self.num_clients:,} clients, {self.dataset.name}"
        return inline.card(title, facts, inline.label_map(self.class_counts))

    @property
    def num_clients(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def sizes(self) -> np.ndarray:
        """Samples of every client, ``int64 [clients]``."""
        return np.diff(self.offsets)

    @cached_property
    def class_counts(self) -> np.ndarray:
        """Samples of every class at every client, ``int64 [clients, classes]``."""
        classes = self.dataset.num_classes
        owner = np.repeat(np.arange(self.num_clients), self.sizes)
        cells = owner * classes + self.dataset.train_targets[self.indices]
        return np.bincount(cells, minlength=self.num_clients * classes).reshape(self.num_clients, classes)

    def client(self, k: int) -> np.ndarray:
        """Indices into the training split of client ``k``'s samples."""
        return self.indices[self.offsets[k] : self.offsets[k + 1]]
