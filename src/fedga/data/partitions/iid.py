"""All samples, shuffled, in equal parts."""

from fedga.data.partitions.base import Assignment, Partition, PartitionInputs, even_sizes


class IID(Partition):
    def assign(self, inputs: PartitionInputs) -> Assignment:
        samples = len(inputs.targets)
        return Assignment(inputs.generator.permutation(samples), even_sizes(samples, inputs.clients))
