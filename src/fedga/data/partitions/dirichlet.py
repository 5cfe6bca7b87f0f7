"""Partitions by Dirichlet draws: the paper's, and the one of each class on its own."""

import numpy as np

from fedga.data.partitions.base import Assignment, Partition, PartitionInputs, by_counts


class Dirichlet(Partition):
    """The paper's: every client draws a label distribution; clients are equally large, some data stays unused."""

    needs_alpha = True

    def assign(self, inputs: PartitionInputs) -> Assignment:
        sizes = inputs.class_sizes
        distributions = label_distributions(inputs.generator, inputs.alpha, inputs.clients, len(sizes))
        return by_counts(inputs, cut_to_fit(wanted_counts(distributions, sizes), sizes))


class DirichletClass(Partition):
    """Every class is spread over the clients by its own Dirichlet draw: unequal client sizes, every sample used."""

    needs_alpha = True

    def assign(self, inputs: PartitionInputs) -> Assignment:
        sizes = inputs.class_sizes[:, None]
        shares = label_distributions(inputs.generator, inputs.alpha, len(sizes), inputs.clients)
        ends = np.rint(np.cumsum(shares, axis=1) * sizes).astype(np.int64)
        ends[:, -1:] = sizes
        return by_counts(inputs, np.diff(np.minimum(ends, sizes), axis=1, prepend=0).T)


def label_distributions(generator: np.random.Generator, alpha: float, rows: int, columns: int) -> np.ndarray:
    """``rows`` draws from Dirichlet(α·1), ``float64 [rows, columns]``, each summing to 1.

    Gamma variates with a shape near zero underflow to 0/0. Their logarithms do not (``log G(α) = log G(α+1) +
    log(U)/α``), so the softmax of those is taken, and as α goes to 0 a row goes to one-hot instead of to NaN.
    """
    boosted = np.log(generator.standard_gamma(alpha + 1.0, size=(rows, columns)))
    scores = alpha * boosted + np.log1p(-generator.random((rows, columns)))
    with np.errstate(over="ignore"):
        weights = np.exp((scores - scores.max(axis=1, keepdims=True)) / alpha)
    return weights / weights.sum(axis=1, keepdims=True)


def wanted_counts(distributions: np.ndarray, class_sizes: np.ndarray) -> np.ndarray:
    """The paper's ``num[k, c] = round(min_c(size_c / sum_k r_kc) · r_kc)``, ``int64 [clients, classes]``.

    The factor is the largest for which no class is asked for more than it has, up to rounding. Classes that nobody
    drew, or that have no sample, set no limit.
    """
    demand = distributions.sum(axis=0)
    limiting = (demand > 0) & (class_sizes > 0)
    if not limiting.any():
        return np.zeros_like(distributions, dtype=np.int64)
    with np.errstate(over="ignore"):
        scale = np.min(class_sizes[limiting] / demand[limiting])
    return np.rint(scale * distributions).astype(np.int64)


def cut_to_fit(counts: np.ndarray, class_sizes: np.ndarray) -> np.ndarray:
    """``counts`` without what a class does not have, taken from the last clients."""
    served = np.minimum(np.cumsum(counts, axis=0), class_sizes)
    return np.diff(served, axis=0, prepend=0)
