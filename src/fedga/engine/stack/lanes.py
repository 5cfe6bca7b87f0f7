"""Runs as lanes of one engine: what each of them carries from round to round, stacked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedga.algorithms.base import Algorithm
from fedga.data.federation import Federation
from fedga.engine.device_data import DeviceData, auxiliary_samples
from fedga.engine.evaluation.metrics import Metric
from fedga.engine.optimizers import SERVER_RATES, ServerOptimizer, averaging_weight
from fedga.engine.stack.stacked import StackedModel, constants
from fedga.spec.settings import RunSpec

LaneState = Mapping[str, Tensor]  # everything one run needs to go on, by name


@dataclass(frozen=True)
class Lane:
    """One run, ready to train."""

    spec: RunSpec
    federation: Federation
    algorithm: Algorithm
    model: nn.Module  # freshly initialised
    metrics: Mapping[str, Metric] = field(default_factory=dict)  # of the user's own, beside the built-in ones


def stacking_key(lane: Lane) -> tuple[Any, ...]:
    """Lanes with equal keys may share an engine: the same samples, network and shape of a local step."""
    spec = lane.spec
    return (
        (spec.dataset, spec.client_column, spec.label_column, spec.model, spec.norm),
        (lane.federation.num_clients, spec.active, spec.batch_size, spec.local_epochs),
        (spec.optimizer, spec.momentum, spec.evaluate_every, spec.diagnose_every, spec.precision),
        constants(lane.model),
    )


def in_engine_order(lanes: Sequence[Lane]) -> list[Lane]:
    """Lanes with the same algorithm side by side, in the order in which the algorithms first appear."""
    first = {lane.algorithm: position for position, lane in reversed(list(enumerate(lanes)))}
    return sorted(lanes, key=lambda lane: first[lane.algorithm])


@dataclass
class Segment:
    """Neighbouring lanes with the same algorithm, and what that algorithm keeps for them."""

    algorithm: Algorithm
    lanes: slice
    state: dict[str, Tensor]  # on the server, [lanes, ...]
    client_state: dict[str, Tensor]  # [lanes, clients, ...], on the host where the device has no room
    auxiliary: Tensor | None  # [lanes, classes, samples]: places in the training split

    def take(self, lanes: Tensor, clients: Tensor) -> dict[str, Tensor]:
        """What the given clients keep, ``[slots, ...]``, on the device."""
        return {
            name: value[lanes.to(value.device), clients.to(value.device)].to(lanes.device)
            for name, value in self.client_state.items()
        }

    def put(self, lanes: Tensor, clients: Tensor, values: Mapping[str, Tensor]) -> None:
        for name, value in self.client_state.items():
            value[lanes.to(value.device), clients.to(value.device)] = values[name].to(value.device)


class LaneStack:
    """The state of all lanes of an engine as stacked tensors; a checkpoint is a list of `LaneState`."""

    def __init__(
        self, lanes: Sequence[Lane], model: StackedModel, data: DeviceData, states: Sequence[LaneState] | None = None
    ) -> None:
        self.lanes, self.device, self.dtype = list(lanes), data.device, model.dtype
        if states is None:
            states = [first_state(lane, model) for lane in lanes]
        everyone = list(range(len(lanes)))
        self.params, self.buffers = self._stack(states, "params", everyone), self._stack(states, "buffers", everyone)
        self.averaging = [lane for lane in everyone if lanes[lane].spec.server_average]
        self.averaged_params = self._stack(states, "averaged_params", self.averaging)
        self.averaged_buffers = self._stack(states, "averaged_buffers", self.averaging)
        self.average = self.per_lane([lanes[lane].spec.server_average for lane in self.averaging])[:, None]
        self.servers = [self._server(states, kind) for kind in sorted({lane.spec.server for lane in lanes})]
        groups = groupby(everyone, lambda lane: lanes[lane].algorithm)
        self.segments = [self._segment(states, data, list(group)) for _, group in groups]

    def per_lane(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=self.dtype, device=self.device)

    def _stack(self, states: Sequence[LaneState], name: str, which: list[int]) -> Tensor:
        if not which:
            return torch.zeros(0, 0, device=self.device)
        return torch.stack([states[lane][name] for lane in which]).to(self.device)

    def _server(self, states: Sequence[LaneState], kind: str) -> tuple[list[int], ServerOptimizer]:
        which = [lane for lane, value in enumerate(self.lanes) if value.spec.server == kind]
        rates = [self.lanes[lane].spec.server_rate for lane in which]
        rate = self.per_lane([SERVER_RATES[kind] if value is None else value for value in rates])[:, None]
        first, second = self._stack(states, "server_first", which), self._stack(states, "server_second", which)
        return which, ServerOptimizer(kind, rate, first, second)

    def _segment(self, states: Sequence[LaneState], data: DeviceData, which: list[int]) -> Segment:
        def stacked(prefix: str) -> dict[str, Tensor]:
            names = [name for name in states[which[0]] if name.startswith(prefix)]
            return {name.removeprefix(prefix): torch.stack([states[lane][name] for lane in which]) for name in names}

        algorithm, auxiliary = self.lanes[which[0]].algorithm, None
        if algorithm.auxiliary_samples:
            seeds = [self.lanes[lane].spec.seed for lane in which]
            places = [auxiliary_samples(data.dataset, seed, algorithm.auxiliary_samples) for seed in seeds]
            auxiliary = torch.from_numpy(np.stack(places)).to(self.device)
        state = {name: value.to(self.device) for name, value in stacked("server.").items()}
        kept = stacked("client.")
        home = self.device if data.has_room_for(sum(value.nbytes for value in kept.values())) else torch.device("cpu")
        kept = {name: value.to(home) for name, value in kept.items()}
        return Segment(algorithm, slice(which[0], which[-1] + 1), state, kept, auxiliary)

    def advance(self, update: Tensor, buffers: Tensor, round_number: int) -> None:
        """The server's step: ``update [lanes, parameters]`` is the clients' mean update, buffers their mean buffers."""
        for which, optimizer in self.servers:
            self.params[which] = optimizer.step(self.params[which], update[which])
        self.buffers = buffers
        if self.averaging:
            weight = averaging_weight(self.average, round_number)
            self.averaged_params = torch.lerp(self.averaged_params, self.params[self.averaging], weight)
            self.averaged_buffers = torch.lerp(self.averaged_buffers, self.buffers[self.averaging], weight)

    def states(self) -> list[LaneState]:
        """Everything each lane needs to go on from here, as tensors on the host."""
        found: list[dict[str, Tensor]] = [
            {"params": params, "buffers": buffers} for params, buffers in zip(self.params, self.buffers, strict=True)
        ]
        for position, lane in enumerate(self.averaging):
            found[lane]["averaged_params"] = self.averaged_params[position]
            found[lane]["averaged_buffers"] = self.averaged_buffers[position]
        for which, optimizer in self.servers:
            for position, lane in enumerate(which):
                found[lane]["server_first"] = optimizer.first[position]
                found[lane]["server_second"] = optimizer.second[position]
        for segment in self.segments:
            for prefix, tensors in (("server.", segment.state), ("client.", segment.client_state)):
                for name, tensor in tensors.items():
                    for position, lane in enumerate(range(segment.lanes.start, segment.lanes.stop)):
                        found[lane][prefix + name] = tensor[position]
        return [{name: tensor.cpu().clone() for name, tensor in state.items()} for state in found]


def server_state(lane: Lane, model: StackedModel) -> LaneState:
    """What the server of a lane has before its first round."""
    params, buffers = model.flatten(lane.model)
    state = {"params": params, "buffers": buffers}
    if lane.spec.server_average:
        state |= {"averaged_params": params, "averaged_buffers": buffers}
    optimizer = ServerOptimizer.create(lane.spec.server, params.new_zeros(1, 1), params[None])
    state |= {"server_first": optimizer.first[0], "server_second": optimizer.second[0]}
    federation = lane.federation
    first = lane.algorithm.server_state(params, federation.num_clients, federation.dataset.num_classes)
    for name, value in first.items():
        state[f"server.{name}"] = value
    return state


def first_state(lane: Lane, model: StackedModel) -> LaneState:
    """What a lane has before its first round, its clients included."""
    state, num_clients = dict(server_state(lane, model)), lane.federation.num_clients
    for name, value in lane.algorithm.client_state(state["params"]).items():
        state[f"client.{name}"] = value.expand(num_clients, *value.shape)
    return state
