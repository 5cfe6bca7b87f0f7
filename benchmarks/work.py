"""The work that every contender does, with numpy alone, so that it can be imported in every environment.

100 clients of 600 samples, 10 active in a round, 2 epochs of batches of 64, SGD with momentum 0.9 that starts anew at
every client, no clipping; the server takes the mean. Pixels reach the networks as ``value / 255``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

CLIENTS, SAMPLES, ACTIVE, EPOCHS, BATCH = 100, 600, 10, 2, 64
RATES = {"mlp": 0.1, "lenet": 0.01, "resnet20": 0.1}  # at 0.1 with this momentum LeNet diverges, whoever trains it
MOMENTUM = 0.9
CLASSES, TEST_SAMPLES = 10, 10_000
INPUT_SHAPES = {"mlp": (1, 28, 28), "lenet": (3, 32, 32), "resnet20": (3, 32, 32)}
SIGNAL = {"mlp": 12, "lenet": 20, "resnet20": 12}  # so that ten rounds neither fail nor finish
NOISE = 40
DATA_FOLDER = "FEDGA_BENCH_DATA"

Weights = dict[str, np.ndarray]


@dataclass(frozen=True)
class Samples:
    inputs: np.ndarray  # uint8 [samples, channels, height, width]
    targets: np.ndarray  # int64 [samples]


@dataclass(frozen=True)
class Data:
    train: Samples
    test: Samples

    def client(self, k: int) -> Samples:
        """The samples of client ``k``: drawn alike for all, so that an equal share of the whole is an IID client."""
        own = slice(k * SAMPLES, (k + 1) * SAMPLES)
        return Samples(self.train.inputs[own], self.train.targets[own])


def load_data(model: str) -> Data:
    """The data as the driver saved them: making them is no contender's work, and numpy's streams may change."""
    with np.load(Path(os.environ[DATA_FOLDER]) / _file_name(model)) as file:
        train, test = (Samples(file[f"{split}_inputs"], file[f"{split}_targets"]) for split in ("train", "test"))
    return Data(train, test)


def save_data(model: str, folder: Path) -> None:
    """Make the data where they are not there yet."""
    path = folder / _file_name(model)
    if path.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    data = made_up_data(model)
    unfinished = path.with_suffix(".part.npz")
    np.savez(
        unfinished,
        **{"train_inputs": data.train.inputs, "train_targets": data.train.targets},
        **{"test_inputs": data.test.inputs, "test_targets": data.test.targets},
    )
    unfinished.rename(path)


def _file_name(model: str) -> str:
    return f"{model}-{SIGNAL[model]}-{NOISE}.npz"


def made_up_data(model: str) -> Data:
    """Dark pictures of the model's shape, as MNIST's are, with learnable content: noise around a template per class."""
    generator = np.random.default_rng(0)
    templates = SIGNAL[model] * _templates(generator, INPUT_SHAPES[model])

    def split(samples: int) -> Samples:
        targets = generator.integers(0, CLASSES, samples)
        inputs = np.empty((samples, *INPUT_SHAPES[model]), np.uint8)
        for start in range(0, samples, 1000):
            mean = templates[targets[start : start + 1000]]
            noise = NOISE * generator.standard_normal(mean.shape, np.float32)
            inputs[start : start + 1000] = (mean + noise).clip(0, 255)
        return Samples(inputs, targets)

    return Data(split(CLIENTS * SAMPLES), split(TEST_SAMPLES))


def _templates(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """One picture per class in patches of 4×4, since convolutions with pooling cannot tell fine grain apart."""
    channels, height, width = shape
    coarse = generator.uniform(-1, 1, (CLASSES, channels, height // 4, width // 4)).astype(np.float32)
    return coarse.repeat(4, axis=2).repeat(4, axis=3)


def as_floats(inputs: np.ndarray) -> np.ndarray:
    return inputs.astype(np.float32) / 255


def accuracy(data: Data, predict: Callable[[np.ndarray], np.ndarray]) -> float:
    """Share of the test split that is told right; ``predict`` maps float pictures to classes."""
    right = 0
    for start in range(0, TEST_SAMPLES, 1000):
        part = slice(start, start + 1000)
        right += int((predict(as_floats(data.test.inputs[part])) == data.test.targets[part]).sum())
    return right / TEST_SAMPLES


def initial_weights(model: str) -> Weights:
    """The weights that every contender starts from, named and shaped as PyTorch does: ``[out, in, height, width]``."""
    generator = np.random.default_rng(1)
    return {name: _initial(generator, name, shape) for name, shape in _shapes(model).items()}


def _initial(generator: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    if len(shape) > 1:
        deviation = np.sqrt(2 / np.prod(shape[1:]))  # He et al. 2015
        return (deviation * generator.standard_normal(shape)).astype(np.float32)
    if name.endswith("num_batches_tracked"):
        return np.zeros(shape, np.int64)
    starts_at_one = "norm" in name and name.endswith(("weight", "running_var"))
    return np.full(shape, float(starts_at_one), np.float32)


def _shapes(model: str) -> dict[str, tuple[int, ...]]:
    if model == "mlp":
        return _with_bias("hidden", (128, 784)) | _with_bias("output", (CLASSES, 128))
    if model == "lenet":
        convolutions = _with_bias("conv1", (6, 3, 5, 5)) | _with_bias("conv2", (16, 6, 5, 5))
        return convolutions | _with_bias("fc1", (120, 400)) | _with_bias("fc2", (84, 120)) | _with_bias("fc3", (10, 84))
    shapes = _normalised("conv", "norm", (16, 3, 3, 3))
    for block, (before, after) in enumerate(pairwise([16] * 4 + [32] * 3 + [64] * 3)):
        shapes |= _normalised(f"blocks.{block}.conv1", f"blocks.{block}.norm1", (after, before, 3, 3))
        shapes |= _normalised(f"blocks.{block}.conv2", f"blocks.{block}.norm2", (after, after, 3, 3))
    return shapes | _with_bias("output", (CLASSES, 64))


def _with_bias(layer: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {f"{layer}.weight": shape, f"{layer}.bias": shape[:1]}


def _normalised(convolution: str, norm: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    names = ("weight", "bias", "running_mean", "running_var")
    per_channel = {f"{norm}.{name}": shape[:1] for name in names}
    return {f"{convolution}.weight": shape, **per_channel, f"{norm}.num_batches_tracked": ()}
