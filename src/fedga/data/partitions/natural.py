"""Every sample stays with the client that the data set names for it."""

import numpy as np

from fedga.data.federation import Dataset
from fedga.data.partitions.base import Assignment, Partition, PartitionInputs
from fedga.errors import FedGAError


class Natural(Partition):
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
