"""The plain loop: one client after another, an ordinary module, an ordinary optimiser, nothing stacked.

It is here to be obviously right; `fedga.engine.engine` is tested against it for every algorithm and model.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters

from fedga.algorithms.base import Batch, Server, Tensors, Trained
from fedga.common import streams
from fedga.engine.device_data import DeviceData, auxiliary_samples
from fedga.engine.optimizers import SERVER_RATES, ServerOptimizer, averaging_weight, scheduled_rate
from fedga.engine.stack.lanes import Lane
from fedga.engine.stack.layers import BatchContext, replace_dropout, set_dropout_key
from fedga.engine.stack.stacked import StackedModel, float_buffers, trained_parameters


class Reference:
    """One run. ``model`` is the global model, ``averaged`` its mean over rounds (if the run has server averaging)."""

    def __init__(self, lane: Lane, data: DeviceData) -> None:
        self.spec, self.federation, self.algorithm, self.data = lane.spec, lane.federation, lane.algorithm, data
        self.model = replace_dropout(copy.deepcopy(lane.model), BatchContext())
        self.averaged = copy.deepcopy(self.model)
        self.pixels = data.pixels[self.spec.standardize]
        self.round = 0
        params = self._vector(self.model)
        rate = SERVER_RATES[self.spec.server] if self.spec.server_rate is None else self.spec.server_rate
        self.optimizer = ServerOptimizer.create(self.spec.server, torch.full((1, 1), rate), params[None])
        self.state: Tensors = self.algorithm.server_state(params, self.federation.num_clients, data.dataset.num_classes)
        self.kept = {k: self.algorithm.client_state(params) for k in range(self.federation.num_clients)}

    def _vector(self, model: nn.Module) -> Tensor:
        return parameters_to_vector(_trained(model)).detach().clone()

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
        before = {name: value.clone() for name, value in float_buffers(self.model).items()}
        buffers = {name: value.clone() for name, value in before.items()}
        reports = []
        for k, share, weight in zip(clients.tolist(), shares, weights, strict=True):
            local, report = self._train_client(k, received)
            update += weight * (self._vector(local) - start)
            for name, value in float_buffers(local).items():
                buffers[name] += share * (value.detach() - before[name])
            reports.append(report)

        vector_to_parameters(self.optimizer.step(start[None], update[None])[0], _trained(self.model))
        with torch.no_grad():
            for name, value in float_buffers(self.model).items():
                value.copy_(buffers[name])
        stacked = {name: torch.stack([report[name] for report in reports]) for name in reports[0]}
        self.state = algorithm.update_server(self.state, clients, stacked, survey)
        if spec.server_average:
            weight = averaging_weight(torch.tensor(spec.server_average), self.round)
            with torch.no_grad():
                for old, new in zip(_floats(self.averaged), _floats(self.model), strict=True):
                    old += weight * (new - old)

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
            set_dropout_key(local, streams.key(spec.seed, "dropout", self.round, k, steps))
            logits = local(inputs)
            with torch.no_grad():
                global_logits = received_model(inputs) if algorithm.needs_global_logits else None
            batch = Batch(logits, targets, torch.ones(len(targets)), counts, global_logits, received)
            loss = algorithm.local_loss(batch).mean()
            penalty = algorithm.penalty(parameters_to_vector(_trained(local)), start)
            if penalty is not None:
                loss = loss + penalty
            optimizer.zero_grad()
            loss.backward()
            gradient = parameters_to_vector([_gradient(parameter) for parameter in _trained(local)])
            gradient = algorithm.correct(gradient, self.kept[k], received)
            for parameter, part in zip(_trained(local), _split(gradient, local), strict=True):
                parameter.grad = part
            if spec.clip:
                clip_grad_norm_(local.parameters(), spec.clip)
            optimizer.step()
            steps += 1
        taken, rate = torch.tensor(float(steps)), torch.tensor(lr)
        trained = Trained(self._vector(local), start, self.kept[k], received, taken, rate, counts)
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
        values, model = [], copy.deepcopy(self.model).eval()
        for k in range(self.federation.num_clients):
            inputs, targets = self._samples(self.federation.client(k).tolist())
            with torch.no_grad():
                logits = model(inputs)
            batch = Batch(logits, targets, torch.ones(len(targets)), torch.zeros(logits.shape[-1]))
            values.append(self.algorithm.survey(batch).mean())
        return torch.stack(values)

    def _broadcast(self, params: Tensor) -> dict[str, Tensor]:
        stacked, auxiliary = StackedModel(self.model), None
        if self.algorithm.auxiliary_samples:
            places = auxiliary_samples(self.data.dataset, self.spec.seed, self.algorithm.auxiliary_samples)
            auxiliary = torch.stack([self._samples(row.tolist())[0] for row in places])
        _, buffers = stacked.flatten(self.model)

        def forward(params: Tensor, inputs: Tensor) -> Tensor:
            return stacked.forward_one(params, buffers, inputs)

        classes = self.data.dataset.num_classes
        server = Server(params, self.state, classes, forward, stacked.last_layer, auxiliary)
        return self.algorithm.broadcast(server)


def _floats(model: nn.Module) -> list[Tensor]:
    return [*trained_parameters(model).values(), *float_buffers(model).values()]


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _trained(model: nn.Module) -> list[Tensor]:
    return list(trained_parameters(model).values())


def _split(vector: Tensor, model: nn.Module) -> list[Tensor]:
    parts = vector.split([parameter.numel() for parameter in _trained(model)])
    return [part.view_as(parameter).clone() for part, parameter in zip(parts, _trained(model), strict=True)]
