"""Samples sorted by label, cut into clients × ``classes_per_client`` shards and shuffled (McMahan et al. 2017)."""

import numpy as np

from fedga.data.partitions.base import Assignment, Partition, PartitionInputs, even_sizes, gather, shuffled_by_class
from fedga.errors import FedGAError


class Shards(Partition):
    def assign(self, inputs: PartitionInputs) -> Assignment:
        samples, clients, each = len(inputs.targets), inputs.clients, inputs.classes_per_client
        if clients * each > samples:
            cut = f"{samples} training samples cannot be cut into {clients} clients x {each} shards"
            raise FedGAError(f"{cut}: use fewer clients or fewer classes_per_client")
        lengths = even_sizes(samples, clients * each)
        starts = np.cumsum(lengths) - lengths
        lists, order = shuffled_by_class(inputs), inputs.generator.permutation(clients * each)
        sizes = lengths[order].reshape(clients, each).sum(axis=1)
        return Assignment(gather(lists, starts[order], lengths[order]), sizes)
