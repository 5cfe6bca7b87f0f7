"""Exactly the samples that ``dirichlet`` uses with the same α and seed, in equal parts: the line without skew."""

from fedga.data.partitions.base import Assignment, Partition, PartitionInputs, even_sizes
from fedga.data.partitions.dirichlet import Dirichlet


class Even(Partition):
    needs_alpha = True

    def assign(self, inputs: PartitionInputs) -> Assignment:
        used = Dirichlet().assign(inputs).indices
        return Assignment(inputs.generator.permutation(used), even_sizes(len(used), inputs.clients))
