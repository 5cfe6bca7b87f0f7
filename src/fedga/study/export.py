"""A trained model as a program that needs no fedga: stored samples in, probabilities out, scaling inside."""

import importlib
import io
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedga.common.files import write_whole
from fedga.errors import FedGAError, check_known
from fedga.store.database import one_line
from fedga.study.trained import TrainedModel

FORMATS = {"torch-export": ".pt2", "onnx": ".onnx"}  # TorchScript is deprecated in PyTorch
NOTES = "about.json"  # the extra file of a .pt2 file
_ONNX = ("onnx", "onnxscript")


class _Probabilities(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, samples: Tensor) -> Tensor:
        return self.network(samples).softmax(1)


def export_model(model: TrainedModel, path: Path, format: str = "torch-export") -> Path:  # noqa: A002 - the flag's name
    """Write the model to ``path``, and what its inputs and outputs mean inside and in a ``.json`` beside it.

    The program takes float32 samples as they are stored, ``[samples, *input_shape]``, any number of them, and returns
    probabilities ``[samples, classes]``.
    """
    check_known("format", format, FORMATS)
    if missing := [name for name in _ONNX if format == "onnx" and not _is_installed(name)]:
        raise FedGAError(f"ONNX needs {' and '.join(missing)}, not installed: pip install {' '.join(missing)}")
    notes = notes_of(model)
    network = _Probabilities(model.network).cpu().eval()
    samples = torch.zeros(2, *model.input_shape)
    dynamic: Any = ({0: torch.export.Dim("samples", min=1)},)
    content = io.BytesIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's, on its own code
            if format == "onnx":
                program: Any = torch.onnx.export(
                    network, (samples,), dynamic_shapes=dynamic, dynamo=True, verbose=False
                )
                program.model.metadata_props.update(notes)
                content.write(program.model_proto.SerializeToString())
            else:
                exported = torch.export.export(network, (samples,), dynamic_shapes=dynamic)
                torch.export.save(exported, content, extra_files={NOTES: json.dumps(notes)})
    except Exception as error:  # the network may be the user's own, and PyTorch raises what it likes
        cure = "see https://pytorch.org/docs/stable/export.html for what its forward may do"
        raise FedGAError(f"{model.name} cannot be exported as {format} ({one_line(error)}): {cure}") from error
    finally:
        model.network.to(model.device)
    write_whole(path, content.getvalue())
    write_whole(path.with_suffix(".json"), json.dumps(_readable(notes), indent=2, ensure_ascii=False) + "\n")
    return path


def notes_of(model: TrainedModel) -> dict[str, str]:
    """What somebody needs to know to use the program, as texts of JSON."""
    notes = {
        "class_names": model.class_names,
        "feature_names": model.feature_names,
        "input_shape": ["samples", *model.input_shape],
        "input": "float32, samples as they are stored: scaling is inside",
        "output": "probabilities [samples, classes] in the order of class_names",
        "run": json.loads(model.spec.to_json()),
    }
    return {name: json.dumps(value) for name, value in notes.items()}


def _readable(notes: Mapping[str, str]) -> dict[str, Any]:
    return {name: json.loads(value) for name, value in notes.items()}


def _is_installed(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True
