"""The plain loop: one client after another, an ordinary module, an ordinary optimiser, nothing stacked.

It is here to be obviously right; `fedga.engine.engine` is tested against it for every algorithm and model. Both use
the objects of algorithms and rules and the counter streams, and nothing else: schedule, batches, augmentation, dropout,
server step and averaging are written once more, for one client.
"""

import copy
from bisect import bisect_right
from math import ceil, cos, pi
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters

from fedga.algorithms.base import Algorithm, Batch, Client, RoundResult, Server, Setup, Tensors, Trained, overrides
from fedga.algorithms.parameters import Parameters, centralize
from fedga.common import streams
from fedga.engine.device_data import DeviceData
from fedga.engine.reference_dropout import set_dropout_key, with_keyed_dropout
from fedga.engine.stack.lanes import Lane
from fedga.selection import Choice, Selection
from fedga.servers import SERVERS

OWN = ("own params", "own buffers")
Moves = list[tuple[bool, int, int]]  # of every picture: whether it is mirrored, pixels down, pixels right


class Reference:
    """One run. ``model`` is the global model, ``averaged`` its mean over rounds (if the run has server averaging)."""

    def __init__(self, lane: Lane, data: DeviceData) -> None:
        self.lane, self.spec, self.federation, self.dataset = lane, lane.spec, lane.federation, data.dataset
        self.algorithm, self.selection = lane.algorithm, lane.selection
        self.model = with_keyed_dropout(copy.deepcopy(lane.model))
        self.averaged = copy.deepcopy(self.model)
        self.parameters = Parameters(self.model)
        self.round = 0
        params = _vector(self.model)
        self.class_counts = torch.from_numpy(self.federation.class_counts).to(params)
        self.optimizer_state = lane.server.state(params)
        setup = Setup(params, self.federation.num_clients, self.dataset.num_classes, self.parameters)
        self.state: Tensors = self.algorithm.server_state(setup)
        self.select_state: Tensors = self.selection.state(setup)
        travels = set(self.algorithm.travels(self.parameters))
        stays = [name for name in self.parameters.shapes if name not in travels]
        layers = {_layer(name) for name in stays} - {_layer(name) for name in travels}
        self.staying = stays, [name for name in _buffers(self.model) if _layer(name) in layers]
        clients, own = range(self.federation.num_clients), self._own_part(self.model)
        self.kept = {k: self.algorithm.client_state(params) | own for k in clients}

    # --- samples -------------------------------------------------------------------------------------------------

    def _samples(self, places: list[int], moves: Moves | None = None) -> tuple[Tensor, Tensor]:
        """Inputs and targets at some places of the training split."""
        stored, targets = self.dataset.train_inputs[places], self.dataset.train_targets[places]
        if moves is not None:
            stored = np.stack([_moved(picture, *move) for picture, move in zip(stored, moves, strict=True)])
        return self._scaled(torch.from_numpy(stored)), torch.from_numpy(targets).long()

    def _scaled(self, stored: Tensor) -> Tensor:
        train, values = self.dataset.train_inputs, stored.to(next(self.model.parameters()).dtype)
        if not self.spec.standardize:
            return values / float(self.dataset.input_scale) if train.dtype == np.uint8 else values
        axes, shape = (0, *range(2, train.ndim)), (1, -1, *[1] * (train.ndim - 2))
        mean, deviation = train.mean(axes, dtype=np.float64), train.std(axes, dtype=np.float64)
        deviation[deviation == 0] = 1
        centred = values - torch.from_numpy(mean).view(shape)
        return centred.div(torch.from_numpy(deviation).view(shape)).to(values.dtype)

    def _batches(self, k: int) -> list[tuple[Tensor, Tensor]]:
        places, counts = self.federation.client(k).tolist(), self.class_counts[k]
        length, size = len(places), self.spec.batch_size
        if overrides(self.algorithm, "epoch_length"):
            length = max(1, round(float(self.algorithm.epoch_length(counts))))
        chosen: list[list[int]] = []
        for epoch in range(self.spec.local_epochs):
            keys = [streams.key(self.spec.seed, "batches", self.round, k, epoch, i) for i in range(length)]
            rates = torch.where(counts > 0, self.algorithm.class_rates(counts).to(counts), 0.0)
            as_they_occur = torch.allclose(rates * counts.sum(), counts * rates.sum())
            if as_they_occur and length == len(places):
                order = [place for _, place in sorted(zip(keys, places, strict=True))]
            else:
                order = self._drawn_by_class(keys, places, counts)
            chosen += [order[at : at + size] for at in range(0, length, size)]
        if self.spec.stragglers:
            draw = _uniform(streams.key(self.spec.seed, "stragglers", self.round, k))
            if draw < self.spec.stragglers:
                chosen = chosen[: ceil(draw / self.spec.stragglers * len(chosen))]
        return [self._samples(batch, self._moves(k, step, len(batch))) for step, batch in enumerate(chosen)]

    def _drawn_by_class(self, keys: list[int], places: list[int], counts: Tensor) -> list[int]:
        """With replacement: a class by its rate, then one of its samples."""
        rates = torch.where(counts > 0, self.algorithm.class_rates(counts).double(), 0.0)
        edges = (rates.cumsum(0) / rates.sum()).tolist()
        last, targets = int(rates.nonzero().max()), self.dataset.train_targets
        of_class = {c: [place for place in places if targets[place] == c] for c in range(len(counts))}
        drawn = []
        for key in keys:
            mine = of_class[min(bisect_right(edges, _uniform(key)), last)]
            drawn.append(mine[int(_uniform(int(streams.fold(torch.tensor(key), torch.tensor(0)))) * len(mine))])
        return drawn

    def _moves(self, k: int, step: int, number: int) -> Moves | None:
        """Whether each picture of a batch is mirrored, and how far it moves down and right."""
        augmentation = self.lane.augmentation
        if not augmentation:
            return None
        span, moves = 2 * augmentation.shift + 1, []
        for i in range(number):
            word = streams.key(self.spec.seed, "augment", self.round, k, step, i) % 2**64
            down, right = (word >> 1) % 2**31 % span, (word >> 32) % 2**31 % span
            mirrored = augmentation.mirror and word % 2 == 1
            moves.append((mirrored, down - augmentation.shift, right - augmentation.shift))
        return moves

    # --- a round -------------------------------------------------------------------------------------------------

    def run_round(self) -> None:
        algorithm = self.algorithm
        self.round += 1
        start, before = _vector(self.model), copy.deepcopy(_buffers(self.model))
        received = algorithm.broadcast(self._server(start))
        survey = self._survey(algorithm, received) if algorithm.evaluates_all_clients else None
        clients = self._select(self._survey(Algorithm(), received) if self.selection.needs_losses else None)
        uniform = self.spec.aggregation == "uniform"
        sizes = start.new_tensor([1.0 if uniform else float(self.federation.sizes[k]) for k in clients.tolist()])
        shares = sizes / sizes.sum()
        weights = algorithm.weights(self.state, clients, shares)

        returned, models, reports = self._train(clients, received)
        update = sum(weight * (_vector(local) - start) for weight, local in zip(weights, models, strict=True))
        assert isinstance(update, Tensor)
        stays = self.parameters.mask(self.staying[0])
        update = torch.where(stays, 0.0, update)
        seen = {name: torch.stack([report[name] for report in reports]) for name in reports[0]}
        sent = torch.stack([torch.where(stays, start, _vector(local)) for local in returned])
        of_algorithm, of_rule = (
            RoundResult(
                self.round, clients, shares, update, seen | each.inspect(self._server(start, each), sent), survey
            )
            for each in (algorithm, self.selection)
        )
        self.state = algorithm.update_server(self.state, of_algorithm)
        self.select_state = self.selection.update(self.select_state, of_rule)
        after = algorithm.aggregate(self._server(start), of_algorithm, lambda update: self._step(start, update))
        vector_to_parameters(after, _trained(self.model))
        with torch.no_grad():
            pairs = list(zip(shares, models, strict=True))
            for name, value in _buffers(self.model).items():
                if name not in self.staying[1]:
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

    def _draws(self) -> Tensor:
        keys = [streams.key(self.spec.seed, "clients", self.round, k) for k in range(self.federation.num_clients)]
        return streams.uniform(torch.tensor(keys))

    def _select(self, losses: Tensor | None) -> Tensor:
        draws = self._draws()
        there = self.lane.availability.present(self.spec.seed, self.round, len(draws))
        legacy = getattr(self.algorithm, "select", None)
        if legacy is not None and type(self.selection).__name__ == "Uniform":
            chosen = legacy(self.state, torch.where(there, draws, 2.0), self.spec.active)
        else:
            key = torch.tensor(streams.key(self.spec.seed, "selection"))
            given = (self.select_state, draws, there, self.spec.active, self.class_counts, losses, key)
            chosen = self.selection.select(Choice(self.round, *given))
        return torch.stack([client for client in chosen if there[client]])

    def _train(
        self, clients: Tensor, received: Tensors
    ) -> tuple[list[nn.Module], list[nn.Module], list[dict[str, Tensor]]]:
        """Every client's model, the one that counts for it (of a group, in which clients train in turn, the last one),
        and its report."""
        groups = list(range(len(clients)))
        if overrides(self.algorithm, "groups"):
            server = self._server(_vector(self.model))
            groups = self.algorithm.groups(server, clients, self.class_counts[clients]).tolist()
        newest: dict[int, nn.Module] = {}
        done: dict[int, tuple[nn.Module, dict[str, Tensor]]] = {}
        together, draws = list(zip(clients.tolist(), groups, strict=True)), self._draws()
        for k, group in sorted(together, key=lambda pair: draws[pair[0]].item()):
            done[k] = self._train_client(k, received, newest.get(group, self.model))
            newest[group] = done[k][0]
        models, reports = zip(*(done[k] for k, _ in together), strict=True)
        return list(models), [newest[group] for group in groups], list(reports)

    def _train_client(self, k: int, received: Tensors, model: nn.Module) -> tuple[nn.Module, dict[str, Tensor]]:
        spec, algorithm = self.spec, self.algorithm
        received_model, local = self._with_own_part(model, k).eval(), self._with_own_part(model, k).train()
        client, lr = self._client(k, local, received), self._rate()
        vector_to_parameters(algorithm.start(client).clone(), _trained(local))
        optimizer: torch.optim.Optimizer = torch.optim.Adam(_trained(local), lr, weight_decay=spec.weight_decay)
        if spec.optimizer == "sgd":
            optimizer = torch.optim.SGD(_trained(local), lr, spec.momentum, weight_decay=spec.weight_decay)
        batches = self._batches(k)
        for step, batch in enumerate(batches):
            drawn = streams.key(spec.seed, "dropout", self.round, k, step)
            follow = self._gradient(local, received_model, batch, client, drawn)
            for parameter, part in zip(_trained(local), self.parameters.views(follow).values(), strict=True):
                parameter.grad = part.clone()
            if spec.clip:
                clip_grad_norm_(_trained(local), spec.clip)
            optimizer.step()
        report, kept = algorithm.report(self._after_training(client, k, local, len(batches)))
        self.kept[k] = kept | self._own_part(local)
        return local, report

    def _client(self, k: int, model: nn.Module, received: Tensors) -> Client:
        state = {key: value for key, value in self.kept[k].items() if key not in OWN}
        at = (torch.tensor(float(self.round)), torch.tensor(self._rate()), self.parameters)
        return Client(_vector(model), state, received, self.class_counts[k], *at)

    def _after_training(self, client: Client, k: int, model: nn.Module, steps: int) -> Trained:
        sums = self._class_sums(model, k)
        return Trained(**vars(client), params=_vector(model), steps=torch.tensor(float(steps)), **sums)

    def _rate(self) -> float:
        done = (self.round - 1) / self.spec.rounds
        schedules = {"constant": 1.0, "cosine": (1 + cos(pi * done)) / 2, "exponential": 0.01**done}
        return self.spec.lr * schedules[self.spec.lr_schedule]

    def _own(self, model: nn.Module) -> dict[str, list[Tensor]]:
        """The tensors of a model that stay at a client."""
        if not overrides(self.algorithm, "travels"):
            return {}
        named = dict(model.named_parameters()) | _buffers(model)
        return {key: [named[name] for name in names] for key, names in zip(OWN, self.staying, strict=True)}

    def _with_own_part(self, model: nn.Module, k: int) -> nn.Module:
        copied = copy.deepcopy(model)
        for key, tensors in self._own(copied).items():
            vector_to_parameters(self.kept[k][key].clone(), tensors)
        return copied

    def _own_part(self, model: nn.Module) -> dict[str, Tensor]:
        return {key: _flat(tensors) for key, tensors in self._own(model).items()}

    def _gradient(
        self, local: nn.Module, received_model: nn.Module, samples: tuple[Tensor, Tensor], client: Client, key: int
    ) -> Tensor:
        """What a step follows: the loss's gradient as the algorithm takes and corrects it, centralised if asked."""
        algorithm, calls, (inputs, targets) = self.algorithm, 0, samples
        untouched = copy.deepcopy(local) if overrides(algorithm, "gradient") else local
        with torch.no_grad():
            teachers: dict[str, nn.Module] = {"global": received_model} if algorithm.needs_global_logits else {}
            if overrides(algorithm, "earlier"):
                teachers["earlier"] = copy.deepcopy(received_model)
                vector_to_parameters(algorithm.earlier(client).clone(), _trained(teachers["earlier"]))
            seen: dict[str, Any] = {}
            for whose, teacher in teachers.items():
                seen[f"{whose}_logits"], features = self._outputs(teacher, inputs, client.received)
                seen[f"{whose}_features"] = features if algorithm.needs_features else None

        def at(params: Tensor) -> Tensor:
            nonlocal calls
            there = copy.deepcopy(untouched) if calls else local  # statistics move with the first pass alone
            calls += 1
            kept = _vector(local)
            vector_to_parameters(params.clone(), _trained(there))
            set_dropout_key(there, key)
            logits, features = self._outputs(there, inputs, client.received)
            given = (logits, targets, logits.new_ones(len(targets)), client.class_counts)
            asked = features if algorithm.needs_features else None
            batch = Batch(*given, received=client.received, features=asked, round=client.round, **seen)
            loss = algorithm.local_loss(batch).mean()
            penalty = algorithm.penalty(parameters_to_vector(_trained(there)), client.global_params)
            there.zero_grad()
            (loss + penalty).backward()
            found = _flat([torch.zeros_like(each) if each.grad is None else each.grad for each in _trained(there)])
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
    def _class_sums(self, model: nn.Module, k: int) -> dict[str, Any]:
        if not self.algorithm.needs_class_features:
            return {}
        inputs, labels = self._samples(self.federation.client(k).tolist())
        received = self.algorithm.broadcast(self._server(_vector(model)))
        _, features = self._outputs(copy.deepcopy(model).eval(), inputs, received)
        assert features is not None
        features = self.algorithm.embed(features)
        sums = features.new_zeros(self.dataset.num_classes, features.shape[1]).index_add(0, labels, features)
        found = {"class_features": sums}
        if self.algorithm.needs_second_moment:
            found["second_moment"] = features.T @ features
        if self.algorithm.needs_class_moments:
            by_class = [features[labels == c] for c in range(self.dataset.num_classes)]
            found["class_moments"] = torch.stack([each.T @ each for each in by_class])
        return found

    def _survey(self, asking: Algorithm, received: Tensors) -> Tensor:
        values, model = [], copy.deepcopy(self.model).eval()
        for k in range(self.federation.num_clients):
            inputs, targets = self._samples(self.federation.client(k).tolist())
            with torch.no_grad():
                logits, _ = self._outputs(model, inputs, received)
            batch = Batch(logits, targets, torch.ones(len(targets)), torch.full_like(logits[0], torch.nan))
            values.append(asking.survey(batch).mean())
        return torch.stack(values)

    def _server(self, params: Tensor, part: Algorithm | Selection | None = None) -> Server:
        auxiliary, number = None, (part or self.algorithm).auxiliary_samples
        if number:
            auxiliary = torch.stack([self._samples(row)[0] for row in self._auxiliary_places(number)])
        model = copy.deepcopy(self.model).eval()

        def forward(params: Tensor, inputs: Tensor) -> Tensor:
            return functional_call(model, self.parameters.views(params), (inputs,))

        classes = self.dataset.num_classes
        return Server(params, self.state, classes, forward, self.parameters, auxiliary, self.round)

    def _auxiliary_places(self, number: int) -> list[list[int]]:
        generator = streams.numpy_generator(self.spec.seed, "auxiliary")
        held_out = set() if self.federation.held_out is None else set(self.federation.held_out.tolist())
        by_class: list[list[int]] = [[] for _ in range(self.dataset.num_classes)]
        for place, target in enumerate(self.dataset.train_targets.tolist()):
            if place not in held_out:
                by_class[target].append(place)
        return [generator.choice(places, number, replace=len(places) < number).tolist() for places in by_class]

    def _step(self, params: Tensor, update: Tensor) -> Tensor:
        """The server's step: of our optimisers by hand, as Reddi et al. 2021 write them; of others by their object."""
        spec, state, kind = self.spec, self.optimizer_state, self.lane.server
        rate = kind.default_rate if spec.server_rate is None else spec.server_rate
        if spec.server not in SERVERS:
            moved, self.optimizer_state = kind.step(params, update, state, torch.tensor(rate))
            return moved
        if spec.server == "sgd":
            return params + rate * update
        if spec.server == "momentum":
            state["first"] = 0.9 * state["first"] + update
            return params + rate * state["first"]
        if spec.server == "adagrad":
            state["second"] = state["second"] + update**2
            return params + rate * update / (state["second"].sqrt() + 1e-3)
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
            model = self._with_own_part(self.model, k)
            trained = self._after_training(self._client(k, model, received), k, model, len(self._batches(k)))
            reports.append(self.algorithm.final_report(trained))
        stacked = {name: torch.stack([report[name] for report in reports]) for name in reports[0]}
        vector_to_parameters(self.algorithm.finish(server, stacked), _trained(self.model))


# --- small parts -----------------------------------------------------------------------------------------------------


def _uniform(key: int) -> float:
    return (key % 2**64 >> 11) * 2.0**-53


def _moved(picture: np.ndarray, mirrored: bool, down: int, right: int) -> np.ndarray:
    """A picture ``[channels, height, width]`` moved, zeros coming in, and then mirrored."""
    padded = np.pad(picture, ((0, 0), (max(down, 0), max(-down, 0)), (max(right, 0), max(-right, 0))))
    height, width = picture.shape[1:]
    top, left = max(-down, 0), max(-right, 0)
    moved = padded[:, top : top + height, left : left + width]
    return moved[:, :, ::-1] if mirrored else moved


def _layer(name: str) -> str:
    return name.rpartition(".")[0]


def _trained(model: nn.Module) -> list[Any]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _vector(model: nn.Module) -> Tensor:
    return _flat(_trained(model))


def _buffers(model: nn.Module) -> dict[str, Tensor]:
    """Running statistics and frozen parameters: what a copy has of its own besides what is trained."""
    frozen = {name: parameter for name, parameter in model.named_parameters() if not parameter.requires_grad}
    return frozen | {name: buffer for name, buffer in model.named_buffers() if buffer.is_floating_point()}


def _floats(model: nn.Module) -> list[Tensor]:
    return [*_trained(model), *_buffers(model).values()]


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors]) if tensors else torch.zeros(0)
