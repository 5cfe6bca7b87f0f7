"""Who gets which samples: ways to deal a data set out to clients.

Every partition is one pass over counter-based randomness: it never retries until the draw looks convenient, because the
classes that are missing at a client are what is being studied.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real

import numpy as np

from fedga.data.federation import Dataset, Federation
from fedga.errors import FedGAError, unknown_name

_NAMED_CLIENTS = 8  # an error lists this many clients by name


@dataclass(frozen=True)
class PartitionInputs:
    """All that a partition function may use."""

    dataset: Dataset
    clients: int
    alpha: float  # NaN for partitions that do not use it
    classes_per_client: int
    generator: np.random.Generator

    @property
    def targets(self) -> np.ndarray:
        return self.dataset.train_targets

    @property
    def class_sizes(self) -> np.ndarray:
        """Training samples of every class, ``int64 [classes]``."""
        return np.bincount(self.targets, minlength=self.dataset.num_classes)


Dealt = tuple[np.ndarray, np.ndarray]  # (indices into the training split, samples of every client)


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
    """``counts`` without what overruns a class list, taken from the clients served last."""
    served = np.minimum(np.cumsum(counts, axis=0), class_sizes)
    return np.diff(served, axis=0, prepend=0)


def _class_lists(inputs: PartitionInputs) -> np.ndarray:
    """All training indices, class by class, shuffled within each class."""
    shuffled = inputs.generator.permutation(len(inputs.targets))
    return shuffled[np.argsort(inputs.targets[shuffled], kind="stable")]


def _gather(lists: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """``lists[start : start + length]`` for every pair, end to end, without a loop over clients."""
    before = np.cumsum(lengths) - lengths
    return lists[np.repeat(starts - before, lengths) + np.arange(lengths.sum())]


def _slices(lists: np.ndarray, class_sizes: np.ndarray, counts: np.ndarray) -> Dealt:
    """Hand every client its next ``counts[k, c]`` entries of every class list."""
    first_of_class = np.cumsum(class_sizes) - class_sizes
    starts = first_of_class + np.cumsum(counts, axis=0) - counts
    return _gather(lists, starts.ravel(), counts.ravel()), counts.sum(axis=1)


def _even_sizes(samples: int, parts: int) -> np.ndarray:
    return np.diff(np.arange(parts + 1) * samples // parts)


def dirichlet(inputs: PartitionInputs) -> Dealt:
    """The paper's: every client draws a label distribution; clients are equally large, and some data stays unused."""
    sizes = inputs.class_sizes
    distributions = label_distributions(inputs.generator, inputs.alpha, inputs.clients, len(sizes))
    counts = cut_to_fit(wanted_counts(distributions, sizes), sizes)
    return _slices(_class_lists(inputs), sizes, counts)


def dirichlet_class(inputs: PartitionInputs) -> Dealt:
    """Every class is spread over the clients by its own Dirichlet draw: unequal client sizes, every sample used."""
    sizes = inputs.class_sizes
    shares = label_distributions(inputs.generator, inputs.alpha, len(sizes), inputs.clients)
    ends = np.rint(np.cumsum(shares, axis=1) * sizes[:, None]).astype(np.int64)
    ends[:, -1] = sizes
    counts = np.diff(np.minimum(ends, sizes[:, None]), axis=1, prepend=0).T
    return _slices(_class_lists(inputs), sizes, counts)


def shards(inputs: PartitionInputs) -> Dealt:
    """Samples sorted by label, cut into clients × ``classes_per_client`` shards and dealt out (McMahan et al. 2017)."""
    pieces = inputs.clients * inputs.classes_per_client
    if pieces > len(inputs.targets):
        raise FedGAError(
            f"{len(inputs.targets)} training samples cannot be cut into {inputs.clients} clients x "
            f"{inputs.classes_per_client} shards: use fewer clients or fewer classes_per_client"
        )
    lengths = _even_sizes(len(inputs.targets), pieces)
    starts = np.cumsum(lengths) - lengths
    lists = _class_lists(inputs)
    order = inputs.generator.permutation(pieces)
    sizes = lengths[order].reshape(inputs.clients, inputs.classes_per_client).sum(axis=1)
    return _gather(lists, starts[order], lengths[order]), sizes


def iid(inputs: PartitionInputs) -> Dealt:
    """All samples, shuffled, in equal parts."""
    shuffled = inputs.generator.permutation(len(inputs.targets))
    return shuffled, _even_sizes(len(shuffled), inputs.clients)


def even(inputs: PartitionInputs) -> Dealt:
    """Exactly the samples that ``dirichlet`` uses with the same α and seed, dealt evenly: the line without skew."""
    used, _ = dirichlet(inputs)
    return inputs.generator.permutation(used), _even_sizes(len(used), inputs.clients)


def natural(inputs: PartitionInputs) -> Dealt:
    """Every sample stays with the client that the data set names for it."""
    owners = inputs.dataset.train_clients
    assert owners is not None
    return np.argsort(owners, kind="stable"), np.bincount(owners, minlength=inputs.clients)


PARTITIONS: dict[str, Callable[[PartitionInputs], Dealt]] = {
    "dirichlet": dirichlet,
    "dirichlet-class": dirichlet_class,
    "even": even,
    "iid": iid,
    "natural": natural,
    "shards": shards,
}
_USES_ALPHA = frozenset({"dirichlet", "dirichlet-class", "even"})


def make_federation(
    dataset: Dataset,
    partition: str = "dirichlet",
    *,
    clients: int | None,
    seed: int,
    alpha: float | None = None,
    classes_per_client: int = 2,
) -> Federation:
    """Deal ``dataset`` out to ``clients``; the same arguments always give the same federation.

    ``alpha`` is used by ``dirichlet``, ``dirichlet-class`` and ``even``, ``classes_per_client`` by ``shards``. For
    ``natural`` leave ``clients`` at None: the data set knows how many there are.

    >>> from fedga.data import load_dataset
    >>> federation = make_federation(load_dataset("digits"), clients=5, seed=0, alpha=0.1)
    >>> federation.num_clients, federation.class_counts.shape
    (5, (5, 10))
    """
    from fedga.common.streams import numpy_generator  # here, since it imports torch and fedga.data stays light

    if partition not in PARTITIONS:
        raise unknown_name("partition", partition, PARTITIONS)
    concentration = _check_alpha(partition, alpha) if partition in _USES_ALPHA else math.nan
    if not isinstance(classes_per_client, Integral) or classes_per_client < 1:
        raise FedGAError(f"classes_per_client is {classes_per_client}: give a whole number of at least 1")
    clients = _natural_clients(dataset, clients) if partition == "natural" else _check_clients(dataset, clients)
    inputs = PartitionInputs(
        dataset, clients, concentration, int(classes_per_client), numpy_generator(int(seed), "partition")
    )
    indices, sizes = PARTITIONS[partition](inputs)
    _check_nobody_empty(inputs, partition, sizes)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return Federation(dataset, indices.astype(np.int64), offsets.astype(np.int64))


def _check_alpha(partition: str, alpha: float | None) -> float:
    if alpha is None:
        raise FedGAError(
            f"partition {partition!r} needs alpha, the Dirichlet concentration: give one, such as alpha=0.1"
        )
    if isinstance(alpha, bool) or not isinstance(alpha, Real) or not math.isfinite(alpha) or alpha <= 0:
        raise FedGAError(f"alpha is {alpha}: give a finite number above 0 (small is more skewed, 10 is nearly even)")
    return float(alpha)


def _check_clients(dataset: Dataset, clients: int | None) -> int:
    samples = len(dataset.train_targets)
    if clients is None:
        raise FedGAError("the number of clients is missing: give clients (only the natural partition has its own)")
    if isinstance(clients, bool) or not isinstance(clients, Integral) or clients < 1:
        raise FedGAError(f"the number of clients is {clients}: give a whole number of at least 1")
    if clients > samples:
        raise FedGAError(f"{clients} clients cannot share {samples} training samples: use at most {samples} clients")
    return int(clients)


def _natural_clients(dataset: Dataset, clients: int | None) -> int:
    if dataset.train_clients is None:
        raise FedGAError(
            f"data set {dataset.name!r} does not say which client a sample belongs to: name its client column, or "
            "choose another partition than 'natural'"
        )
    there = max(len(dataset.client_names), int(dataset.train_clients.max()) + 1)
    if clients is not None and clients != there:
        raise FedGAError(f"data set {dataset.name!r} has {there} natural clients, not {clients}: leave clients out")
    return there


def _check_nobody_empty(inputs: PartitionInputs, partition: str, sizes: np.ndarray) -> None:
    empty = np.flatnonzero(sizes == 0)
    if not len(empty):
        return
    named = ", ".join(map(str, empty[:_NAMED_CLIENTS])) + (", ..." if len(empty) > _NAMED_CLIENTS else "")
    setting = f"{partition!r}" + (f" with alpha={inputs.alpha:g}" if partition in _USES_ALPHA else "")
    who = f"client {named} is" if len(empty) == 1 else f"{len(empty)} of {inputs.clients} clients ({named}) are"
    remedies = {
        "dirichlet-class": "use a larger alpha, fewer clients, or partition 'dirichlet', whose clients are equal",
        "natural": "remove the clients that own no training sample from the data set",
    }
    remedy = remedies.get(partition, "use fewer clients, or a data set with more samples of its rarest class")
    raise FedGAError(f"{who} left without samples by partition {setting} of {inputs.dataset.name!r}: {remedy}")
