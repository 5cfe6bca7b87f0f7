"""The plain loop: one client after another, an ordinary module, an ordinary optimiser, nothing stacked.

It is here to be obviously right; `fedga.engine.engine` is tested against it for every algorithm and model. Both use
the objects of algorithms and rules and the counter streams, and nothing else: schedule, batches, augmentation, dropout,
server step and averaging are written once more, for one client.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from math import ceil, cos, pi
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters

from fedga.algorithms.base import Batch, Client, RoundResult, Server, Setup, Tensors, Trained, overrides
from fedga.algorithms.parameters import Parameters, centralize
from fedga.common import streams
from fedga.selection import Choice
from fedga.servers import SERVERS

if TYPE_CHECKING:
    from fedga.engine.device_data import DeviceData
    from fedga.engine.stack.lanes import Lane

OWN = ("own params", "own buffers")


class Reference:
    """One run. ``model`` is the global model, ``averaged`` its mean over rounds (if the run has server averaging)."""

    def __init__(self, lane: Lane, data: DeviceData) -> None:
        self.spec, self.federation, self.algorithm, self.selection = (
            lane.spec,
            lane.federation,
            lane.algorithm,
            lane.selection,
        )
        self.server_optimizer, self.availability, self.augmentation = lane.server, lane.availability, lane.augmentation
        self.dataset = data.dataset
        self.model = _with_keyed_dropout(copy.deepcopy(lane.model))
        self.averaged = copy.deepcopy(self.model)
        self.parameters = Parameters(self.model)
        self.round = 0
        params = _vector(self.model)
        self.optimizer_state = self.server_optimizer.state(params)
        setup = Setup(params, self.federation.num_clients, self.dataset.num_classes, self.parameters)
        self.state: Tensors = self.algorithm.server_state(setup)
        self.select_state: Tensors = self.selection.state(setup)
        travels = set(self.algorithm.travels(self.parameters))
        self.stays = [name for name in self.parameters.shapes if name not in travels]
        layers = {_layer(name) for name in self.stays} - {_layer(name) for name in travels}
        self.buffers_stay = [name for name in _buffers(self.model) if _layer(name) in layers]
        self.kept = {k: self._first_state(params) for k in range(self.federation.num_clients)}

    def _first_state(self, params: Tensor) -> dict[str, Tensor]:
        state = dict(self.algorithm.client_state(params))
        if overrides(self.algorithm, "travels"):
            named, buffers = self.parameters.views(params), _buffers(self.model)
            mine = ([named[name] for name in self.stays], [buffers[name] for name in self.buffers_stay])
            state |= {key: _flat(tensors) for key, tensors in zip(OWN, mine, strict=True)}
        return state

    # --- samples -------------------------------------------------------------------------------------------------

    def _inputs(self, places: list[int], moves: list[tuple[bool, int, int]] | None = None) -> Tensor:
        stored = self.dataset.train_inputs[places]
        if moves is not None:
            stored = np.stack([_moved(picture, *move) for picture, move in zip(stored, moves, strict=True)])
        return self._scaled(stored)

    def _scaled(self, stored: np.ndarray) -> Tensor:
        train = self.dataset.train_inputs
        values = torch.from_numpy(stored).to(next(self.model.parameters()).dtype)
        if not self.spec.standardize:
            return values / float(self.dataset.input_scale) if train.dtype == np.uint8 else values
        axes = (0, *range(2, train.ndim))
        mean, deviation = train.mean(axes, dtype=np.float64), train.std(axes, dtype=np.float64)
        deviation[deviation == 0] = 1
        shape = (1, -1, *[1] * (train.ndim - 2))
        return (
            (values - torch.from_numpy(mean).view(shape)).div(torch.from_numpy(deviation).view(shape)).to(values.dtype)
        )

    def _batches(self, k: int) -> list[tuple[Tensor, Tensor]]:
        places = self.federation.client(k).tolist()
        counts = torch.from_numpy(self.federation.class_counts[k]).float()
        length, size = len(places), self.spec.batch_size
        if overrides(self.algorithm, "epoch_length"):
            length = max(1, round(float(self.algorithm.epoch_length(counts))))
        chosen: list[list[int]] = []
        for epoch in range(self.spec.local_epochs):
            keys = [streams.key(self.spec.seed, "batches", self.round, k, epoch, i) for i in range(length)]
            rates = self.algorithm.class_rates(counts)
            as_they_occur = torch.equal(rates * counts.sum(), counts * rates.sum()) and length == len(places)
            if not as_they_occur:
                order = self._drawn_by_class(keys, places, counts)
            else:
                order = [place for _, place in sorted(zip(keys, places, strict=True))]
            chosen += [order[at : at + size] for at in range(0, length, size)]
        if self.spec.stragglers:
            draw = _uniform(streams.key(self.spec.seed, "stragglers", self.round, k))
            if draw < self.spec.stragglers:
                chosen = chosen[: ceil(draw / self.spec.stragglers * len(chosen))]
        targets = self.dataset.train_targets
        return [
            (self._inputs(batch, self._moves(k, step, len(batch))), torch.from_numpy(targets[batch]).long())
            for step, batch in enumerate(chosen)
        ]

    def _drawn_by_class(self, keys: list[int], places: list[int], counts: Tensor) -> list[int]:
        """With replacement: a class by its rate, then one of its samples."""
        rates = torch.where(counts > 0, self.algorithm.class_rates(counts).double(), 0.0)
        edges = (rates.cumsum(0) / rates.sum()).tolist()
        last = int(rates.nonzero().max())
        targets = self.dataset.train_targets
        of_class = {c: [place for place in places if targets[place] == c] for c in range(len(counts))}
        drawn = []
        for key in keys:
            mine = of_class[min(bisect_right(edges, _uniform(key)), last)]
            drawn.append(mine[int(_uniform(int(streams.fold(torch.tensor(key), torch.tensor(0)))) * len(mine))])
        return drawn

    def _moves(self, k: int, step: int, number: int) -> list[tuple[bool, int, int]] | None:
        """Whether each picture of a batch is mirrored, and how far it moves down and right."""
        if not self.augmentation:
            return None
        span, moves = 2 * self.augmentation.shift + 1, []
        for i in range(number):
            word = streams.key(self.spec.seed, "augment", self.round, k, step, i) % 2**64
            down, right = (word >> 1) % 2**31 % span, (word >> 32) % 2**31 % span
            mirrored = self.augmentation.mirror and word % 2 == 1
            moves.append((mirrored, down - self.augmentation.shift, right - self.augmentation.shift))
        return moves

    # --- a round -------------------------------------------------------------------------------------------------

    def run_round(self) -> None:
        algorithm = self.algorithm
        self.round += 1
        start = _vector(self.model)
        before = {name: value.clone() for name, value in _buffers(self.model).items()}
        clients = self._select()
        survey = self._survey() if algorithm.evaluates_all_clients else None
        received = algorithm.broadcast(self._server(start))
        sizes = start.new_tensor([float(self.federation.sizes[k]) for k in clients.tolist()])
        sizes = torch.ones_like(sizes) if self.spec.aggregation == "uniform" else sizes
        shares = sizes / sizes.sum()
        weights = algorithm.weights(self.state, clients, shares)

        models, reports = self._train(clients, received)
        update = sum(weight * (_vector(local) - start) for weight, local in zip(weights, models, strict=True))
        assert isinstance(update, Tensor)
        update = torch.where(self.parameters.mask(self.stays), 0.0, update)
        seen = {name: torch.stack([report[name] for report in reports]) for name in reports[0]}
        returned = torch.stack([_vector(local) for local in models])
        server = self._server(start)
        of_algorithm = RoundResult(
            self.round, clients, shares, update, seen | algorithm.inspect(server, returned), survey
        )
        of_rule = RoundResult(
            self.round, clients, shares, update, seen | self.selection.inspect(server, returned), survey
        )
        self.state = algorithm.update_server(self.state, of_algorithm)
        self.select_state = self.selection.update(self.select_state, of_rule)
        after = algorithm.aggregate(self._server(start), of_algorithm, lambda update: self._step(start, update))
        vector_to_parameters(after, _trained(self.model))
        with torch.no_grad():
            pairs = list(zip(shares, models, strict=True))
            for name, value in _buffers(self.model).items():
                if name not in self.buffers_stay:
                    moved = [share * (_buffers(local)[name] - before[name]) for share, local in pairs]
                    value.copy_(before[name] + torch.stack(moved).sum(0))
        if self.spec.server_average:
            # An exponential mean whose start is corrected: after round 1 it is the last model.
            weight = self.spec.server_average / (1 - (1 - self.spec.server_average) ** self.round)
            with torch.no_grad():
                for old, new in zip(_floats(self.averaged), _floats(self.model), strict=True):
                    old += weight * (new - old)
        if algorithm.finishes and self.round == self.spec.rounds:
            self._finish()

    def _select(self) -> Tensor:
        keys = [streams.key(self.spec.seed, "clients", self.round, k) for k in range(self.federation.num_clients)]
        draws = streams.uniform(torch.tensor(keys))
        there = self.availability.present(self.spec.seed, self.round, len(keys))
        legacy = getattr(self.algorithm, "select", None)
        if legacy is not None and type(self.selection).__name__ == "Uniform":
            chosen = legacy(self.state, torch.where(there, draws, 2.0), self.spec.active)
        else:
            counts = torch.from_numpy(self.federation.class_counts).float()
            choice = Choice(self.round, self.select_state, draws, there, self.spec.active, counts)
            chosen = self.selection.select(choice)
        return torch.stack([client for client in chosen if there[client]])

    def _train(self, clients: Tensor, received: Tensors) -> tuple[list[nn.Module], list[dict[str, Tensor]]]:
        """The model that counts for every client, and its report; members of a group train one after another."""
        groups = list(range(len(clients)))
        if overrides(self.algorithm, "groups"):
            counts = torch.from_numpy(self.federation.class_counts).float()[clients]
            groups = self.algorithm.groups(self._server(_vector(self.model)), clients, counts).tolist()
        newest: dict[int, nn.Module] = {}
        reports = []
        for k, group in zip(clients.tolist(), groups, strict=True):
            newest[group], report = self._train_client(k, received, newest.get(group, self.model))
            reports.append(report)
        return [newest[group] for group in groups], reports

    def _train_client(self, k: int, received: Tensors, model: nn.Module) -> tuple[nn.Module, dict[str, Tensor]]:
        spec, algorithm = self.spec, self.algorithm
        received_model, local, state = copy.deepcopy(model).eval(), copy.deepcopy(model).train(), dict(self.kept[k])
        for one in (received_model, local):
            self._fill_in_own(one, self.kept[k])
        for key in OWN:
            state.pop(key, None)
        lr = spec.lr * _schedule(spec.lr_schedule, (self.round - 1) / spec.rounds)
        counts, begin = torch.from_numpy(self.federation.class_counts[k]).float(), _vector(local)
        at = (torch.tensor(float(self.round)), torch.tensor(lr))
        client = Client(begin, state, received, counts, *at, self.parameters)
        vector_to_parameters(algorithm.start(client), _trained(local))
        optimizer: torch.optim.Optimizer = torch.optim.Adam(_trained(local), lr, weight_decay=spec.weight_decay)
        if spec.optimizer == "sgd":
            optimizer = torch.optim.SGD(_trained(local), lr, spec.momentum, weight_decay=spec.weight_decay)
        steps = 0
        for inputs, targets in self._batches(k):
            _set_dropout_key(local, streams.key(spec.seed, "dropout", self.round, k, steps))
            follow = self._gradient(local, received_model, inputs, targets, client)
            for parameter, part in zip(_trained(local), self.parameters.views(follow).values(), strict=True):
                parameter.grad = part.clone()
            if spec.clip:
                clip_grad_norm_(_trained(local), spec.clip)
            optimizer.step()
            steps += 1
        sums = self._class_sums(local, k) if algorithm.needs_class_features else {}
        trained = Trained(
            begin, state, received, counts, *at, self.parameters, _vector(local), torch.tensor(float(steps)), **sums
        )
        report, kept = algorithm.report(trained)
        self.kept[k] = kept | self._own_part(local)
        return local, report

    def _fill_in_own(self, model: nn.Module, kept: Tensors) -> None:
        if not overrides(self.algorithm, "travels"):
            return
        named = dict(model.named_parameters()) | _buffers(model)
        with torch.no_grad():
            for key, names in zip(OWN, (self.stays, self.buffers_stay), strict=True):
                parts = kept[key].split([named[name].numel() for name in names])
                for name, part in zip(names, parts, strict=True):
                    named[name].copy_(part.view_as(named[name]))

    def _own_part(self, model: nn.Module) -> dict[str, Tensor]:
        if not overrides(self.algorithm, "travels"):
            return {}
        named = dict(model.named_parameters()) | _buffers(model)
        mine = ([named[name] for name in names] for names in (self.stays, self.buffers_stay))
        return {key: _flat(tensors) for key, tensors in zip(OWN, mine, strict=True)}

    def _gradient(
        self, local: nn.Module, received_model: nn.Module, inputs: Tensor, targets: Tensor, client: Client
    ) -> Tensor:
        """What a step follows: the loss's gradient as the algorithm takes and corrects it, centralised if asked."""
        algorithm, calls = self.algorithm, 0
        with torch.no_grad():
            teacher: tuple[Tensor | None, Tensor | None] = (None, None)
            if algorithm.needs_global_logits:
                teacher = self._outputs(received_model, inputs, client.received)
        key = _dropout_key(local)

        def at(params: Tensor) -> Tensor:
            nonlocal calls
            there = copy.deepcopy(local) if calls else local  # statistics move with the first pass alone
            calls += 1
            kept = _vector(local)
            vector_to_parameters(params.clone(), _trained(there))
            _set_dropout_key(there, key)
            logits, features = self._outputs(there, inputs, client.received)
            batch = Batch(
                logits,
                targets,
                torch.ones(len(targets)),
                client.class_counts,
                teacher[0],
                client.received,
                features if algorithm.needs_features else None,
                teacher[1] if algorithm.needs_features else None,
                client.round,
            )
            loss = algorithm.local_loss(batch).mean()
            penalty = algorithm.penalty(parameters_to_vector(_trained(there)), client.global_params)
            there.zero_grad()
            (loss if penalty is None else loss + penalty).backward()
            found = parameters_to_vector([_gradient_of(parameter) for parameter in _trained(there)]).detach().clone()
            vector_to_parameters(kept, _trained(local))
            return found

        gradient = algorithm.correct(algorithm.gradient(at, _vector(local), client), client)
        return centralize(self.parameters, gradient) if self.spec.centralize else gradient

    def _outputs(self, model: nn.Module, inputs: Tensor, received: Tensors) -> tuple[Tensor, Tensor | None]:
        """Logits and features; the algorithm's head where it has one."""
        algorithm = self.algorithm
        own_head = overrides(algorithm, "head")
        if not (own_head or algorithm.needs_features or algorithm.needs_class_features):
            return model(inputs), None
        seen: list[Tensor] = []
        layer = model.get_submodule(self.parameters.head_layer or "")
        handle = layer.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
        logits = model(inputs)
        handle.remove()
        if own_head:
            named = {name: value for name, value in model.named_parameters() if value.requires_grad}
            logits = algorithm.head(seen[0], named, received)
        return logits, seen[0]

    @torch.no_grad()
    def _class_sums(self, model: nn.Module, k: int) -> dict[str, Tensor]:
        places = self.federation.client(k).tolist()
        seen = copy.deepcopy(model).eval()
        _, features = self._outputs(seen, self._inputs(places), self.algorithm.broadcast(self._server(_vector(model))))
        assert features is not None
        features = self.algorithm.embed(features)
        labels = torch.from_numpy(self.dataset.train_targets[places]).long()
        sums = features.new_zeros(self.dataset.num_classes, features.shape[1]).index_add(0, labels, features)
        found = {"class_features": sums}
        return found | ({"second_moment": features.T @ features} if self.algorithm.needs_second_moment else {})

    def _survey(self) -> Tensor:
        values, model = [], copy.deepcopy(self.model).eval()
        for k in range(self.federation.num_clients):
            places = self.federation.client(k).tolist()
            with torch.no_grad():
                logits = model(self._inputs(places))
            targets = torch.from_numpy(self.dataset.train_targets[places]).long()
            batch = Batch(logits, targets, torch.ones(len(targets)), torch.zeros(logits.shape[-1]))
            values.append(self.algorithm.survey(batch).mean())
        return torch.stack(values)

    def _server(self, params: Tensor) -> Server:
        auxiliary = None
        if self.algorithm.auxiliary_samples:
            auxiliary = torch.stack([self._inputs(row) for row in self._auxiliary_places()])
        model = copy.deepcopy(self.model).eval()

        def forward(params: Tensor, inputs: Tensor) -> Tensor:
            return functional_call(model, self.parameters.views(params), (inputs,))

        classes = self.dataset.num_classes
        return Server(params, self.state, classes, forward, self.parameters, auxiliary, self.round)

    def _auxiliary_places(self) -> list[list[int]]:
        generator, number = streams.numpy_generator(self.spec.seed, "auxiliary"), self.algorithm.auxiliary_samples
        rows = []
        for label in range(self.dataset.num_classes):
            places = np.flatnonzero(self.dataset.train_targets == label)
            rows.append(generator.choice(places, number, replace=len(places) < number).tolist())
        return rows

    def _step(self, params: Tensor, update: Tensor) -> Tensor:
        """The server's step: of our optimisers by hand, as Reddi et al. 2021 write them; of others by their object."""
        spec, state, kind = self.spec, self.optimizer_state, self.server_optimizer
        rate = kind.default_rate if spec.server_rate is None else spec.server_rate
        if spec.server not in SERVERS:
            moved, self.optimizer_state = kind.step(params, update, state, torch.tensor(rate))
            return moved
        if spec.server == "sgd":
            return params + rate * update
        if spec.server == "momentum":
            state["first"] = 0.9 * state["first"] + update
            return params + rate * state["first"]
        state["first"] = 0.9 * state["first"] + 0.1 * update
        if spec.server == "adam":
            state["second"] = 0.99 * state["second"] + 0.01 * update**2
        else:
            state["second"] = state["second"] - 0.01 * update**2 * torch.sign(state["second"] - update**2)
        return params + rate * state["first"] / (state["second"].sqrt() + 1e-3)

    def _finish(self) -> None:
        """The exchange after the last round: every client reports on the final model."""
        params, reports = _vector(self.model), []
        server = self._server(params)
        received = self.algorithm.broadcast(server)
        for k in range(self.federation.num_clients):
            counts = torch.from_numpy(self.federation.class_counts[k]).float()
            sums: dict[str, Any] = self._class_sums(self.model, k) if self.algorithm.needs_class_features else {}
            at = (torch.tensor(float(self.round)), torch.tensor(0.0))
            client = Client(params, self.kept[k], received, counts, *at, self.parameters)
            given: dict[str, Any] = {name: getattr(client, name) for name in Client.__dataclass_fields__}
            steps = torch.tensor(float(len(self._batches(k))))
            reports.append(self.algorithm.final_report(Trained(**given, params=params, steps=steps, **sums)))
        stacked = {name: torch.stack([report[name] for report in reports]) for name in reports[0]}
        vector_to_parameters(self.algorithm.finish(server, stacked), _trained(self.model))


# --- small parts -----------------------------------------------------------------------------------------------------


def _schedule(kind: str, done: float) -> float:
    return {"constant": 1.0, "cosine": (1 + cos(pi * done)) / 2, "exponential": 0.01**done}[kind]


def _uniform(key: int) -> float:
    return (key % 2**64 >> 11) * 2.0**-53


def _moved(picture: np.ndarray, mirrored: bool, down: int, right: int) -> np.ndarray:
    """A picture ``[channels, height, width]`` moved, zeros coming in, and then mirrored."""
    moved = np.zeros_like(picture)
    height, width = picture.shape[1:]
    rows, columns = slice(max(down, 0), height + min(down, 0)), slice(max(right, 0), width + min(right, 0))
    from_rows = slice(max(-down, 0), height + min(-down, 0))
    from_columns = slice(max(-right, 0), width + min(-right, 0))
    moved[:, rows, columns] = picture[:, from_rows, from_columns]
    return moved[:, :, ::-1] if mirrored else moved


class _Dropout(nn.Module):
    """Dropout that draws from the counter stream of a batch: by layer, call and position."""

    def __init__(self, probability: float, whole_channels: bool, layer: int) -> None:
        super().__init__()
        self.probability, self.whole_channels, self.layer, self.key, self.calls = (
            probability,
            whole_channels,
            layer,
            0,
            0,
        )

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.training or self.probability == 0:
            return inputs
        if self.probability == 1:
            return inputs * 0
        layer = self.layer + (self.calls << 32)
        self.calls += 1
        shape = inputs.shape[:2] + (1,) * (inputs.dim() - 2) if self.whole_channels else inputs.shape
        key = streams.fold(torch.tensor(self.key), torch.tensor(layer))
        draws = streams.uniform(streams.fold(key, torch.arange(shape.numel()).view(shape)))
        return torch.where(draws < self.probability, 0.0, inputs / (1 - self.probability))


def _with_keyed_dropout(model: nn.Module) -> nn.Module:
    made: dict[int, nn.Module] = {}
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if isinstance(child, (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)):
                if id(child) not in made:
                    made[id(child)] = _Dropout(child.p, not isinstance(child, nn.Dropout), len(made))
                setattr(parent, name, made[id(child)])
    return model


def _set_dropout_key(model: nn.Module, key: int) -> None:
    for module in model.modules():
        if isinstance(module, _Dropout):
            module.key, module.calls = key, 0


def _dropout_key(model: nn.Module) -> int:
    return next((module.key for module in model.modules() if isinstance(module, _Dropout)), 0)


def _layer(name: str) -> str:
    return name.rpartition(".")[0]


def _trained(model: nn.Module) -> list[Any]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _vector(model: nn.Module) -> Tensor:
    return parameters_to_vector(_trained(model)).detach().clone()


def _buffers(model: nn.Module) -> dict[str, Tensor]:
    """Running statistics and frozen parameters: what a copy has of its own besides what is trained."""
    frozen = {name: parameter for name, parameter in model.named_parameters() if not parameter.requires_grad}
    return frozen | {name: buffer for name, buffer in model.named_buffers() if buffer.is_floating_point()}


def _floats(model: nn.Module) -> list[Tensor]:
    return [*_trained(model), *_buffers(model).values()]


def _gradient_of(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors]) if tensors else torch.zeros(0)
