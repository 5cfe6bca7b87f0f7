"""From what a reader found to a checked ``Dataset``: labels become class indices, clients get numbers.

Every source, named or the user's own, goes through ``assemble``, so a bad label or a class without a single training
sample is refused here once, in the words of the file it came from.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from fedga.common.memory import require_memory
from fedga.data.federation import Dataset
from fedga.data.formats.files import FEWER_SAMPLES
from fedga.errors import FedGAError

BYTES_PER_LABEL = 64  # while labels become class indices and clients get numbers: of all copies at work
TEST_EVERY = 5  # without a test split, every fifth sample of each class is held out
_NAMED = 5  # an error lists this many values


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples as a reader found them: labels and clients are still the file's own values."""

    inputs: np.ndarray  # uint8 [samples, channels, height, width] or float32 [samples, features]
    labels: np.ndarray  # whole numbers or strings [samples]
    where: str  # the file, for messages
    clients: np.ndarray | None = None  # whole numbers or strings [samples]
    features: tuple[str, ...] = ()  # names of the columns of a table

    def take(self, chosen: np.ndarray) -> Self:
        """The samples at a boolean mask or at indices, as a copy."""
        number = int(np.count_nonzero(chosen)) if chosen.dtype == bool else len(chosen)
        needed = number * self.inputs[:1].nbytes
        require_memory(needed, f"a copy of {number:,} samples of {self.where}, to split them,", FEWER_SAMPLES)
        clients = None if self.clients is None else self.clients[chosen]
        return replace(self, inputs=self.inputs[chosen], labels=self.labels[chosen], clients=clients)


@dataclass(frozen=True, eq=False)
class Parts:
    """The splits of a data set; ``test=None`` asks for every fifth training sample of each class to be held out."""

    train: Samples
    test: Samples | None
    class_names: tuple[str, ...] = ()  # empty: the labels themselves tell

    @property
    def splits(self) -> list[Samples]:
        return [samples for samples in (self.train, self.test) if samples is not None]

    def with_labels(self, labels: Sequence[np.ndarray], class_names: tuple[str, ...]) -> Self:
        done = [replace(samples, labels=each) for samples, each in zip(self.splits, labels, strict=True)]
        return replace(self, train=done[0], test=done[1] if self.test else None, class_names=class_names)


def assemble(name: str, parts: Parts, *, input_scale: float = 255.0) -> Dataset:
    """Check ``parts`` and make them a ``Dataset`` with a content fingerprint."""
    for samples in parts.splits:
        check_lengths(samples)
    parts = _encode_labels(parts)
    train, test = (parts.train, parts.test) if parts.test is not None else _hold_out(parts.train)
    for split, samples in (("train", train), ("test", test)):
        if not len(samples.inputs):
            raise FedGAError(f"{samples.where} has no samples in its {split} split: add some")
    if missing := np.flatnonzero(np.bincount(train.labels, minlength=len(parts.class_names)) == 0).tolist():
        names = listed([parts.class_names[at] for at in missing])
        raise FedGAError(f"class {names} has no training sample in {train.where}: add some, or leave the class out")
    return join(name, train, test, parts.class_names, input_scale=input_scale)


def join(
    name: str, train: Samples, test: Samples, class_names: tuple[str, ...], *, input_scale: float = 255.0
) -> Dataset:
    """Two splits whose labels are class indices by now, as a ``Dataset`` with a content fingerprint."""
    if train.inputs.shape[1:] != test.inputs.shape[1:]:
        trained = f"training samples of {train.where} have shape {train.inputs.shape[1:]}"
        tested = f"test samples of {test.where} have shape {test.inputs.shape[1:]}"
        raise FedGAError(f"{trained} but {tested}: make them alike")
    clients, client_names = train.clients, tuple[str, ...]()
    if clients is not None:
        if clients.dtype.kind not in "iubUS":
            raise FedGAError(f"{train.where} has clients of type {clients.dtype}: give whole numbers or text")
        names, clients = np.unique(clients, return_inverse=True)
        if names.dtype.kind in "US" and "" in names.astype(str):
            raise FedGAError(f"{train.where} has samples with an empty client: name one for every training sample")
        clients, client_names = clients.reshape(-1).astype(np.int64), tuple(map(str, names))
    arrays = (train.inputs, train.labels, test.inputs, test.labels)
    scale = input_scale if train.inputs.dtype == np.uint8 else 1.0
    dataset = Dataset(name, *arrays, class_names, scale, clients, client_names, feature_names=train.features)
    return replace(dataset, fingerprint=fingerprint(dataset))


def fingerprint(dataset: Dataset) -> str:
    """Content hash over the inputs and targets of both splits and the clients."""
    digest = hashlib.blake2b(digest_size=16)
    arrays = (dataset.train_inputs, dataset.train_targets, dataset.test_inputs, dataset.test_targets)
    for array in (*arrays, dataset.train_clients):
        if array is not None:
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def held_out(targets: np.ndarray) -> np.ndarray:
    """Mask of every fifth sample of each class, in file order: no randomness, so the split is the same for everyone.

    >>> held_out(np.array([0, 0, 0, 0, 0, 1, 1])).astype(int)
    array([0, 0, 0, 0, 1, 0, 0])
    """
    order = np.argsort(targets, kind="stable")
    sizes = np.bincount(targets)
    rank = np.empty(len(targets), dtype=np.int64)
    rank[order] = np.arange(len(targets)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return rank % TEST_EVERY == TEST_EVERY - 1


def _hold_out(samples: Samples) -> tuple[Samples, Samples]:
    mask = held_out(samples.labels)
    if samples.clients is not None:  # a client whose few samples would all be held out keeps them
        _, owner = np.unique(samples.clients, return_inverse=True)
        mask &= np.bincount(owner[~mask], minlength=owner.max(initial=0) + 1)[owner] > 0
    if not mask.any():
        few = f"{samples.where} has no class with {TEST_EVERY} samples, too few to hold out a test split"
        raise FedGAError(f"{few}: add samples, or give a test split of your own")
    return samples.take(~mask), samples.take(mask)


def check_lengths(samples: Samples) -> None:
    """Refuse labels, or clients where there are any, that are not one for each sample."""
    for kind, values in (("label", samples.labels), ("client", samples.clients)):
        if values is not None and values.shape != (len(samples.inputs),):
            there = f"{len(samples.inputs)} samples but {kind}s of shape {values.shape}"
            raise FedGAError(f"{samples.where} has {there}: give one {kind} per sample")


def _encode_labels(parts: Parts) -> Parts:
    textual = {samples.labels.dtype.kind in "US" for samples in parts.splits}
    if len(textual) > 1:
        raise FedGAError(f"labels are text in one split of {parts.train.where}, numbers in the other: write both alike")
    if textual.pop():
        names = parts.class_names or tuple(str(name) for name in np.unique(parts.train.labels))
        _check_alike(parts)
        advice = "which has no training sample: add training samples of it, or remove it"
        return parts.with_labels([index_of_names(samples, names, advice) for samples in parts.splits], names)
    encoded, names = [whole_numbers(samples) for samples in parts.splits], parts.class_names
    if not names and _count_from_one(encoded):
        encoded, names = [labels - 1 for labels in encoded], tuple(map(str, np.unique(encoded[0]).tolist()))
    highest, samples = max(int(each.max(initial=0)) for each in encoded), len(parts.train.inputs)
    if not names and highest >= samples:
        asked = f"{highest + 1} classes, more than its {samples} training samples"
        cure = "number the classes from 0, or write them as text"
        raise FedGAError(f"label {highest} of {parts.train.where} asks for {asked}: {cure}")
    names = names or tuple(map(str, range(highest + 1)))
    for split, labels in zip(parts.splits, encoded, strict=True):
        if wrong := np.unique(labels[(labels < 0) | (labels >= len(names))]).tolist():
            classes = f"the classes 0 to {len(names) - 1}"
            raise FedGAError(f"{split.where} has label {listed(wrong)}, outside {classes}: correct it")
    return parts.with_labels(encoded, names)


def _check_alike(parts: Parts) -> None:
    """Refuse classes that differ in case or spaces alone, most often one class; single letters may well be two."""
    seen: dict[str, str] = {}
    for samples in parts.splits:
        for name in np.unique(samples.labels).astype(str).tolist():
            same = seen.setdefault(" ".join(name.split()).casefold(), name)
            if same != name and max(len(same.strip()), len(name.strip())) > 1:
                differ = f"labels {same!r} and {name!r}, which differ in case or spaces alone"
                cure = "write both alike if they are one class, or give one of them another name"
                raise FedGAError(f"{samples.where} has the {differ}: {cure}")


def index_of_names(samples: Samples, names: Sequence[str], advice: str) -> np.ndarray:
    """Text labels as places in ``names``; ``advice`` ends the sentence about a class that is not among them."""
    found, inverse = np.unique(samples.labels.astype(str), return_inverse=True)
    index = {name: i for i, name in enumerate(names)}
    unknown = [str(name) for name in found if name not in index]
    if "" in unknown:
        raise FedGAError(f"{samples.where} has samples with an empty label: label or remove them")
    if unknown:
        raise FedGAError(f"{samples.where} has samples of class {listed(unknown)}, {advice}")
    return np.array([index[str(name)] for name in found], dtype=np.int64)[inverse.reshape(-1)]


def whole_numbers(samples: Samples) -> np.ndarray:
    """Labels that are numbers as int64."""
    labels = samples.labels
    if labels.dtype.kind == "f":
        if bad := int((~np.isfinite(labels)).sum()):
            raise FedGAError(f"{samples.where} has {bad} labels that are NaN or infinite: label or remove them")
        if len(odd := labels[labels != np.rint(labels)]):
            raise FedGAError(f"{samples.where} has labels that are not whole numbers, such as {odd[0]:g}: count from 0")
    elif labels.dtype.kind not in "iub":
        raise FedGAError(f"{samples.where} has labels of type {labels.dtype}: give whole numbers from 0, or text")
    return labels.astype(np.int64)


def _count_from_one(splits: Sequence[np.ndarray]) -> bool:
    """Whether labels are 1 to the number of classes without a gap: such classes are called by these numbers.

    >>> _count_from_one([np.array([1, 3, 2])]), _count_from_one([np.array([1, 3])]), _count_from_one([np.array([1, 0])])
    (True, False, False)
    """
    train, everything = np.unique(splits[0]), np.unique(np.concatenate(splits))
    return np.array_equal(train, np.arange(1, len(train) + 1)) and np.array_equal(train, everything)


def listed(values: Sequence[object], most: int = _NAMED) -> str:
    """
    >>> listed([3, 4]), listed([3, 4, 5], most=2)
    ('3, 4', '3, 4, ...')
    """
    return ", ".join(map(str, values[:most])) + (", ..." if len(values) > most else "")
