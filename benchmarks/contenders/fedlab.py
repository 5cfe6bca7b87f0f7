"""FedLab: its server handler and serial trainer, in the loop of its standalone pipeline."""

from __future__ import annotations

import logging
import random
import sys

import networks
import torch
import torchvision_on_cpu
import work
from torch.utils.data import DataLoader, TensorDataset
from turns import Stop, Turns

torchvision_on_cpu.make_importable()

from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler  # noqa: E402
from fedlab.core.standalone import StandalonePipeline  # noqa: E402

NEVER = 10**6


class Clients:
    def __init__(self, data: work.Data) -> None:
        self.data = data

    def get_dataloader(self, client: int, batch_size: int) -> DataLoader:
        return DataLoader(TensorDataset(*networks.client_tensors(self.data, client)), batch_size, shuffle=True)


class Trainer(FedAvgSerialClientTrainer):
    def train(self, model_parameters: torch.Tensor, train_loader: DataLoader) -> list[torch.Tensor]:
        """With the momentum that FedLab's own optimiser has no argument for."""
        self.optimizer = torch.optim.SGD(self._model.parameters(), self.lr, work.MOMENTUM)
        return super().train(model_parameters, train_loader)


class Pipeline(StandalonePipeline):
    """FedLab's own loop, which calls `evaluate` after every round."""

    def __init__(self, handler: FedAvgServerHandler, trainer: Trainer, turns: Turns, data: work.Data) -> None:
        super().__init__(handler, trainer)
        self.turns, self.data = turns, data

    def evaluate(self) -> None:
        self.turns.wait(lambda: networks.accuracy(self.data, self.handler.model))


def main(model: str, threads: str) -> None:
    torch.set_num_threads(int(threads))
    torch.manual_seed(0)
    random.seed(0)
    logging.disable()
    data = work.load_data(model)
    handler = FedAvgServerHandler(networks.build(model), NEVER, work.ACTIVE / work.CLIENTS)
    trainer = Trainer(networks.build(model), work.CLIENTS)
    trainer.setup_dataset(Clients(data))
    trainer.setup_optim(work.EPOCHS, work.BATCH, work.RATES[model])
    pipeline = Pipeline(handler, trainer, Turns("fedlab", "torch"), data)
    try:
        pipeline.evaluate()
        pipeline.main()
    except Stop:
        return


if __name__ == "__main__":
    main(*sys.argv[1:])
