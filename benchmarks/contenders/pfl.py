"""pfl-research: federated averaging on its simulated backend; a callback holds it between rounds.

Under `torchrun` its processes share the clients of a round out among themselves.
"""

from __future__ import annotations

import os
import sys
from functools import partial

import networks
import numpy as np
import torch
import torch.nn.functional as F
import work
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from turns import Stop, Turns

NEVER = 10**6


def is_helper() -> bool:
    return os.environ.get("RANK", "0") != "0"


class Classifier(nn.Module):
    """The network with the two methods that pfl asks for."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.network(inputs), targets)

    @torch.no_grad()
    def metrics(self, inputs: Tensor, targets: Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(self.loss(inputs, targets).item() * len(targets), len(targets))}


class Hold(TrainingProcessCallback):
    """The first process waits for the driver, the others for the first."""

    def __init__(self, data: work.Data, network: nn.Module) -> None:
        self.turns = None if is_helper() else Turns("pfl", "torch")
        self.data, self.network = data, network

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        if self.turns is not None:
            self.turns.wait(lambda: networks.accuracy(self.data, self.network))
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        return False, self.on_train_begin(model=model)


def make_backend(data: work.Data) -> SimulatedBackend:
    def user(k: int) -> PyTorchTensorDataset:
        inputs, targets = networks.client_tensors(data, k)
        order = torch.randperm(len(targets))  # pfl takes the samples in the order they come in
        return PyTorchTensorDataset((inputs[order], targets[order]), user_id=str(k))

    users = FederatedDataset(user, get_user_sampler("random", range(work.CLIENTS)))
    return SimulatedBackend(training_data=users, val_data=users)


def main(model: str, threads: str) -> None:
    torch.set_num_threads(int(threads))
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - pfl draws users from numpy's global generator
    data, network = work.load_data(model), networks.build(model)
    classifier = Classifier(network)
    try:
        FederatedAveraging().run(
            NNAlgorithmParams(
                central_num_iterations=NEVER,
                evaluation_frequency=NEVER,
                train_cohort_size=work.ACTIVE,
                val_cohort_size=0,
            ),
            make_backend(data),
            PyTorchModel(
                classifier,
                partial(torch.optim.SGD, momentum=work.MOMENTUM),
                central_optimizer=torch.optim.SGD(classifier.parameters(), 1.0),
            ),
            NNTrainHyperParams(
                local_batch_size=work.BATCH, local_num_epochs=work.EPOCHS, local_learning_rate=work.RATES[model]
            ),
            callbacks=[Hold(data, network)],
        )
    except Stop:
        return


if __name__ == "__main__":
    main(*sys.argv[1:])
