"""Runs as lanes of one engine: what each of them carries from round to round, stacked."""

import copy
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.modules.batchnorm import _BatchNorm

from fedga.algorithms.base import Algorithm, Setup, overrides, uses_features
from fedga.algorithms.parameters import Parameters
from fedga.data.federation import Federation
from fedga.engine.device_data import DeviceData, auxiliary_samples
from fedga.engine.evaluation.metrics import Metric
from fedga.engine.optimizers import averaging_weight
from fedga.engine.stack.layers import FrozenBatchNorm
from fedga.engine.stack.stacked import StackedModel
from fedga.errors import FedGAError
from fedga.selection import Selection, make_selection
from fedga.selection.availability import Availability, read_availability
from fedga.servers import ServerOptimizer, make_server
from fedga.spec.augmentation import Augmentation
from fedga.spec.settings import RunSpec, TrainingSettings, parse_selection

LaneState = Mapping[str, Tensor]  # everything one run needs to go on, by name
OWN = ("own params", "own buffers")  # what a client keeps of a model that does not travel whole


@dataclass(frozen=True)
class Lane:
    """One run, ready to train."""

    spec: TrainingSettings
    federation: Federation
    algorithm: Algorithm
    model: nn.Module  # freshly initialised; what the algorithm does not move is frozen here
    metrics: Mapping[str, Metric] = field(default_factory=dict)  # of the user's own, beside the built-in ones
    rule: Selection | None = None  # an object of the user's own, instead of the one that ``spec.select`` names

    def __post_init__(self) -> None:
        check_optimizer(self.algorithm, self.spec)
        object.__setattr__(self, "model", frozen(self.model, self.algorithm))

    @property
    def run(self) -> RunSpec:
        """The settings of a run that a store knows by its id."""
        assert isinstance(self.spec, RunSpec)
        return self.spec

    @cached_property
    def selection(self) -> Selection:
        if self.rule is not None:
            return self.rule
        name, options = parse_selection(self.spec.select)
        return make_selection(name, **dict(options))

    @cached_property
    def server(self) -> ServerOptimizer:
        return make_server(self.spec.server)

    @cached_property
    def availability(self) -> Availability:
        found = read_availability(self.spec.availability)
        found.check_clients(self.federation.num_clients)
        return found

    @cached_property
    def augmentation(self) -> Augmentation:
        return Augmentation.parse("--augment", self.spec.augment)


def check_optimizer(algorithm: Algorithm, spec: TrainingSettings) -> None:
    """Refuse a local momentum or Adam for an algorithm that reads gradients off the way a client has gone."""
    if not algorithm.plain_sgd_only or (spec.optimizer == "sgd" and not spec.momentum):
        return
    given = f"--momentum {spec.momentum:g}" if spec.optimizer == "sgd" else f"--optimizer {spec.optimizer}"
    reason = "takes a client's change for the sum of its gradients, as only plain SGD makes it"
    cure = "leave one of the two out, or give the server momentum instead (--server momentum)"
    raise FedGAError(f"{given} does not go with {type(algorithm).__name__}, which {reason}: {cure}")


def frozen(model: nn.Module, algorithm: Algorithm) -> nn.Module:
    """The network with everything frozen that the algorithm does not move; ``stands_still`` says what.

    Statistics stand still with their layer where nothing of it is trained; a layer without parameters goes with the one
    before it.
    """
    if not overrides(algorithm, "moves") or hasattr(model, "stands_still"):
        return model
    model = copy.deepcopy(model)
    moving, parameters = set(algorithm.moves(Parameters(model))), dict(model.named_parameters())
    still = frozenset(name for name, each in parameters.items() if each.requires_grad and name not in moving)
    for name in still:
        parameters[name].requires_grad_(False)
    own: set[str] = set()
    for path, layer in list(model.named_modules()):
        own = {f"{path}.{name}".lstrip(".") for name, _ in layer.named_parameters(recurse=False)} or own
        if isinstance(layer, _BatchNorm) and layer.track_running_stats and own and own.isdisjoint(moving):
            model.set_submodule(path, FrozenBatchNorm(layer))
            still |= {f"{path}.{name}" for name, value in layer.named_buffers() if value.is_floating_point()}
    object.__setattr__(model, "stands_still", still)
    return model


def stacking_key(lane: Lane) -> tuple[Any, ...]:
    """Lanes with equal keys may share an engine: the same samples, network and shape of a local step."""
    spec = lane.spec
    network = (spec.model, spec.norm) if isinstance(spec, RunSpec) else id(lane.model)
    trained = tuple(name for name, parameter in lane.model.named_parameters() if parameter.requires_grad)
    dataset = lane.federation.dataset
    samples = (dataset.name, dataset.fingerprint) if dataset.fingerprint else id(dataset)
    return (
        (samples, network, trained, getattr(lane.model, "stands_still", frozenset()), _constants(lane.model)),
        (lane.federation.num_clients, spec.active, spec.batch_size, spec.local_epochs, spec.augment),
        (spec.optimizer, spec.momentum, spec.evaluate_every, spec.diagnose_every, spec.precision),
        uses_features(lane.algorithm),  # which not every network can give
        id(lane) if overrides(lane.algorithm, "groups") else None,  # clients one after another: a run by itself
    )


def _constants(module: nn.Module) -> bytes:
    """Digest of the buffers that are not floats and not counters; copies in one stack share them."""
    digest = hashlib.blake2b(digest_size=16)
    for name, buffer in module.named_buffers():
        if not buffer.is_floating_point() and not name.endswith("num_batches_tracked"):
            digest.update(name.encode() + buffer.detach().cpu().numpy().tobytes())
    return digest.digest()


def in_engine_order(lanes: Sequence[Lane]) -> list[Lane]:
    """Lanes with the same algorithm and selection side by side, in the order in which those first appear."""
    first = {segment_key(lane): position for position, lane in reversed(list(enumerate(lanes)))}
    return sorted(lanes, key=lambda lane: first[segment_key(lane)])


def segment_key(lane: Lane) -> tuple[Algorithm, Selection]:
    return lane.algorithm, lane.selection


@dataclass(frozen=True)
class Own:
    """Where the entries lie that stay at a client, in the vectors of parameters and of buffers."""

    params: Tensor  # [entries]
    buffers: Tensor  # [entries]
    has_head: bool  # whether the head is among them: then there is no global model to test

    @classmethod
    def of(cls, algorithm: Algorithm, model: StackedModel, device: torch.device | str = "cpu") -> Self | None:
        """None where everything travels. Buffers stay with the layer whose parameters all stay."""
        if not overrides(algorithm, "travels"):
            return None
        travels = set(algorithm.travels(model.params))
        stays = [name for name in model.params.shapes if name not in travels]
        layers = {name.rpartition(".")[0] for name in stays} - {name.rpartition(".")[0] for name in travels}
        buffers = [name for name in model.buffers.shapes if name.rpartition(".")[0] in layers]
        masks = model.params.mask(stays), model.buffers.mask(buffers)
        params, own_buffers = (mask.nonzero()[:, 0].to(device) for mask in masks)
        return cls(params, own_buffers, any(name in stays for name in model.params.head))

    def of_model(self, params: Tensor, buffers: Tensor) -> dict[str, Tensor]:
        """The part that stays, of one model or of many."""
        return {OWN[0]: params[..., self.params], OWN[1]: buffers[..., self.buffers]}


@dataclass(eq=False)
class Segment:
    """Neighbouring lanes with the same algorithm and selection, and what those keep for them."""

    algorithm: Algorithm
    selection: Selection
    lanes: slice
    state: dict[str, Tensor]  # of the algorithm on the server, [lanes, ...]
    select_state: dict[str, Tensor]  # of the rule that selects, [lanes, ...]
    client_state: dict[str, Tensor]  # [lanes, clients, ...], on the host where the device has no room
    auxiliary: Tensor | None  # [lanes, classes, samples]: places in the training split
    select_auxiliary: Tensor | None  # for the rule
    own: Own | None

    @property
    def numbers(self) -> range:
        """Of its lanes."""
        return range(self.lanes.start, self.lanes.stop)

    def take(self, lanes: Tensor, clients: Tensor) -> dict[str, Tensor]:
        """What the given clients keep, ``[slots, ...]``, on the device."""
        return {
            name: value[lanes.to(value.device), clients.to(value.device)].to(lanes.device)
            for name, value in self.client_state.items()
        }

    def put(self, lanes: Tensor, clients: Tensor, values: Mapping[str, Tensor]) -> None:
        for name, value in self.client_state.items():
            value[lanes.to(value.device), clients.to(value.device)] = values[name].to(value.device)


def rows_of(tensors: Mapping[str, Tensor], rows: Any) -> dict[str, Tensor]:
    """The same rows of all tensors, or a single one."""
    return {name: value[rows] for name, value in tensors.items()}


@dataclass
class ServerGroup:
    """Lanes with the same server optimiser."""

    optimizer: ServerOptimizer
    lanes: list[int]
    rate: Tensor  # [lanes]
    state: dict[str, Tensor]  # [lanes, ...]

    def step(self, params: Tensor, update: Tensor) -> Tensor:
        moved, self.state = vmap(self.optimizer.step)(params, update, self.state, self.rate)
        return moved


class LaneStack:
    """The state of all lanes. Every tensor has one row per lane; `states` is the way out and in of `LaneState`."""

    def __init__(
        self, lanes: Sequence[Lane], model: StackedModel, data: DeviceData, states: Sequence[LaneState] | None = None
    ) -> None:
        self.lanes, self.device, self.dtype, self.model = list(lanes), data.device, model.dtype, model
        if states is None:
            states = [first_state(lane, model) for lane in lanes]
        everyone = list(range(len(lanes)))
        self.params, self.buffers = self._stack(states, "params", everyone), self._stack(states, "buffers", everyone)
        self.averaging = [lane for lane in everyone if lanes[lane].spec.server_average]
        self.averaged_params = self._stack(states, "averaged_params", self.averaging)
        self.averaged_buffers = self._stack(states, "averaged_buffers", self.averaging)
        self.average = self.per_lane([lanes[lane].spec.server_average for lane in self.averaging])[:, None]
        kinds = sorted({lane.spec.server for lane in lanes})
        self.servers = [self._server(states, kind) for kind in kinds]
        groups = groupby(everyone, lambda lane: segment_key(lanes[lane]))
        self.segments = [self._segment(states, data, list(group)) for _, group in groups]

    def per_lane(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=self.dtype, device=self.device)

    def _stack(self, states: Sequence[LaneState], name: str, which: list[int]) -> Tensor:
        if not which:
            return torch.zeros(0, 0, device=self.device)
        return torch.stack([states[lane][name] for lane in which]).to(self.device)

    def _server(self, states: Sequence[LaneState], kind: str) -> ServerGroup:
        which = [lane for lane, value in enumerate(self.lanes) if value.spec.server == kind]
        optimizer = self.lanes[which[0]].server
        rates = [self.lanes[lane].spec.server_rate for lane in which]
        rate = self.per_lane([optimizer.default_rate if value is None else value for value in rates])
        state = {name: self._stack(states, f"server_{name}", which) for name in optimizer.state(self.params[0])}
        return ServerGroup(optimizer, which, rate, state)

    def _segment(self, states: Sequence[LaneState], data: DeviceData, which: list[int]) -> Segment:
        def stacked(prefix: str) -> dict[str, Tensor]:
            names = [name for name in states[which[0]] if name.startswith(prefix)]
            return {name.removeprefix(prefix): torch.stack([states[lane][name] for lane in which]) for name in names}

        def held(number: int) -> Tensor | None:
            lanes = [self.lanes[lane] for lane in which] if number else []
            drawn = [(lane.spec.seed, number, lane.federation.held_out) for lane in lanes]
            places = [auxiliary_samples(data.dataset, *each) for each in drawn]
            return torch.from_numpy(np.stack(places)).to(self.device) if places else None

        lane, algorithm, rule = self.lanes[which[0]], self.lanes[which[0]].algorithm, self.lanes[which[0]].selection
        auxiliary, select_auxiliary = held(algorithm.auxiliary_samples), held(rule.auxiliary_samples)
        kept = stacked("client.")
        home = self.device if data.has_room_for(sum(value.nbytes for value in kept.values())) else torch.device("cpu")
        parts = ((stacked("server."), self.device), (stacked("select."), self.device), (kept, home))
        server, select, kept = ({name: value.to(place) for name, value in part.items()} for part, place in parts)
        own = Own.of(algorithm, self.model, self.device)
        called = lane.spec.select.partition(":")[0] if lane.rule is None else type(rule).__name__
        if own is not None and own.has_head and rule.reads_head:
            raise FedGAError(f"--select {called} reads the head, which stays at the clients here: choose another rule")
        if own is not None and rule.needs_losses:
            part = "a part of the model stays at the clients here"
            raise FedGAError(f"--select {called} asks for losses of the global model, and {part}: choose another rule")
        both = (auxiliary, select_auxiliary)
        return Segment(algorithm, rule, slice(which[0], which[-1] + 1), server, select, kept, *both, own)

    def move(self, params: Tensor, buffers: Tensor, round_number: int) -> None:
        """The next global models, ``[lanes, ...]``, and their averages over rounds."""
        self.params, self.buffers = params, buffers
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
        for group in self.servers:
            for position, lane in enumerate(group.lanes):
                found[lane] |= {f"server_{name}": value for name, value in rows_of(group.state, position).items()}
        for segment in self.segments:
            parts = (("server.", segment.state), ("select.", segment.select_state), ("client.", segment.client_state))
            for prefix, tensors in parts:
                for position, lane in enumerate(segment.numbers):
                    found[lane] |= {prefix + name: tensor[position] for name, tensor in tensors.items()}
        return [{name: tensor.cpu().clone() for name, tensor in state.items()} for state in found]


def server_state(lane: Lane, model: StackedModel) -> LaneState:
    """What the server of a lane has before its first round."""
    params, buffers = model.flatten(lane.model)
    state = {"params": params, "buffers": buffers}
    if lane.spec.server_average:
        state |= {"averaged_params": params, "averaged_buffers": buffers}
    state |= {f"server_{name}": value for name, value in lane.server.state(params).items()}
    federation = lane.federation
    setup = Setup(params, federation.num_clients, federation.dataset.num_classes, model.params)
    state |= {f"server.{name}": value for name, value in lane.algorithm.server_state(setup).items()}
    return state | {f"select.{name}": value for name, value in lane.selection.state(setup).items()}


def first_client_state(algorithm: Algorithm, model: StackedModel, params: Tensor, buffers: Tensor) -> dict[str, Tensor]:
    """What a client keeps before its first round, its own part of the model included."""
    own = Own.of(algorithm, model, params.device)
    return dict(algorithm.client_state(params)) | (own.of_model(params, buffers) if own else {})


def first_state(lane: Lane, model: StackedModel) -> LaneState:
    """What a lane has before its first round, its clients included."""
    state, num_clients = dict(server_state(lane, model)), lane.federation.num_clients
    kept = first_client_state(lane.algorithm, model, state["params"], state["buffers"])
    return state | {f"client.{name}": value.expand(num_clients, *value.shape) for name, value in kept.items()}
