"""What imbalance does to the two errors of a binary classifier: the paper's Fig. 3 and Eq. (3).

A positive sample is *missed* by 1 - p, a negative one raises a *false alarm* of p. Where the gradient of the bias is
zero, cross-entropy has N_1 · missed = N_0 · false alarm: the two add up to the same, and their means differ by
r = N_0 / N_1. Calibrated labels, q(1) = 1 and q(0) = (N_0 - N_1) / N_0 · p, make the means themselves equal.
"""

import io
import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedga.common import streams
from fedga.common.files import open_regular, write_whole
from fedga.data import load_dataset
from fedga.data.federation import Dataset
from fedga.data.formats.npz import unpack_npz
from fedga.errors import FedGAError
from fedga.losses.calibration import binary_ga_loss
from fedga.paper.runs import EXPERIMENTS, SEEDS, Scope

LOSSES = ("cross-entropy", "gradient alignment")
RATIOS = (10.0, 100.0)
LAST_CLASS = 6  # of the two classes that are distinguished, the one of higher number
FILE_NAME = "binary.npz"
_MOST_BYTES = 1 << 30  # of that file
_COMPONENTS = 32
_RATE = 4.0  # features have variance at most 1 and mean 0, so no curvature is above 1/4: the largest safe step
_DECAY = 0.003  # of the weights, not of the bias: separable classes would move apart for ever


@dataclass(frozen=True, eq=False)
class BinaryRuns:
    """One loss at one imbalance: the two mean errors on the training samples, epoch by epoch, for every seed."""

    dataset: str
    positive: str
    negative: str
    loss: str  # one of LOSSES
    counts: tuple[int, int]  # N_0 negative and N_1 positive samples
    seeds: tuple[int, ...]
    epochs: np.ndarray  # int64 [epochs + 1]; 0 is before training
    missed: np.ndarray  # float64 [seeds, epochs + 1]: mean of 1 - p over the positive samples
    false_alarm: np.ndarray  # float64 [seeds, epochs + 1]: mean of p over the negative ones

    @property
    def ratio(self) -> float:
        """r = N_0 / N_1, as near to the one asked for as the samples allow."""
        return self.counts[0] / self.counts[1]

    @property
    def asymmetry(self) -> np.ndarray:
        """Error asymmetry, Eq. (3): missed over false alarm, ``[seeds, epochs + 1]``."""
        return self.missed / self.false_alarm

    @property
    def cumulative(self) -> np.ndarray:
        """The same of the errors' sums: N_1 · missed over N_0 · false alarm, ``[seeds, epochs + 1]``."""
        return self.asymmetry / self.ratio


def train_binary(folder: Path, scope: Scope, data_dir: Path | None) -> str:
    """Train what the folder does not hold yet, a few seconds; a sentence where the data have no such classes."""
    [name] = EXPERIMENTS["figure-binary"].datasets_in(scope)[:1]
    seeds = scope.seeds or SEEDS
    if any((run.dataset, run.seeds) == (name, seeds) for run in read_binary_runs(folder)):
        return ""
    dataset = load_dataset(name, data_dir=data_dir)
    if dataset.num_classes <= LAST_CLASS:
        return f"figure-binary sets class {LAST_CLASS} against class 0, and {name} has no such class: left out"
    write_binary_runs(folder, binary_runs(dataset, seeds=seeds))
    return ""


def binary_runs(
    dataset: Dataset,
    ratios: Sequence[float] = RATIOS,
    *,
    positive: int = LAST_CLASS,
    negative: int = 0,
    seeds: Sequence[int] = SEEDS,
    epochs: int = 2000,
    most: int = 2000,
) -> list[BinaryRuns]:
    """Logistic regression on two classes of a data set, by both losses at every imbalance r = N_0 / N_1.

    The seed draws the samples, of both splits: all ``negative`` ones up to ``most``, and an r-th of that of the
    ``positive`` ones. A picture is its first 32 principal components; training is plain descent on all samples at once
    from weights of zero, so the two losses differ in nothing but themselves.

    >>> from fedga.data import load_dataset
    >>> aligned = binary_runs(load_dataset("digits"), [10], seeds=[0], epochs=500)[1]
    >>> aligned.loss, aligned.counts, aligned.asymmetry[0, -1].round(1)
    ('gradient alignment', (178, 18), np.float64(1.0))
    """
    chosen = [_of_class(dataset, number) for number in (negative, positive)]
    if positive == negative or not seeds or epochs < 1:
        raise FedGAError("binary runs need two different classes, one seed or more and one epoch or more")
    together = torch.cat(chosen)
    centred = together - together.mean(0)
    _, directions = torch.linalg.eigh(centred.T @ centred)  # by ascending variance; more would only cost time
    features = [(samples @ directions[:, -_COMPONENTS:]).numpy() for samples in chosen]
    runs = []
    for ratio in ratios:
        counts = _counts(ratio, min(len(features[0]), most), len(features[1]))
        samples = torch.stack([_draw(features, counts, seed) for seed in seeds])
        missed, false_alarm = _descend(samples, counts, epochs)
        names = (dataset.name, dataset.class_names[positive], dataset.class_names[negative])
        for at, loss in enumerate(LOSSES):
            errors = (missed[:, at].numpy(), false_alarm[:, at].numpy())
            runs.append(BinaryRuns(*names, loss, counts, tuple(seeds), np.arange(epochs + 1), *errors))
    return runs


def _of_class(dataset: Dataset, number: int) -> Tensor:
    """All samples of a class as float64 ``[samples, inputs]``; no model is tested here, so those of both splits."""
    if not 0 <= number < dataset.num_classes:
        raise FedGAError(f"{dataset.name} has no class {number}: it has the classes 0 to {dataset.num_classes - 1}")
    splits = ((dataset.train_inputs, dataset.train_targets), (dataset.test_inputs, dataset.test_targets))
    inputs = np.concatenate([of_split[targets == number] for of_split, targets in splits])
    if not len(inputs):
        raise FedGAError(f"{dataset.name} has no sample of class {dataset.class_names[number]!r}: choose another class")
    scale = dataset.input_scale if inputs.dtype == np.uint8 else 1.0
    return torch.as_tensor(inputs.reshape(len(inputs), -1) / scale, dtype=torch.float64)


def _counts(ratio: float, negatives: int, positives: int) -> tuple[int, int]:
    """N_0 and N_1: as many samples as there are, in a proportion as near to the ratio as they allow."""
    if not ratio >= 1:
        raise FedGAError(f"the imbalance must be 1 or more negative samples for a positive one, not {ratio:g}")
    fewer = min(max(round(negatives / ratio), 1), positives)
    return min(round(ratio * fewer), negatives), fewer


def _draw(features: Sequence[np.ndarray], counts: tuple[int, int], seed: int) -> Tensor:
    """``[samples, components]``, the negative samples first."""
    generator = streams.numpy_generator(seed, "binary samples")
    orders = [generator.permutation(len(of_class)) for of_class in features]
    parts = zip(features, orders, counts, strict=True)
    return torch.as_tensor(np.concatenate([of_class[order[:number]] for of_class, order, number in parts]))


def _descend(samples: Tensor, counts: tuple[int, int], epochs: int) -> tuple[Tensor, Tensor]:
    """The two mean errors before training and after every epoch: twice ``[seeds, losses, epochs + 1]``."""
    seeds, number, components = samples.shape
    samples = samples - samples.mean(1, keepdim=True)  # then of variance 1 in the direction in which they vary most
    largest = torch.linalg.matrix_norm(samples, ord=2) / number**0.5
    samples = samples / torch.where(largest > 0, largest, 1.0)[:, None, None]
    targets = torch.cat([torch.zeros(counts[0]), torch.ones(counts[1])]).double().expand(seeds, number)
    weights = torch.zeros(seeds, components, len(LOSSES), dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(seeds, 1, len(LOSSES), dtype=torch.float64, requires_grad=True)
    groups: list[dict[str, Any]] = [{"params": [weights], "weight_decay": _DECAY}, {"params": [bias]}]
    optimizer = torch.optim.SGD(groups, lr=_RATE)
    missed, false_alarm = [], []
    for epoch in range(epochs + 1):
        plain, aligned = (samples @ weights + bias).unbind(-1)
        p = torch.sigmoid(torch.stack([plain, aligned], 1).detach())
        missed.append((1 - p[..., counts[0] :]).mean(-1))
        false_alarm.append(p[..., : counts[0]].mean(-1))
        if epoch < epochs:
            loss = F.binary_cross_entropy_with_logits(plain, targets, reduction="sum")
            loss = loss + binary_ga_loss(aligned, targets, counts, reduction="sum")
            optimizer.zero_grad()
            (loss / number).backward()  # the mean over samples, for every seed and loss on its own
            optimizer.step()
    return torch.stack(missed, -1), torch.stack(false_alarm, -1)


def write_binary_runs(folder: Path, runs: Sequence[BinaryRuns]) -> Path:
    """Keep the runs beside the results of a folder, in one file that is whole or not there."""
    arrays: dict[str, np.ndarray] = {}
    for number, run in enumerate(runs):
        names = [run.dataset, run.positive, run.negative, run.loss, run.counts, run.seeds]
        arrays[f"run_{number}"] = np.array(json.dumps(names))
        arrays[f"epochs_{number}"] = run.epochs
        arrays[f"errors_{number}"] = np.stack([run.missed, run.false_alarm]).astype(np.float32)
    packed = io.BytesIO()
    np.savez_compressed(packed, allow_pickle=False, **arrays)
    return write_whole(folder / FILE_NAME, packed.getvalue())


def read_binary_runs(folder: Path) -> list[BinaryRuns]:
    """What `write_binary_runs` kept there; none for any other folder."""
    path = folder / FILE_NAME
    try:
        with open_regular(path) as file:
            arrays = unpack_npz(file.read(_MOST_BYTES))
        return [_unpacked(arrays, number) for number in range(len(arrays) // 3)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile, zlib.error, RecursionError) as error:
        raise FedGAError(f"{path} cannot be read ({error}): delete it and repeat `fedga paper figure-binary`") from None


def _unpacked(arrays: Mapping[str, np.ndarray], number: int) -> BinaryRuns:
    *texts, (n_0, n_1), seeds = json.loads(str(arrays[f"run_{number}"]))
    errors, epochs = arrays[f"errors_{number}"].astype(np.float64), arrays[f"epochs_{number}"]
    if len(texts) != 4 or not all(isinstance(text, str) for text in texts):
        raise ValueError("a run is described in other words than these runs are")
    if not all(isinstance(count, int) and count > 0 for count in (n_0, n_1)) or epochs.dtype.kind != "i":
        raise ValueError("counts or epochs are no whole numbers")
    if not len(epochs) or errors.shape != (2, len(seeds), len(epochs)) or not np.isfinite(errors).all():
        raise ValueError("errors do not fit seeds and epochs")
    dataset, positive, negative, loss = texts
    return BinaryRuns(dataset, positive, negative, loss, (n_0, n_1), tuple(map(int, seeds)), epochs, *errors)
