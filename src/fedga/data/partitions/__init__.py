"""Partitions by name, ours and the user's own (``fedga.plugins``): who holds which samples.

Every rule is one pass over counter-based randomness: it never retries until the draw looks convenient, because the
classes that are missing at a client are what is being studied.
"""

import math
from numbers import Integral, Real
from typing import Any

import numpy as np

from fedga import plugins
from fedga.data.assemble import listed
from fedga.data.federation import Dataset, Federation
from fedga.data.partitions.base import Assignment, Partition, PartitionInputs
from fedga.data.partitions.dirichlet import Dirichlet
from fedga.data.partitions.dirichlet_class import DirichletClass
from fedga.data.partitions.even import Even
from fedga.data.partitions.iid import IID
from fedga.data.partitions.natural import Natural, natural_clients
from fedga.data.partitions.shards import Shards
from fedga.data.validation import hold_out
from fedga.errors import FedGAError, a_or_an

__all__ = ["PARTITIONS", "Assignment", "Partition", "PartitionInputs", "make_federation", "needs_alpha"]

PARTITIONS: dict[str, type[Partition]] = {
    "dirichlet": Dirichlet,
    "dirichlet-class": DirichletClass,
    "even": Even,
    "iid": IID,
    "natural": Natural,
    "shards": Shards,
}
_REMEDIES = {  # for clients without a sample
    "dirichlet-class": "use a larger alpha, fewer clients, or partition 'dirichlet', whose clients are equal",
    "natural": "remove the clients that own no training sample from the data set",
}
_NAMED_CLIENTS = 8  # an error lists this many clients by name


def find_partition(name: str) -> tuple[type[Partition], plugins.Plugin | None]:
    """The rule of that name, and where it is defined if it is the user's own; such code is run for it."""
    mine = plugins.parts("partitions", PARTITIONS, installed=name not in PARTITIONS)
    if name in PARTITIONS:
        return PARTITIONS[name], None
    if name not in mine:
        raise plugins.unknown("partitions", name, [*PARTITIONS, *mine])
    found = mine[name].load()
    if not isinstance(found, type) or not issubclass(found, Partition):
        raise FedGAError(f"{mine[name]} is not a partition: make it a class that inherits fedga.data.Partition")
    return found, mine[name]


def needs_alpha(name: str) -> bool:
    """Whether a partition, ours or the user's own, reads ``alpha``.

    >>> needs_alpha("dirichlet"), needs_alpha("iid")
    (True, False)
    """
    return find_partition(name)[0].needs_alpha


def make_federation(
    dataset: Dataset,
    partition: str = "dirichlet",
    *,
    clients: int | None,
    seed: int,
    alpha: float | None = None,
    classes_per_client: int = 2,
    validate: float = 0.0,
) -> Federation:
    """Partition ``dataset`` among ``clients``; the same arguments always give the same federation.

    ``partition`` is a key of ``PARTITIONS``, or one of your own (``fedga.plugins``). ``alpha`` is used by
    ``dirichlet``, ``dirichlet-class`` and ``even``, ``classes_per_client`` by ``shards``. For ``natural`` leave
    ``clients`` at None: the data set knows how many there are. ``validate`` is the share of every client's samples that
    is kept from training, and scored on in place of the test split.

    >>> from fedga.data import load_dataset
    >>> federation = make_federation(load_dataset("digits"), clients=5, seed=0, alpha=0.1)
    >>> federation.num_clients, federation.class_counts.shape
    (5, (5, 10))
    """
    from fedga.common.streams import numpy_generator  # here, since it imports torch and fedga.data stays light

    if not isinstance(partition, str):
        raise FedGAError(f"partition is {a_or_an(partition)}: give its name, which fedga.toml says for one of your own")
    rule, own = find_partition(partition)
    concentration = _check_alpha(partition, alpha) if rule.needs_alpha else math.nan
    if not isinstance(classes_per_client, Integral) or classes_per_client < 1:
        raise FedGAError(f"classes_per_client is {classes_per_client}: give a whole number of at least 1")
    clients = natural_clients(dataset, clients) if rule is Natural else _check_clients(dataset, clients)

    def assign() -> Any:
        given = (dataset, clients, concentration, int(classes_per_client), numpy_generator(int(seed), "partition"))
        inputs = PartitionInputs(*given)
        return rule().assign(inputs) if own is None else _checked(own, own.call(lambda: rule().assign(inputs)), inputs)

    found = assign()
    if own is not None and not all(map(np.array_equal, found, assign())):
        raise FedGAError(f"{own} assigns other samples every time: draw from inputs.generator alone")
    setting = f"{partition!r}" + (f" with alpha={concentration:g}" if rule.needs_alpha else "")
    if len(empty := np.flatnonzero(found.sizes == 0)):
        named = listed(empty.tolist(), _NAMED_CLIENTS)
        who = f"client {named} is" if len(empty) == 1 else f"{len(empty)} of {clients} clients ({named}) are"
        remedy = _REMEDIES.get(partition, "use fewer clients, or a data set with more samples of its rarest class")
        raise FedGAError(f"{who} left without samples by partition {setting} of {dataset.name!r}: {remedy}")
    offsets = np.concatenate([[0], np.cumsum(found.sizes)])
    federation = Federation(dataset, found.indices.astype(np.int64), offsets.astype(np.int64))
    return hold_out(federation, _check_share(validate), int(seed))


def _checked(part: plugins.Plugin, found: Any, inputs: PartitionInputs) -> Assignment:
    """What a rule of the user's own returned, once it is an assignment of samples to clients."""
    if not isinstance(found, Assignment):
        try:
            lists = [np.asarray(each).reshape(-1) for each in found]
        except (TypeError, ValueError):
            raise FedGAError(f"{part} returned {a_or_an(found)}: return one array of indices per client") from None
        sizes = np.array([len(each) for each in lists], dtype=np.int64)
        found = Assignment(np.concatenate([each for each in lists if len(each)] or [np.zeros(0, np.int64)]), sizes)
    indices, sizes, samples = np.asarray(found.indices), np.asarray(found.sizes), len(inputs.targets)
    if len(sizes) != inputs.clients:
        raise FedGAError(f"{part} returned {len(sizes)} clients: return an array for each of the {inputs.clients}")
    if indices.dtype.kind not in "iu" or sizes.dtype.kind not in "iu" or len(indices) != sizes.sum():
        raise FedGAError(f"{part} returned indices of type {indices.dtype}: return whole numbers, one per sample held")
    if len(indices) and (indices.min() < 0 or indices.max() >= samples):
        raise FedGAError(f"{part} returned indices outside 0 to {samples - 1}, the training samples: correct them")
    times = np.bincount(indices, minlength=1)
    if times.max() > 1:
        raise FedGAError(f"{part} gave sample {times.argmax()} to a client {times.max()} times: give each at most once")
    return Assignment(indices, sizes)


def _check_share(share: float) -> float:
    if isinstance(share, bool) or not isinstance(share, Real) or not 0 <= share < 1:
        raise FedGAError(f"validate is {share}: give a share of every client's samples from 0 to below 1, such as 0.1")
    return float(share)


def _check_alpha(partition: str, alpha: float | None) -> float:
    if alpha is None:
        raise FedGAError(f"partition {partition!r} needs alpha, the Dirichlet concentration: give one, such as 0.1")
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
