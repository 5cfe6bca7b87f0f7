"""fluke: its centralised federated averaging; an observer holds it between rounds."""

from __future__ import annotations

import sys

import networks
import torch
import torchvision_on_cpu
import work
from turns import Stop, Turns

torchvision_on_cpu.make_importable()

from fluke import DDict, FlukeENV  # noqa: E402
from fluke.algorithms import CentralizedFL  # noqa: E402
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader  # noqa: E402
from fluke.utils import FederationObserver  # noqa: E402

NEVER = 10**6


class Hold(FederationObserver):
    def __init__(self, turns: Turns, data: work.Data) -> None:
        self.turns, self.data = turns, data

    def start_round(self, round: int, global_model: torch.nn.Module) -> None:  # noqa: A002 - fluke's name
        self.turns.wait(lambda: networks.accuracy(self.data, global_model))


def make_splitter(data: work.Data) -> DataSplitter:
    clients = [
        FastDataLoader(*networks.client_tensors(data, k), num_labels=work.CLASSES, batch_size=work.BATCH, shuffle=True)
        for k in range(work.CLIENTS)
    ]
    container = DummyDataContainer(clients, [None] * work.CLIENTS, None, work.CLASSES)
    return DataSplitter(container)


def settings(model: str) -> DDict:
    client = {
        **{"batch_size": work.BATCH, "local_epochs": work.EPOCHS, "loss": torch.nn.CrossEntropyLoss},
        "optimizer": {"name": "SGD", "lr": work.RATES[model], "momentum": work.MOMENTUM},
        "scheduler": {"name": "StepLR", "step_size": 1, "gamma": 1},
        "persistency": False,  # momentum starts anew every round, as everywhere here
    }
    return DDict(client=client, server={"weighted": True}, model=networks.build(model))


def main(model: str, threads: str) -> None:
    torch.set_num_threads(int(threads))
    FlukeENV().set_seed(0)
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    data = work.load_data(model)
    algorithm = CentralizedFL(work.CLIENTS, make_splitter(data), settings(model))
    algorithm.set_callbacks(Hold(Turns("fluke-fl", "torch"), data))
    try:
        algorithm.run(NEVER, work.ACTIVE / work.CLIENTS)
    except Stop:
        return


if __name__ == "__main__":
    main(*sys.argv[1:])
