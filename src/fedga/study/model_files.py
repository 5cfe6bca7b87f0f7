"""Trained models on disk: a safetensors file that carries its own description, and a digest of all of it.

A model file may come from anybody. Its text names networks and data sets of ours, or those of the user's own project
file; it never chooses a module to import, a function to call or a path to open.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedga import plugins
from fedga.algorithms import ALGORITHMS, make_algorithm
from fedga.common.files import write_whole
from fedga.common.sealed import DamagedError, seal, unseal
from fedga.data import PARTITIONS, Dataset, Federation, load_dataset
from fedga.data.assemble import listed
from fedga.data.sources import can_resize
from fedga.engine.device_data import InputScaling
from fedga.engine.headed import with_head
from fedga.engine.stack.stacked import float_buffers, trained_parameters
from fedga.errors import FedGAError, quoted
from fedga.models import MODELS, build_model, own_model
from fedga.spec.catalog import find_source
from fedga.spec.settings import SITES, RunSpec
from fedga.store.database import one_line
from fedga.study.prepare import federation_of, fitting_model

FORMAT = "fedga-model-1"
RECEIVED = "received."  # before the names of tensors that an algorithm's head needs beside the weights
_NAMES = ("class_names", "feature_names")
_MOST_AXES, _MOST_VALUES = 4, 1 << 28  # of a sample
Columns = tuple[str | None, str | None]  # of labels and of clients


@dataclass(frozen=True)
class SavedModel:
    """A network with its weights, the run it comes from and the map from stored samples to its inputs."""

    spec: RunSpec
    model: nn.Module
    pixels: InputScaling
    input_shape: tuple[int, ...]
    class_names: tuple[str, ...]
    feature_names: tuple[str, ...]  # the columns of a table, else none
    fingerprint: str  # of the data it was trained on

    def own_data(self) -> str:
        """The name of the data it was trained on, for `load_dataset`; a path that stands in the file is not opened."""
        name = self.spec.dataset
        if name.startswith(SITES):
            sites = quoted(name.removeprefix(SITES))
            raise FedGAError(f"the samples of {sites} lie at its sites: give some of them with --dataset")
        if find_source(name) is None and name not in plugins.parts("datasets", installed=False):
            path = f"it was trained on {quoted(name)}, and a path that a file names is not opened"
            raise FedGAError(f"{path}: give the data with --dataset")
        return name

    def is_own_data(self, dataset: str) -> bool:
        """Whether the user names the data it was trained on, or their path in another spelling."""
        return dataset == self.spec.dataset or os.path.abspath(dataset) == os.path.abspath(self.spec.dataset)

    def columns(self, label_column: str | None = None, client_column: str | None = None) -> Columns:
        """Columns of labels and clients of its own data: those asked for, else those of the run."""
        return label_column or self.spec.label_column, client_column or self.spec.client_column

    def resize(self, dataset: str | None) -> str:
        """The size to which it wants the pictures of a folder or a file brought."""
        return self.spec.resize if dataset is None or can_resize(dataset) else ""

    def check_fits(self, data: Dataset, called: str) -> None:
        """Refuse data that the network cannot read; ``called`` is the name of its file."""
        if data.input_shape != self.input_shape or data.num_classes != len(self.class_names):
            reads = f"{called} reads samples of shape {self.input_shape} in {len(self.class_names)} classes"
            there = f"{data.name} has {data.input_shape} in {data.num_classes}"
            raise FedGAError(f"{reads} and {there}: give the data set it was trained for")
        if self.feature_names and data.feature_names and self.feature_names != data.feature_names:
            at = next(at for at, name in enumerate(self.feature_names) if name != data.feature_names[at])
            column = f"column {at + 1} of the features of {data.name} is {data.feature_names[at]!r}"
            trained = f"{called} was trained on {self.feature_names[at]!r}"
            raise FedGAError(f"{column}, where {trained}: give the same columns in the same order")

    def check_trained_on(self, data: Dataset, called: str) -> None:
        """Refuse data that are found under the name of those it was trained on, and are others."""
        if data.fingerprint != self.fingerprint:
            changed = f"{quoted(self.spec.dataset)} is not what {called} was trained on, or has changed since"
            raise FedGAError(f"{changed}: name the data to use with --dataset")

    def load_trained_on(self, data_dir: Path | None = None) -> Dataset:
        """The data it was trained on; an error where they are not at hand, or are others by now."""
        label_column, client_column = self.columns()
        columns: dict[str, Any] = {"label_column": label_column, "client_column": client_column}
        data = load_dataset(self.own_data(), data_dir=data_dir, resize=self.spec.resize, **columns)
        if data.fingerprint != self.fingerprint:
            raise FedGAError(f"{self.spec.dataset} has changed since")
        if data.class_names != self.class_names:
            raise FedGAError(f"{self.spec.dataset} has other classes now ({listed(data.class_names, 6)})")
        return data

    def federation(self, data: Dataset) -> Federation:
        """The clients of the run, partitioned again; of the user's own rules, only those of her project file are run.

        ``data`` are those it was trained on.
        """
        if self.spec.partition == "natural" and data.train_clients is None:
            return Federation(data, np.arange(len(data.train_targets)), np.array([0, len(data.train_targets)]))
        where, cure = "the model's file", "name it in fedga.toml"
        plugins.received_part("partitions", self.spec.partition, PARTITIONS, where, cure)
        return federation_of(data, self.spec)


def model_path(folder: Path, spec: RunSpec, averaged: bool = False) -> Path:
    """Where a run's model goes: a name to recognise it by, and the run's id to tell it from all others."""
    alpha = "" if spec.alpha is None else f"-alpha{spec.alpha:g}"
    run = f"{spec.algorithm}-{spec.preset or 'own'}-seed{spec.seed}-{spec.run_id[:8]}"
    name = f"{Path(spec.dataset).stem}{alpha}-{run}"
    safe = "".join(letter if letter.isalnum() or letter in "-_.=" else "_" for letter in name)
    return folder / "models" / f"{safe}{'-averaged' if averaged else ''}.safetensors"


def save_model(
    path: Path, spec: RunSpec, dataset: Dataset, weights: dict[str, Tensor], beside: Mapping[str, Tensor] | None = None
) -> None:
    """`model_content`, written by `write_model`."""
    write_model(path, spec, model_content(spec, dataset, weights, beside))


def model_content(
    spec: RunSpec, dataset: Dataset, weights: dict[str, Tensor], beside: Mapping[str, Tensor] | None = None
) -> bytes:
    """Weights and description as the content of one file.

    ``beside`` is what the algorithm's head needs besides the weights; None where the network's own head is used.
    """
    pixels = InputScaling.of(dataset, spec.standardize)
    description = {"format": FORMAT, "spec": spec.to_json(), "fingerprint": dataset.fingerprint}
    description |= {name: json.dumps(getattr(dataset, name)) for name in ("input_shape", *_NAMES)}
    description |= {f"pixel_{name}": json.dumps(getattr(pixels, name).tolist()) for name in ("scale", "shift")}
    if beside is not None:
        description["head"] = "algorithm"
        weights = weights | {RECEIVED + name: value for name, value in beside.items()}
    return seal(weights, description)


def write_model(path: Path, spec: RunSpec, content: bytes) -> None:
    """Write a model in one step, and its settings beside it: a reader never sees half a file."""
    write_whole(path, content)
    write_whole(path.with_suffix(".json"), json.dumps(json.loads(spec.to_json()), indent=2) + "\n")


def load_model(path: Path, model: str | None = None, notice: Callable[[str], None] = lambda text: None) -> SavedModel:
    """Read a model that `save_model` wrote.

    ``model`` is the network that the user names herself, where the file names one that is neither ours nor in her
    project file: what a file says is never imported. ``notice`` hears which plugin is run, and of a file without a
    digest.
    """
    try:
        file = unseal(path)
    except FileNotFoundError:
        raise FedGAError(f"there is no model file {path}: give one from the folder models of a run") from None
    except DamagedError as error:
        raise FedGAError(f"{error}: give an intact copy, or train it again") from error
    except OSError as error:
        raise FedGAError(f"{path} cannot be read ({error.strerror}): check the path and its permissions") from error
    if file.metadata.get("format") != FORMAT:
        raise FedGAError(f"{path} was not written by fedga: give a model from the folder models of a run")
    if not file.has_digest:
        notice(f"{path.name} is without digests, as fedga 0.1 wrote it: damage to it would not be noticed")
    description = _description(path, file.metadata)
    weights = {name: value for name, value in file.tensors.items() if not name.startswith(RECEIVED)}
    network = _network(path, description, model, weights, notice)
    beside = {name.removeprefix(RECEIVED): file.tensors[name] for name in file.tensors.keys() - weights.keys()}
    if "head" in file.metadata:
        network = _headed(path, description, network, beside)
    return SavedModel(model=network, **description)


def _headed(path: Path, description: Mapping[str, Any], network: nn.Module, beside: Mapping[str, Tensor]) -> nn.Module:
    """The network with the head of its algorithm."""
    spec: RunSpec = description["spec"]
    cure = "name it in your fedga.toml if you trust that code"
    plugins.received_part("algorithms", spec.algorithm_name, ALGORITHMS, str(path), cure)
    algorithm = make_algorithm(spec.algorithm_name, **dict(spec.algorithm_options))
    if any(not value.is_floating_point() or not value.isfinite().all() for value in beside.values()):
        raise FedGAError(f"the head in {path} holds what are not finite numbers: give an intact copy")
    model = with_head(network, algorithm, beside).eval()
    try:
        with torch.no_grad():
            model(torch.zeros(2, *description["input_shape"]))
    except Exception as error:
        sentence = f"the head in {path} does not fit the algorithm {spec.algorithm_name} ({one_line(error)})"
        raise FedGAError(f"{sentence}: give an intact copy, or the code it was trained with") from error
    return model


def _description(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """What a file says of its model, once it is of the right kinds and sizes."""
    try:
        shape = _listed(metadata, "input_shape", int)
        if not 1 <= len(shape) <= _MOST_AXES or min(shape) < 1 or prod(shape) > _MOST_VALUES:
            raise ValueError(f"its input_shape is {quoted(list(shape))}")
        scale, shift = (torch.tensor(_listed(metadata, f"pixel_{name}", float)) for name in ("scale", "shift"))
        if not scale.shape == shift.shape == (shape[0],) or not (scale.isfinite() & shift.isfinite()).all():
            raise ValueError("its scaling of samples does not fit their shape")
        spec, fingerprint = RunSpec.from_json(metadata["spec"]), metadata["fingerprint"]
        names = {name: _listed(metadata, name, str) for name in _NAMES}
        pixels = InputScaling(scale, shift)
        return {"spec": spec, "pixels": pixels, "input_shape": shape, "fingerprint": fingerprint, **names}
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        reason = f"it has no {error.args[0]}" if isinstance(error, KeyError) else one_line(error)
        sentence = f"{path} describes its run in a way this version cannot read ({reason})"
        raise FedGAError(f"{sentence}: was it written by a newer fedga?") from error


def _listed(metadata: Mapping[str, str], name: str, kind: type) -> tuple[Any, ...]:
    found = json.loads(metadata[name])
    wanted = (int, float) if kind is float else (kind,)
    if not isinstance(found, list) or any(type(value) not in wanted for value in found):
        raise TypeError(f"its {name} is not a list of {kind.__name__}")
    return tuple(found)


def _network(
    path: Path,
    description: Mapping[str, Any],
    given: str | None,
    weights: dict[str, Tensor],
    notice: Callable[[str], None],
) -> nn.Module:
    """The network with its weights; one that is not ours is made only where the user says so."""
    spec, classes, shape = description["spec"], len(description["class_names"]), description["input_shape"]
    name = given or spec.model
    cure = "give --model package.module:Class yourself if you trust that code, or name it in your fedga.toml"
    part = own_model(given) if given else plugins.received_part("models", name, MODELS, str(path), cure)
    if part is not None:
        notice(f"running the code of {part.file} for {part}")
    if name not in MODELS:
        model = fitting_model(name, shape, classes, norm=spec.norm)
        _check_weights(path, name, model, weights)
    else:
        if classes < 2:
            raise FedGAError(f"{path} has fewer than two classes: give an intact copy")
        try:
            with torch.device("meta"):  # its description may be larger than the weights in the file, and than memory
                shapes = build_model(name, shape, classes, norm=spec.norm)
        except Exception as error:
            sentence = f"{path} describes samples of shape {quoted(shape)}, for which there is no model {name}"
            raise FedGAError(f"{sentence}: give an intact copy") from error
        known = {key: (of.shape, of.dtype) for key, of in shapes.state_dict().items()}
        if any(known.get(key) != (of.shape, of.dtype) for key, of in weights.items()):
            raise FedGAError(f"the weights in {path} do not fit model {name}: give an intact copy")
        _check_weights(path, name, shapes, weights)
        model = build_model(name, shape, classes, norm=spec.norm).eval()
    try:
        model.load_state_dict(model.state_dict() | weights)  # counters and tables are in no file
    except RuntimeError as error:
        raise FedGAError(f"the weights in {path} do not fit model {name}: has its code changed since?") from error
    return model


def _check_weights(path: Path, name: str, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Refuse weights that are missing, of another type, or not finite."""
    known = model.state_dict()
    if lost := [key for key in trained_parameters(model) | float_buffers(model) if key in known and key not in weights]:
        needed = f"{', '.join(lost[:3])}, which model {name} needs"
        raise FedGAError(f"{path} has no weights {needed}: give an intact copy, or the code it was trained with")
    for key in weights.keys() & known.keys():
        if known[key].dtype != weights[key].dtype:
            raise FedGAError(f"the weights in {path} are of other types than model {name}: give an intact copy")
        if not weights[key].isfinite().all():
            raise FedGAError(f"the weights {quoted(key)} in {path} are not finite numbers: give an intact copy")
