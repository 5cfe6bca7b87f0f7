"""What a user should know of samples before a network trains on them: one sentence each, or none."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedga.data.federation import Dataset, Federation

SMALL_VALUE, LARGE_VALUE = 0.01, 10.0  # outside, the usual size of a column's values asks for standardisation
FEW_SAMPLES = 5  # of a client: below, it is said
MOST_ASIDE = 0.1  # of the training samples: a partition that leaves more aside is pointed out
_ROWS = 20_000  # that are looked at


def scale_remark(dataset: Dataset, cure: str = "give --standardize true") -> str:
    """On inputs far from 1: a rate that suits those is far too large for grams and far too small for tons.

    >>> table = np.array([[61.0, 0.4], [48.0, 0.7]], dtype=np.float32)
    >>> targets = np.array([0, 1])
    >>> scale_remark(Dataset("beds.csv", table, targets, table, targets, ("ill", "well"))).partition(", ")[0]
    'the largest values in the columns of beds.csv lie between 0.7 and 61'
    """
    inputs = dataset.train_inputs
    if inputs.dtype == np.uint8 or inputs.ndim < 2 or not len(inputs):
        return ""
    inputs = inputs[:: -(-len(inputs) // _ROWS)]
    rest = (0, *range(2, inputs.ndim))  # all but the columns, or the channels of pictures
    usual, sizes = np.sqrt(np.square(inputs, dtype=np.float64).mean(rest)), np.abs(inputs).max(rest)
    if not ((usual > 0) & ((usual < SMALL_VALUE) | (usual > LARGE_VALUE))).any():
        return ""
    columns = "columns" if inputs.ndim == 2 else "channels"
    between = f"between {sizes[sizes > 0].min():,.4g} and {sizes.max():,.4g}"
    little = f"the network may learn little or nothing from such {columns} as they are: {cure}"
    return f"the largest values in the {columns} of {Path(dataset.name).name} lie {between}, and {little}"


def holdings(federations: Sequence[Federation], name: str) -> str:
    """How many samples of one data set are used, and how many each client holds; of all these partitions at once."""
    clients, total = [each.num_clients for each in federations], len(federations[0].dataset.train_targets)
    used, sizes = [int(each.sizes.sum()) for each in federations], np.concatenate([each.sizes for each in federations])
    whose = "1 client holds" if max(clients) == 1 else f"{_range(clients)} clients hold"
    each = f"{_range(sizes)} each" + (f", median {np.median(sizes):,.0f}" if len(set(sizes.tolist())) > 1 else "")
    return f"{whose} {_range(used)} of the {total:,} training samples of {name}: {each}"


def aside(federation: Federation) -> float:
    """Share of the training samples that a partition gives to nobody; what is held out to score on is not aside."""
    held_out = 0 if federation.held_out is None else len(federation.held_out)
    return 1 - (int(federation.sizes.sum()) + held_out) / len(federation.dataset.train_targets)


def _range(values: Sequence[int] | np.ndarray) -> str:
    least, most = int(min(values)), int(max(values))
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
