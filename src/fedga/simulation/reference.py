"""The plain loop: one client after another, an ordinary module, an ordinary optimiser, nothing stacked.

It is here to be obviously right; `fedga.simulation.engine` is tested against it for every algorithm and model.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters

from fedga import streams
from fedga.algorithms.base import Batch, Server, Tensors, Trained
from fedga.simulation.device_data import DeviceData, auxiliary_samples
from fedga.simulation.lanes import Lane
from fedga.simulation.layers import BatchContext, replace_dropout
from fedga.simulation.optimizers import SERVER_RATES, ServerOptimizer, averaging_weight, scheduled_rate
from fedga.simulation.stacked import StackedModel, float_buffers


class Reference:
    """One run. ``model`` is the global model, ``averaged`` its mean over rounds (if the run has server averaging)."""

    def __init__(self, lane: Lane, data: DeviceData) -> None:
        self.spec, self.federation, self.algorithm, self.data = lane.spec, lane.federation, lane.algorithm, data
        self.context = BatchContext()
        self.model = replace_dropout(copy.deepcopy(lane.model), self.context)
        self.averaged = copy.deepcopy(self.model)
        self.pixels = data.pixels[self.spec.standardize]
        self.round = 0
        params = self._vector(self.model)
        rate = SERVER_RATES[self.spec.server] if self.spec.server_rate is None else self.spec.server_rate
        self.optimizer = ServerOptimizer.create(self.spec.server, torch.full((1, 1), rate), params[None])
        self.state: Tensors = self.algorithm.server_state(params, self.federation.num_clients)
        self.kept = {k: self.algorithm.client_state(params) for k in range(self.federation.num_clients)}

    def _vector(self, model: nn.Module) -> Tensor:
        return parameters_to_vector(model.parameters()).detach().clone()

    def _samples(self, places: list[int]) -> tuple[Tensor, Tensor]:
        return self.pixels.apply(self.data.train_inputs[places]), self.data.train_targets[places]

    def run_round(self) -> None:
        spec, algorithm = self.spec, self.algorithm
        self.round += 1
        start = self._vector(self.model)
        keys = [streams.key(spec.seed, "clients", self.round, k) for k in range(self.federation.num_clients)]
        clients = algorithm.select(self.state, streams.uniform(torch.tensor(keys)), spec.active)
        survey = self._survey() if algorithm.surveys else None
        received = self._broadcast(start)
        sizes = start.new_tensor([float(self.federation.sizes[k]) for k in clients.tolist()])
        sizes = torch.ones_like(sizes) if spec.aggregation == "uniform" else sizes
        shares = sizes / sizes.sum()
        weights = algorithm.weights(self.state, clients, shares)

        update = torch.zeros_like(start)
        buffers = {name: torch.zeros_like(value) for name, value in float_buffers(self.model).items()}
        reports = []
        for k, share, weight in zip(clients.tolist(), shares, weights, strict=True):
            local, report = self._train_client(k, received)
            update += weight * (self._vector(local) - start)
            for name, value in float_buffers(local).items():
                buffers[name] += share * value
            reports.append(report)

        vector_to_parameters(self.optimizer.step(start[None], update[None])[0], self.model.parameters())
        self.model.load_state_dict(self.model.state_dict() | buffers)
        stacked = {name: torch.stack([report[name] for report in reports]) for name in reports[0]}
        self.state = algorithm.update_server(self.state, clients, stacked, survey)
        if spec.server_average:
            weight = averaging_weight(torch.tensor(spec.server_average), self.round)
            new, old = self.model.state_dict(), self.averaged.state_dict()
            moved = {
                name: old[name] + weight * (new[name] - old[name]) for name in new if new[name].is_floating_point()
            }
            self.averaged.load_state_dict(new | moved)

    def _train_client(self, k: int, received: Tensors) -> tuple[nn.Module, dict[str, Tensor]]:
        spec, algorithm = self.spec, self.algorithm
        received_model = copy.deepcopy(self.model).eval()
        local = copy.deepcopy(self.model).train()
        lr = scheduled_rate(spec.lr, spec.lr_schedule, self.round, spec.rounds)
        optimizer: torch.optim.Optimizer = torch.optim.Adam(local.parameters(), lr, weight_decay=spec.weight_decay)
        if spec.optimizer == "sgd":
            optimizer = torch.optim.SGD(local.parameters(), lr, spec.momentum, weight_decay=spec.weight_decay)
        start = self._vector(local)
        counts = torch.from_numpy(self.federation.class_counts[k]).float()
        steps = 0
        for inputs, targets in self._batches(k):
            self.context.dropout_key = torch.tensor(streams.key(spec.seed, "dropout", self.round, k, steps))
            logits = local(inputs)
            with torch.no_grad():
                global_logits = received_model(inputs) if algorithm.needs_global_logits else None
            batch = Batch(logits, targets, torch.ones(len(targets)), counts, global_logits, received)
            loss = algorithm.local_loss(batch).mean()
            penalty = algorithm.penalty(parameters_to_vector(local.parameters()), start)
            if penalty is not None:
                loss = loss + penalty
            optimizer.zero_grad()
            loss.backward()
            gradient = parameters_to_vector([parameter.grad for parameter in local.parameters()])  # type: ignore[misc]
            gradient = algorithm.correct(gradient, self.kept[k], received)
            for parameter, part in zip(local.parameters(), _split(gradient, local), strict=True):
                parameter.grad = part
            if spec.clip:
                clip_grad_norm_(local.parameters(), spec.clip)
            optimizer.step()
            steps += 1
        trained = Trained(
            self._vector(local), start, self.kept[k], received, torch.tensor(float(steps)), torch.tensor(lr)
        )
        report, self.kept[k] = algorithm.report(trained)
        return local, report

    def _batches(self, k: int) -> list[tuple[Tensor, Tensor]]:
        places = self.federation.client(k).tolist()
        batches = []
        for epoch in range(self.spec.local_epochs):
            keys = [streams.key(self.spec.seed, "batches", self.round, k, epoch, i) for i in range(len(places))]
            shuffled = [place for _, place in sorted(zip(keys, places, strict=True))]
            batches += [shuffled[i : i + self.spec.batch_size] for i in range(0, len(places), self.spec.batch_size)]
        return [self._samples(batch) for batch in batches]

    def _survey(self) -> Tensor:
        values = []
        for k in range(self.federation.num_clients):
            inputs, targets = self._samples(self.federation.client(k).tolist())
            with torch.no_grad():
                logits = self.model.eval()(inputs)
            batch = Batch(logits, targets, torch.ones(len(targets)), torch.zeros(logits.shape[-1]))
            values.append(self.algorithm.survey(batch).mean())
        return torch.stack(values)

    def _broadcast(self, params: Tensor) -> dict[str, Tensor]:
        stacked, classes = StackedModel(self.model), self.data.dataset.num_classes
        auxiliary, last_layer = None, (0, (0, 0))
        if self.algorithm.auxiliary_samples:
            places = auxiliary_samples(self.data.dataset, self.spec.seed, self.algorithm.auxiliary_samples)
            auxiliary = torch.stack([self._samples(row.tolist())[0] for row in places])
            last_layer = stacked.last_layer(classes)
        buffers = stacked.buffers.flatten(dict(self.model.named_buffers()))

        def forward(params: Tensor, inputs: Tensor) -> Tensor:
            return stacked.forward_one(params, buffers, inputs)

        return self.algorithm.broadcast(Server(params, self.state, forward, last_layer, auxiliary))


def _split(vector: Tensor, model: nn.Module) -> list[Tensor]:
    sizes = [parameter.numel() for parameter in model.parameters()]
    return [part.view_as(p).clone() for part, p in zip(vector.split(sizes), model.parameters(), strict=True)]
