"""One federated run from Python: your arrays, your module, your algorithm object."""

import copy
import dataclasses
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedga.algorithms import Algorithm, make_algorithm
from fedga.common.watch import shown_rounds
from fedga.data.federation import Dataset, Federation
from fedga.data.remarks import scale_remark
from fedga.engine.device_data import DeviceData
from fedga.engine.engine import Engine
from fedga.engine.evaluation.metrics import Metric, check_name, own_metrics
from fedga.engine.headed import with_head
from fedga.engine.server import LaneRound
from fedga.engine.stack.lanes import Lane
from fedga.errors import FedGAError, check_known
from fedga.models import ModelBuilder, build_model
from fedga.selection import Selection
from fedga.selection.check import check_selection
from fedga.spec.settings import DataSettings, TrainingSettings, parse_algorithm

_SHOWN = ("accuracy", "client_accuracy", "macro_f1", "ea_ratio")


@dataclass(frozen=True)
class RunResult:
    """What came out of a run."""

    rounds: list[dict[str, float]]  # one row per evaluated round: round, accuracy, macro_f1, ea_ratio, ...
    model: nn.Module  # the last global model
    averaged_model: nn.Module | None  # its mean over rounds, with ``server_average``
    diverged: bool

    def __repr__(self) -> str:
        return f"RunResult({', '.join(f'{name} {value}' for name, value in self._facts().items())})"

    def _repr_html_(self) -> str:
        from fedga.drawing import inline

        name = next((name for name in ("accuracy", "client_accuracy") if self.rounds and name in self.rounds[-1]), "")
        rounds, values = [row["round"] for row in self.rounds], [row.get(name, np.nan) for row in self.rounds]
        return inline.card("A federated run", self._facts(), inline.curve(rounds, values))

    def _facts(self) -> dict[str, str]:
        last = self.rounds[-1] if self.rounds else {}
        facts = {"round": f"{last['round']:g}"} if last else {"rounds": "none evaluated"}
        facts |= {name.replace("_", " "): f"{last[name]:.4g}" for name in _SHOWN if name in last}
        return facts | ({"diverged": "yes"} if self.diverged else {})


def simulate(
    federation: Federation,
    model: str | ModelBuilder | nn.Module = "mlp",
    algorithm: str | Algorithm | type[Algorithm] = "fedga",
    *,
    device: str | torch.device = "cpu",
    on_round: Callable[[LaneRound], None] | None = None,
    metrics: Mapping[str, Metric] | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> RunResult:
    """Train one run on one machine and return its curve and its model; nothing is written to disk.

    ``model`` is a name, a callable ``(input_shape, num_classes) -> nn.Module``, or a module to start from; ``settings``
    are the flags of ``fedga run`` by their names (``rounds=100, lr=0.1, active=10, server="momentum", seed=0``), and
    ``select`` may be a rule of your own, an object or a class.
    ``metrics`` are functions of your own, by the names of their columns: each is given an `Evaluation` and returns one
    number per model. Those that your ``fedga.toml`` names are measured too. ``progress`` shows a bar of rounds; None:
    on a terminal and in a notebook.

    >>> from fedga.data import load_dataset, make_federation
    >>> federation = make_federation(load_dataset("digits"), clients=10, seed=0, alpha=0.5)
    >>> result = simulate(federation, "mlp", "fedga", rounds=5, active=5, batch_size=16)
    >>> [row["round"] for row in result.rounds], result.rounds[-1]["accuracy"] > 0.3
    ([1, 2, 3, 4, 5], True)
    """
    _refuse_what_is_given_otherwise(settings)
    if not federation.sizes.all():
        empty = int(np.flatnonzero(federation.sizes == 0)[0])
        raise FedGAError(f"client {empty} of the federation has no samples: leave it out")
    try:
        where = torch.device(device)
    except RuntimeError:
        raise FedGAError(f"{device!r} is not a device: give 'cpu', 'cuda' or 'cuda:1'") from None
    if where.type == "cuda" and not torch.cuda.is_available():
        raise FedGAError(f"device {device} was asked for and PyTorch finds no CUDA device here: use device='cpu'")
    for name in metrics or {}:
        check_name(name)
    rule, norm, dataset = _own_rule(settings), settings.pop("norm", "batch"), federation.dataset
    try:
        spec = TrainingSettings(**{"active": min(10, federation.num_clients)} | settings)
        if spec.active > (clients := federation.num_clients):
            raise FedGAError(f"--active {spec.active} is more than the {clients} clients of the federation")
        kind, options = parse_algorithm(algorithm) if isinstance(algorithm, str) else (algorithm, ())
        algorithm = make_algorithm(kind, **dict(options))
        if not isinstance(model, str | nn.Module) and not callable(model):
            raise FedGAError(f"model must be a name, a torch.nn.Module or a function that makes one, not {model!r}")
        if isinstance(model, nn.Module):
            network = copy.deepcopy(model)
        else:
            network = build_model(model, dataset.input_shape, dataset.num_classes, norm=norm, seed=spec.seed)
        _check_outputs(network, dataset)
        lane = Lane(spec, federation, algorithm, network, own_metrics() | dict(metrics or {}), rule)
        _ = lane.availability  # a file that cannot be used is refused before anything is trained
        engine = Engine([lane], DeviceData(dataset, where, next(network.parameters()).dtype))
    except FedGAError as error:  # which speaks of flags
        error.args = (re.sub(r"(?<!\w)--([a-z][a-z-]*)", lambda flag: flag[1].replace("-", "_"), str(error)),)
        raise
    remark = "" if spec.standardize else scale_remark(dataset, "give standardize=True")
    if remark:
        warnings.warn(remark, stacklevel=2)
    rows: list[dict[str, float]] = []
    diverged = False
    with shown_rounds(spec.rounds, progress) as advance:
        while engine.round < spec.rounds and not diverged:
            [result] = engine.run_round()
            diverged = result.diverged
            if result.metrics is not None:
                rows.append({"round": result.round, **result.metrics})
            advance(result.round, result.metrics)
            if on_round is not None:
                on_round(result)
    return _result(engine, network, rows, diverged)


_OF_DATA = tuple(each.name for each in dataclasses.fields(DataSettings))
_KNOWN = (*(each.name for each in dataclasses.fields(TrainingSettings)), "norm")


def _refuse_what_is_given_otherwise(settings: dict[str, Any]) -> None:
    for name in settings:
        if name in _OF_DATA:
            raise FedGAError(f"{name} is part of the federation: give it to make_federation or load_dataset")
        check_known("setting", name, _KNOWN)


def _own_rule(settings: dict[str, Any]) -> Selection | None:
    """The rule of the user's own, an object or a class, taken out of the settings; None where they name one."""
    rule = settings.get("select")
    rule = rule() if isinstance(rule, type) and issubclass(rule, Selection) else rule
    if not isinstance(rule, Selection):
        return None
    del settings["select"]
    check_selection(rule)
    return rule


@torch.no_grad()
def _check_outputs(network: nn.Module, dataset: Dataset) -> None:
    inputs = torch.zeros(2, *dataset.input_shape, dtype=next(network.parameters()).dtype)
    outputs = copy.deepcopy(network).eval()(inputs)
    if outputs.shape != (2, dataset.num_classes):
        given = f"outputs of shape {tuple(outputs.shape[1:])} where {dataset.num_classes} classes are to be told apart"
        raise FedGAError(f"the model gives {given}: its last layer must have one output per class")


def _result(engine: Engine, model: nn.Module, rows: list[dict[str, float]], diverged: bool) -> RunResult:
    """``model`` is the network as it was given: nothing in it is frozen that the algorithm alone does not move."""
    stack = engine.stack
    sent = {name: value.cpu() for name, value in engine.server.sent_with_head(0, engine.round).items()}

    def module(params: Tensor, buffers: Tensor) -> nn.Module:
        network = copy.deepcopy(model)
        engine.model.unflatten(params[0].cpu(), buffers[0].cpu(), network)
        return with_head(network, engine.lanes[0].algorithm, sent)

    averaged = module(stack.averaged_params, stack.averaged_buffers) if stack.averaging else None
    return RunResult(rows, module(stack.params, stack.buffers), averaged, diverged)
