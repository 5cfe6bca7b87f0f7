"""Samples sorted by label, cut into clients × ``classes_per_client`` shards and shuffled (McMahan et al. 2017)."""

import numpy as np

from fedga.data.partitions.base import Assignment, Partition, PartitionInputs, even_sizes, gather, shuffled_by_class
from fedga.errors import FedGAError


class Shards(Partition):
    def assign(self, inputs: PartitionInputs) -> Assignment:
        samples, shape = len(inputs.targets), (inputs.clients, inputs.classes_per_client)
        shards = inputs.clients * inputs.classes_per_client
        if shards > samples:
            cut = f"{shape[0]} clients x {shape[1]} shards"
            cure = "use fewer clients or fewer classes_per_client"
            raise FedGAError(f"{samples} training samples cannot be cut into {cut}: {cure}")
        lengths = even_sizes(samples, shards)
        starts = np.cumsum(lengths) - lengths
        lists, order = shuffled_by_class(inputs), inputs.generator.permutation(shards)
        return Assignment(gather(lists, starts[order], lengths[order]), lengths[order].reshape(shape).sum(axis=1))
