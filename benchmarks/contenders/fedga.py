"""fedga's engine, as `fedga run` uses it for a single run."""

from __future__ import annotations

import sys

import networks
import numpy as np
import torch
import work
from turns import Turns

from fedga.algorithms import make_algorithm
from fedga.data.federation import Dataset, Federation
from fedga.engine.device_data import DeviceData
from fedga.engine.engine import Engine
from fedga.engine.stack.lanes import Lane
from fedga.models import build_model
from fedga.spec.settings import RunSpec

NEVER = 10**6


def make_engine(model: str, data: work.Data) -> Engine:
    dataset = Dataset(
        *("made up", data.train.inputs, data.train.targets, data.test.inputs, data.test.targets),
        class_names=tuple("0123456789"),
    )
    everyone = np.arange(work.CLIENTS * work.SAMPLES)
    federation = Federation(dataset, everyone, np.arange(work.CLIENTS + 1) * work.SAMPLES)
    spec = RunSpec(
        **{"dataset": "made up", "partition": "iid", "clients": work.CLIENTS, "active": work.ACTIVE, "rounds": NEVER},
        **{"local_epochs": work.EPOCHS, "batch_size": work.BATCH, "lr": work.RATES[model], "momentum": work.MOMENTUM},
        **{"algorithm": "fedavg", "model": model, "clip": None, "evaluate_every": NEVER, "diagnose_every": 0},
    )
    network = build_model(model, dataset.input_shape, work.CLASSES)
    weights = {name: torch.from_numpy(value) for name, value in work.initial_weights(model).items()}
    network.load_state_dict(weights)
    lane = Lane(spec, federation, make_algorithm("fedavg"), network)
    return Engine([lane], DeviceData(dataset, torch.device("cpu")))


def main(model: str, threads: str) -> None:
    torch.set_num_threads(int(threads))
    data = work.load_data(model)
    engine, network = make_engine(model, data), networks.build(model)

    def accuracy() -> float:
        engine.model.unflatten(engine.stack.params[0], engine.stack.buffers[0], network)
        return networks.accuracy(data, network)

    for _ in Turns("fedga", "torch").rounds(accuracy):
        engine.run_round()


if __name__ == "__main__":
    main(*sys.argv[1:])
