"""The candidates of a tournament: algorithms of the registry that fit the limits, under a few settings each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedga.algorithms import known_algorithms, make_algorithm
from fedga.algorithms.base import Algorithm, Setup, overrides, uses_features
from fedga.algorithms.limits import extra_passes, more_than_sums, sends_extra
from fedga.data import Dataset
from fedga.engine.stack.lanes import frozen
from fedga.engine.stack.stacked import StackedModel
from fedga.errors import FedGAError
from fedga.spec.augmentation import Augmentation
from fedga.spec.catalog import find_source
from fedga.spec.grid import build_sweep
from fedga.spec.presets import PRESETS
from fedga.spec.settings import RunSpec, parse_algorithm
from fedga.study.tournament import REFERENCE, Candidate

AXES = ("centralize", "select", "augment")  # that candidates differ in beside algorithm and preset
VARIED = "strong"  # the preset that is tried with each of them; the paper's own setting stays as it is
_SHIFT = 8  # pictures move by up to this part of their side
Settings = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Limits:
    """What an algorithm may ask for beyond FedAvg."""

    sends_nothing: bool = False
    secure_aggregation: bool = False
    no_extra_pass: bool = False

    def why_not(self, algorithm: Algorithm) -> str:
        """Why an algorithm does not fit; empty for one that does."""
        if self.sends_nothing and sends_extra(algorithm):
            return "sends more than the model"
        if self.secure_aggregation and more_than_sums(algorithm):
            return "needs more than sums over clients"
        if self.no_extra_pass and (extra_passes(algorithm) or algorithm.needs_class_features):
            return "needs further forward passes"
        if algorithm.auxiliary_samples:
            return "needs samples on the server"
        return "keeps a part of the model at the clients" if overrides(algorithm, "travels") else ""


def fitting(names: Sequence[str], limits: Limits) -> tuple[list[str], dict[str, str]]:
    """FedAvg and those of the named algorithms that fit, all known ones if none is named; and why others do not.

    One that the user named and that does not fit is her mistake.
    """
    asked = list(names) or list(known_algorithms())
    left_out: dict[str, str] = {}
    for name in asked:
        base, options = parse_algorithm(name)
        if why := limits.why_not(make_algorithm(base, **dict(options))):
            left_out[name] = why
    if names and left_out:
        name, why = next(iter(left_out.items()))
        raise FedGAError(f"--algorithm {name} {why}: leave it out, or relax the limits")
    others = [name for name in asked if name not in left_out and name != REFERENCE]
    return [REFERENCE, *others], left_out


def fitting_network(
    algorithms: Sequence[str], network: nn.Module, dataset: Dataset
) -> tuple[list[str], dict[str, str]]:
    """Those of the algorithms that can train this network, and why others cannot: some read the input of its head."""
    left_out = {}
    for name in algorithms:
        base, options = parse_algorithm(name)
        try:
            _try(make_algorithm(base, **dict(options)), network, dataset)
        except FedGAError as error:
            left_out[name] = f"does not suit the network ({error})"
    return [name for name in algorithms if name not in left_out], left_out


@torch.no_grad()
def _try(algorithm: Algorithm, network: nn.Module, dataset: Dataset) -> None:
    network = frozen(network, algorithm)
    model = StackedModel(network)
    params, buffers = model.flatten(network)
    algorithm.server_state(Setup(params, 2, dataset.num_classes, model.params))
    if uses_features(algorithm):
        model.keep_features()
        model.evaluate(params[None], buffers[None], torch.zeros(2, *dataset.input_shape))


def recipes(
    base: RunSpec, dataset: Dataset, clients: int, network: nn.Module, presets: Sequence[str]
) -> list[Settings]:
    """The settings that every algorithm is tried under: presets, and one of them with axes that cost nothing.

    Gradients are centralised where the network has no batch normalisation, clients take turns where not all of them
    are active, and pictures are augmented where the data set is known by name.
    """
    axes: dict[str, Any] = {}
    if not any(isinstance(layer, _BatchNorm) for layer in network.modules()):
        axes["centralize"] = True
    if base.active < clients:
        axes["select"] = "in-turn"
    source = find_source(base.dataset)
    if source is not None and len(dataset.input_shape) == 3:
        axes["augment"] = str(Augmentation(source.mirrored, max(1, dataset.input_shape[-1] // _SHIFT)))
    found: list[Settings] = []
    for preset in presets or PRESETS:
        found.append({"preset": [preset]})
        if preset == VARIED:
            found += [{"preset": [preset], name: [value]} for name, value in axes.items()]
            found += [{"preset": [preset], **{name: [value] for name, value in axes.items()}}] * (len(axes) > 1)
    return found


def make_candidates(algorithms: Sequence[str], settings: Sequence[Settings], common: Settings) -> list[Candidate]:
    """Every algorithm under every recipe, the simplest first; ``common`` settings are those of all, the seeds too."""
    found: dict[str, Candidate] = {}
    for algorithm in algorithms:
        for recipe in settings:
            runs = build_sweep({**common, **recipe, "algorithm": [algorithm]}).runs
            candidate = Candidate(tuple(sorted(runs, key=lambda spec: spec.seed)))
            found.setdefault(candidate.spec.run_id, candidate)
    return list(found.values())


def on_all_samples(candidate: Candidate, common: Settings) -> tuple[RunSpec, ...]:
    """The candidate's runs as they are to be when the choice is made: nothing held out, evaluated as by default."""
    usual = build_sweep({**common, "preset": [candidate.spec.preset], "algorithm": ["fedavg"]}).runs[0]
    every, diagnosed = usual.evaluate_every, usual.diagnose_every
    whole = (replace(spec, validate=0.0, evaluate_every=every, diagnose_every=diagnosed) for spec in candidate.specs)
    return tuple(whole)
