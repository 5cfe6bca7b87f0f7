"""Small data sets and runs that many tests share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedga.algorithms import make_algorithm
from fedga.data.federation import Dataset, Federation
from fedga.experiments.spec import RunSpec
from fedga.models import build_model
from fedga.simulation.device_data import DeviceData
from fedga.simulation.lanes import Lane

torch.set_num_threads(1)  # the tests' tensors are small: a second thread only costs


def make_dataset(shape: tuple[int, ...] = (1, 8, 8), classes: int = 4, samples: int = 160, seed: int = 0) -> Dataset:
    """Noisy pictures around one template per class: learnable, but not at once."""
    generator = np.random.default_rng(seed)
    templates = generator.integers(0, 256, (classes, *shape))
    targets = generator.permutation(np.arange(samples) % classes)
    noisy = templates[targets] * 0.5 + generator.integers(0, 128, (samples, *shape))
    inputs = noisy.clip(0, 255).astype(np.uint8)
    cut = samples * 3 // 4
    names = tuple(str(label) for label in range(classes))
    return Dataset("made", inputs[:cut], targets[:cut], inputs[cut:], targets[cut:], names, fingerprint="made")


def make_uneven_federation(dataset: Dataset, clients: int = 6, seed: int = 0) -> Federation:
    """Clients of clearly unequal size, most of them without some class."""
    generator = np.random.default_rng(seed)
    order = np.argsort(dataset.train_targets, kind="stable")
    sizes = generator.integers(3, 2 * len(order) // clients - 3, clients)
    sizes = (sizes * len(order) / sizes.sum()).astype(int).clip(min=2)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return Federation(dataset, order[: offsets[-1]], offsets)


def make_lane(
    dataset: Dataset, federation: Federation | None = None, model: Any = "mlp", algorithm: str = "fedavg", **settings: Any
) -> Lane:
    federation = federation or make_uneven_federation(dataset)
    name = model if isinstance(model, str) else "own"
    spec = RunSpec(
        **{
            "dataset": "made",
            "partition": "iid",
            "clients": federation.num_clients,
            "active": 3,
            "rounds": 5,
            "batch_size": 8,
            "algorithm": algorithm,
            "model": name,
            "diagnose_every": 2,
        }
        | settings
    )
    made = make_algorithm(spec.algorithm_name, **dict(spec.algorithm_options))
    network = build_model(model, dataset.input_shape, dataset.num_classes, norm=spec.norm, seed=spec.seed)
    return Lane(spec, federation, made, network)


@pytest.fixture(scope="session")
def pictures() -> Dataset:
    return make_dataset()


@pytest.fixture(scope="session")
def pictures_data(pictures: Dataset) -> DeviceData:
    return DeviceData(pictures, torch.device("cpu"))


