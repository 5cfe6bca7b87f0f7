"""Trained models on disk: a safetensors file that carries its own description, and a digest of all of it.

A model file may come from anybody. Its text names networks and data sets of ours, or those of the user's own project
file; it never chooses a module to import, a function to call or a path to open.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedga import plugins
from fedga.common.files import write_whole
from fedga.common.sealed import DamagedError, seal, unseal
from fedga.data import Dataset
from fedga.data.assemble import listed
from fedga.engine.device_data import InputScaling
from fedga.engine.stack.stacked import float_buffers, trained_parameters
from fedga.errors import FedGAError, quoted
from fedga.models import MODELS, build_model, own_model
from fedga.spec.catalog import find_source
from fedga.spec.settings import SITES, RunSpec
from fedga.study.prepare import fitting_model

FORMAT = "fedga-model-1"
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
            raise FedGAError(
                f"the samples of {quoted(name.removeprefix(SITES))} lie at its sites: give some of them with --dataset"
            )
        if find_source(name) is None and name not in plugins.parts("datasets", installed=False):
            raise FedGAError(
                f"it was trained on {quoted(name)}, and a path that a file names is not opened: give the data with "
                "--dataset"
            )
        return name

    def is_own_data(self, dataset: str) -> bool:
        """Whether the user names the data it was trained on, or their path in another spelling."""
        return dataset == self.spec.dataset or os.path.abspath(dataset) == os.path.abspath(self.spec.dataset)

    def columns(self, label_column: str | None = None, client_column: str | None = None) -> Columns:
        """Columns of labels and clients of its own data: those asked for, else those of the run."""
        return label_column or self.spec.label_column, client_column or self.spec.client_column

    def check_fits(self, data: Dataset, called: str) -> None:
        """Refuse data that the network cannot read; ``called`` is the name of its file."""
        if data.input_shape != self.input_shape or data.num_classes != len(self.class_names):
            raise FedGAError(
                f"{called} reads samples of shape {self.input_shape} in {len(self.class_names)} classes and "
                f"{data.name} has {data.input_shape} in {data.num_classes}: give the data set it was trained for"
            )
        if self.feature_names and data.feature_names and self.feature_names != data.feature_names:
            at = next(at for at, name in enumerate(self.feature_names) if name != data.feature_names[at])
            raise FedGAError(
                f"column {at + 1} of the features of {data.name} is {data.feature_names[at]!r}, where {called} was "
                f"trained on {self.feature_names[at]!r}: give the same columns in the same order "
                f"({listed(self.feature_names)})"
            )

    def check_trained_on(self, data: Dataset, called: str) -> None:
        """Refuse data that are found under the name of those it was trained on, and are others."""
        if data.fingerprint != self.fingerprint:
            raise FedGAError(
                f"{quoted(self.spec.dataset)} is not what {called} was trained on, or has changed since: name the data "
                "to use with --dataset"
            )


def model_path(folder: Path, spec: RunSpec, averaged: bool = False) -> Path:
    """Where a run's model goes: a name to recognise it by, and the run's id to tell it from all others."""
    alpha = "" if spec.alpha is None else f"-alpha{spec.alpha:g}"
    parts = (
        f"{Path(spec.dataset).stem}{alpha}-{spec.algorithm}-{spec.preset or 'own'}-seed{spec.seed}-{spec.run_id[:8]}"
    )
    safe = "".join(letter if letter.isalnum() or letter in "-_.=" else "_" for letter in parts)
    return folder / "models" / f"{safe}{'-averaged' if averaged else ''}.safetensors"


def save_model(path: Path, spec: RunSpec, dataset: Dataset, weights: dict[str, Tensor]) -> None:
    """Write weights and description in one step: a reader never sees half a file."""
    pixels = InputScaling.of(dataset, spec.standardize)
    description = {
        "format": FORMAT,
        "spec": spec.to_json(),
        "input_shape": json.dumps(dataset.input_shape),
        "class_names": json.dumps(dataset.class_names),
        "feature_names": json.dumps(dataset.feature_names),
        "fingerprint": dataset.fingerprint,
        "pixel_scale": json.dumps(pixels.scale.tolist()),
        "pixel_shift": json.dumps(pixels.shift.tolist()),
    }
    write_whole(path, seal(weights, description))
    write_whole(path.with_suffix(".json"), json.dumps(json.loads(spec.to_json()), indent=2) + "\n")


def load_model(path: Path, model: str | None = None, notice: Callable[[str], None] = lambda text: None) -> SavedModel:
    """Read a model that `save_model` wrote.

    ``model`` is the network that the user names herself, where the file names one that is neither ours nor in her
    project file: what a file says is never imported. ``notice`` is told which code of the user's own is run, and of a
    file without a digest.
    """
    try:
        file = unseal(path)
    except FileNotFoundError:
        raise FedGAError(
            f"there is no model file {path}: give a .safetensors file from the folder models of a run"
        ) from None
    except DamagedError as error:
        raise FedGAError(f"{error}: give an intact copy, or train it again") from error
    except OSError as error:
        raise FedGAError(f"{path} cannot be read ({error.strerror}): check the path and its permissions") from error
    if file.metadata.get("format") != FORMAT:
        raise FedGAError(f"{path} was not written by fedga: give a model from the folder models of a run")
    if not file.has_digest:
        notice(f"{path.name} is without digests, as fedga 0.1 wrote it: whether it is damaged cannot be told")
    description = _Description.read(path, file.metadata)
    network = _network(path, description, model, file.tensors, notice)
    return SavedModel(
        description.spec,
        network,
        InputScaling(description.scale, description.shift),
        description.input_shape,
        description.class_names,
        description.feature_names,
        description.fingerprint,
    )


@dataclass(frozen=True)
class _Description:
    """What a file says of its model, once it is of the right kinds and sizes."""

    spec: RunSpec
    input_shape: tuple[int, ...]
    class_names: tuple[str, ...]
    feature_names: tuple[str, ...]
    fingerprint: str
    scale: Tensor
    shift: Tensor

    @classmethod
    def read(cls, path: Path, metadata: Mapping[str, str]) -> _Description:
        try:
            shape = _listed(metadata, "input_shape", int)
            if not 1 <= len(shape) <= _MOST_AXES or min(shape) < 1 or prod(shape) > _MOST_VALUES:
                raise ValueError(f"its input_shape is {quoted(list(shape))}")
            scale, shift = (torch.tensor(_listed(metadata, f"pixel_{name}", float)) for name in ("scale", "shift"))
            if not scale.shape == shift.shape == (shape[0],) or not (scale.isfinite() & shift.isfinite()).all():
                raise ValueError("its scaling of samples does not fit their shape")
            names, features = (_listed(metadata, name, str) for name in ("class_names", "feature_names"))
            return cls(
                RunSpec.from_json(metadata["spec"]), shape, names, features, metadata["fingerprint"], scale, shift
            )
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise FedGAError(
                f"{path} describes its run in a way this version cannot read ({_reason(error)}): was it written by a "
                "newer fedga?"
            ) from error


def _listed(metadata: Mapping[str, str], name: str, kind: type) -> tuple[Any, ...]:
    found = json.loads(metadata[name])
    wanted = (int, float) if kind is float else (kind,)
    if not isinstance(found, list) or any(type(value) not in wanted for value in found):
        raise TypeError(f"its {name} is not a list of {kind.__name__}")
    return tuple(found)


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "its brackets are nested too deeply"
    return f"it has no {error.args[0]}" if isinstance(error, KeyError) else " ".join(str(error).split())[:160]


def _network(
    path: Path,
    description: _Description,
    given: str | None,
    weights: dict[str, Tensor],
    notice: Callable[[str], None],
) -> nn.Module:
    """The network with its weights; one that is not ours is made only where the user says so."""
    spec, classes = description.spec, len(description.class_names)
    name = given or spec.model
    cure = "give --model package.module:Class yourself if you trust that code, or name it in your fedga.toml"
    part = own_model(given) if given else plugins.received_part("models", name, MODELS, str(path), cure)
    if part is not None:
        notice(f"running the code of {part.file} for {part}")
    if name in MODELS:
        _check_sizes(path, name, description, weights)
        model = build_model(name, description.input_shape, classes, norm=spec.norm).eval()
    else:
        model = fitting_model(name, description.input_shape, classes, norm=spec.norm)
    initial = model.state_dict()
    trained = trained_parameters(model) | float_buffers(model)
    if lost := [each for each in trained if each in initial and each not in weights]:
        raise FedGAError(
            f"{path} has no weights {', '.join(lost[:3])}, which model {name} needs: give an intact copy, or the "
            "code that the model was trained with"
        )
    if any(each in initial and initial[each].dtype != tensor.dtype for each, tensor in weights.items()):
        raise FedGAError(f"the weights in {path} are of other types than those of model {name}: give an intact copy")
    if bad := [each for each, tensor in weights.items() if each in initial and not tensor.isfinite().all()]:
        raise FedGAError(
            f"the weights {quoted(bad[0])} in {path} are not finite numbers, so that whatever it says means nothing: "
            "give an intact copy, or train it with a smaller --lr"
        )
    try:
        model.load_state_dict(initial | weights)  # counters and tables are in no file
    except RuntimeError as error:
        raise FedGAError(f"the weights in {path} do not fit model {name}: has its code changed since?") from error
    return model


def _kind(tensor: Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype


def _check_sizes(path: Path, name: str, description: _Description, weights: Mapping[str, Tensor]) -> None:
    """Refuse a description whose network is larger than the weights in the file, before memory is taken for it."""
    if len(description.class_names) < 2:
        raise FedGAError(f"{path} tells fewer than two classes apart: give an intact copy")
    try:
        with torch.device("meta"):
            shapes = build_model(
                name, description.input_shape, len(description.class_names), norm=description.spec.norm
            )
    except Exception as error:
        raise FedGAError(
            f"{path} describes samples of shape {quoted(description.input_shape)}, for which there is no model {name}: "
            "give an intact copy"
        ) from error
    known = shapes.state_dict()
    if any(each not in known or _kind(known[each]) != _kind(tensor) for each, tensor in weights.items()):
        raise FedGAError(f"the weights in {path} do not fit model {name}: give an intact copy")
    if lost := [each for each in trained_parameters(shapes) if each not in weights]:
        raise FedGAError(f"{path} has no weights {', '.join(lost[:3])}, which model {name} needs: give an intact copy")
