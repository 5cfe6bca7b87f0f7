"""Every class is spread over the clients by its own Dirichlet draw: unequal client sizes, every sample used."""

import numpy as np

from fedga.data.partitions.base import Assignment, Partition, PartitionInputs, by_counts
from fedga.data.partitions.dirichlet import label_distributions


class DirichletClass(Partition):
    needs_alpha = True

    def assign(self, inputs: PartitionInputs) -> Assignment:
        sizes = inputs.class_sizes[:, None]
        shares = label_distributions(inputs.generator, inputs.alpha, len(sizes), inputs.clients)
        ends = np.rint(np.cumsum(shares, axis=1) * sizes).astype(np.int64)
        ends[:, -1:] = sizes
        return by_counts(inputs, np.diff(np.minimum(ends, sizes), axis=1, prepend=0).T)
