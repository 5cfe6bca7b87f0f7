"""Trained models on disk: a safetensors file that carries its own description."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from fedga.data import Dataset
from fedga.data.assemble import listed
from fedga.errors import FedGAError
from fedga.experiments.prepare import fitting_model
from fedga.experiments.spec import RunSpec
from fedga.files import write_whole
from fedga.simulation.device_data import Pixels
from fedga.simulation.stacked import float_buffers, trained_parameters

FORMAT = "fedga-model-1"
Columns = tuple[str | None, str | None]  # of labels and of clients


@dataclass(frozen=True)
class SavedModel:
    """A network with its weights, the run it comes from and the map from stored samples to its inputs."""

    spec: RunSpec
    model: nn.Module
    pixels: Pixels
    input_shape: tuple[int, ...]
    class_names: tuple[str, ...]
    feature_names: tuple[str, ...]  # the columns of a table, else none
    fingerprint: str  # of the data it was trained on

    def was_trained_on(self, dataset: str | None) -> bool:
        """Whether this is the name of its own data, or another spelling of their path; None names no others."""
        own = self.spec.dataset
        if dataset is None or dataset == own:
            return True
        return Path(dataset).exists() and Path(own).exists() and Path(dataset).samefile(own)

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
                f"{self.spec.dataset} is not what {called} was trained on, or has changed since: name the data to use "
                "with --dataset"
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
    from safetensors.torch import save

    pixels = Pixels.of(dataset, spec.standardize)
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
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")  # a killed process leaves one behind, the next one writes it again
    try:
        # Bytes through Python: the library's own writer makes files that nobody else may read.
        unfinished.write_bytes(save({name: tensor.contiguous() for name, tensor in weights.items()}, description))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    write_whole(path.with_suffix(".json"), json.dumps(json.loads(spec.to_json()), indent=2) + "\n")


def load_model(path: Path) -> SavedModel:
    """Read a model that `save_model` wrote."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise FedGAError(f"there is no model file {path}: give a .safetensors file from the folder models of a run")
    try:
        with safe_open(path, "pt") as file:
            description = file.metadata() or {}
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError) as error:
        raise FedGAError(f"{path} is not a whole safetensors file ({error}): give an intact copy") from error
    if description.get("format") != FORMAT:
        raise FedGAError(f"{path} was not written by fedga: give a model from the folder models of a run")
    try:
        spec = RunSpec.from_json(description["spec"])
        input_shape = tuple(json.loads(description["input_shape"]))
        class_names, feature_names = (tuple(json.loads(description[name])) for name in ("class_names", "feature_names"))
        fingerprint = description["fingerprint"]
        scale, shift = (torch.tensor(json.loads(description[name])) for name in ("pixel_scale", "pixel_shift"))
    except (KeyError, TypeError, ValueError) as error:
        raise FedGAError(
            f"{path} describes its run in a way this version cannot read ({error}): was it written by a newer fedga?"
        ) from error
    model = fitting_model(spec.model, input_shape, len(class_names), norm=spec.norm)
    initial = model.state_dict()
    trained = trained_parameters(model) | float_buffers(model)
    if lost := [name for name in trained if name in initial and name not in weights]:
        raise FedGAError(
            f"{path} has no weights {', '.join(lost[:3])}, which model {spec.model} needs: give an intact copy, or the "
            "code that the model was trained with"
        )
    try:
        model.load_state_dict(initial | weights)  # counters and tables are in no file
    except RuntimeError as error:
        raise FedGAError(f"the weights in {path} do not fit model {spec.model}: has its code changed since?") from error
    return SavedModel(spec, model, Pixels(scale, shift), input_shape, class_names, feature_names, fingerprint)
