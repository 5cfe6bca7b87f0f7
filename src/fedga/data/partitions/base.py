"""The contract of a partition rule, and the steps that several rules share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from fedga.data.federation import Dataset


@dataclass(frozen=True)
class PartitionInputs:
    """All that a rule may use."""

    dataset: Dataset
    clients: int
    alpha: float  # NaN unless the rule needs it
    classes_per_client: int
    generator: np.random.Generator  # the only source of randomness: the same seed gives the same partition

    @property
    def targets(self) -> np.ndarray:
        """Class of every training sample, ``int64 [samples]``."""
        return self.dataset.train_targets

    @property
    def class_sizes(self) -> np.ndarray:
        """Training samples of every class, ``int64 [classes]``."""
        return np.bincount(self.targets, minlength=self.dataset.num_classes)


class Assignment(NamedTuple):
    """Who holds which samples, for any number of clients without a list of arrays."""

    indices: np.ndarray  # into the training split: those of client 0, then of client 1, and so on
    sizes: np.ndarray  # samples of every client


class Partition:
    """A rule that assigns training samples to clients.

    One of your own is a subclass that the table ``[partitions]`` of ``fedga.toml`` names. It gives every client at
    least one sample and no sample to two clients; samples may stay unused.

    >>> class Striped(Partition):
    ...     def assign(self, inputs):
    ...         return [np.arange(client, len(inputs.targets), inputs.clients) for client in range(inputs.clients)]
    """

    needs_alpha: ClassVar[bool] = False  # whether ``inputs.alpha`` is read, and so has to be given

    def assign(self, inputs: PartitionInputs) -> Assignment | Sequence[np.ndarray]:
        """The indices of every client's samples: one array per client, or an `Assignment`."""
        raise NotImplementedError(f"{type(self).__name__} needs a method assign(self, inputs)")


def shuffled_by_class(inputs: PartitionInputs) -> np.ndarray:
    """All training indices, class by class, shuffled within each class."""
    shuffled = inputs.generator.permutation(len(inputs.targets))
    return shuffled[np.argsort(inputs.targets[shuffled], kind="stable")]


def gather(lists: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """``lists[start : start + length]`` for every pair, end to end, without a loop over clients."""
    before = np.cumsum(lengths) - lengths
    return lists[np.repeat(starts - before, lengths) + np.arange(lengths.sum())]


def by_counts(inputs: PartitionInputs, counts: np.ndarray) -> Assignment:
    """Give every client its ``counts[k, c]`` samples of every class."""
    sizes = inputs.class_sizes
    starts = np.cumsum(sizes) - sizes + np.cumsum(counts, axis=0) - counts
    return Assignment(gather(shuffled_by_class(inputs), starts.ravel(), counts.ravel()), counts.sum(axis=1))


def even_sizes(samples: int, parts: int) -> np.ndarray:
    """Sizes of equal parts; they differ by at most one."""
    return np.diff(np.arange(parts + 1) * samples // parts)
