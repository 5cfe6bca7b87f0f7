"""The rules that ship with fedga, but for the two that draw by Dirichlet: who holds which samples."""

import numpy as np

from fedga.data.federation import Dataset
from fedga.data.partitions.base import Assignment, Partition, PartitionInputs, even_sizes, gather, shuffled_by_class
from fedga.data.partitions.dirichlet import Dirichlet
from fedga.errors import FedGAError


class IID(Partition):
    """All samples, shuffled, in equal parts."""

    def assign(self, inputs: PartitionInputs) -> Assignment:
        samples = len(inputs.targets)
        return Assignment(inputs.generator.permutation(samples), even_sizes(samples, inputs.clients))


class Even(Partition):
    """Exactly the samples that ``dirichlet`` uses with the same α and seed, in equal parts: the line without skew."""

    needs_alpha = True

    def assign(self, inputs: PartitionInputs) -> Assignment:
        used = Dirichlet().assign(inputs).indices
        return Assignment(inputs.generator.permutation(used), even_sizes(len(used), inputs.clients))


class Shards(Partition):
    """Samples sorted by label, cut into clients × ``classes_per_client`` shards and shuffled (McMahan et al. 2017)."""

    def assign(self, inputs: PartitionInputs) -> Assignment:
        samples, shape = len(inputs.targets), (inputs.clients, inputs.classes_per_client)
        shards = inputs.clients * inputs.classes_per_client
        if shards > samples:
            cut = f"{shape[0]} clients x {shape[1]} shards: use fewer clients or fewer classes_per_client"
            raise FedGAError(f"{samples} training samples cannot be cut into {cut}")
        lengths = even_sizes(samples, shards)
        starts = np.cumsum(lengths) - lengths
        lists, order = shuffled_by_class(inputs), inputs.generator.permutation(shards)
        return Assignment(gather(lists, starts[order], lengths[order]), lengths[order].reshape(shape).sum(axis=1))


class Natural(Partition):
    """Every sample stays with the client that the data set names for it."""

    def assign(self, inputs: PartitionInputs) -> Assignment:
        owners = inputs.dataset.train_clients
        assert owners is not None
        return Assignment(np.argsort(owners, kind="stable"), np.bincount(owners, minlength=inputs.clients))


def natural_clients(dataset: Dataset, clients: int | None) -> int:
    """How many clients the data set names; another number in ``clients`` is refused."""
    if dataset.train_clients is None:
        cure = "name its client column, or choose another partition than 'natural'"
        raise FedGAError(f"data set {dataset.name!r} does not say which client a sample belongs to: {cure}")
    there = max(len(dataset.client_names), int(dataset.train_clients.max()) + 1)
    if clients is not None and clients != there:
        raise FedGAError(f"data set {dataset.name!r} has {there} natural clients, not {clients}: leave clients out")
    return there
