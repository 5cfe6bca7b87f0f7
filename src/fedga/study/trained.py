"""A saved model as something to predict with: stored samples in, probabilities out, as NumPy arrays."""

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedga.data.assemble import listed
from fedga.engine.device_data import InputScaling
from fedga.errors import FedGAError, a_or_an
from fedga.spec.settings import RunSpec
from fedga.study.model_files import SavedModel
from fedga.study.model_files import load_model as load_saved
from fedga.study.prepare import choose_device

ROWS_AT_ONCE = 1024  # samples in the network at a time
_NAMED = 8  # columns in one sentence
_PICTURE_AXES = 3
_FRACTIONS_SPREAD = 2  # fractions from 0 to 1 lie closer together
_FAR = 100  # deviations, where no picture's value lies


class ScaledNetwork(nn.Module):
    """A network with its input scaling in front: stored ``[samples, *input_shape]`` to logits ``[samples, classes]``.

    Scale and shift are buffers, so that both move, and are exported, with the weights.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, network: nn.Module, scaling: InputScaling) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("scale", scaling.scale.clone())
        self.register_buffer("shift", scaling.shift.clone())

    def forward(self, samples: Tensor) -> Tensor:
        return self.network(InputScaling(self.scale, self.shift).apply(samples))


class TrainedModel:
    """A model of `fedga.load_model`.

    - ``predict_proba(X)``: probabilities ``[samples, classes]``, float64, in the order of ``class_names``.
    - ``predict(X)``: the names of the most probable classes, ``[samples]``.
    - ``network``: the `torch.nn.Module` in eval mode, which takes samples as they are stored (scaling is inside) and
      returns logits.
    - ``spec``: the settings of the run it comes from. ``input_shape``, ``class_names`` and ``feature_names`` (the
      columns of a table, else none) are those of its data.

    ``X`` is ``[samples, *input_shape]`` as the data set was: pictures as whole numbers if they were, features in the
    order of ``feature_names``. A DataFrame's columns are found by these names, in any order; others are left alone.
    """

    def __init__(self, saved: SavedModel, device: str | torch.device = "cpu", name: str = "the model") -> None:
        self.name = name
        self.spec: RunSpec = saved.spec
        self.class_names, self.feature_names = saved.class_names, saved.feature_names
        self.input_shape = saved.input_shape
        self.saved, self.device = saved, choose_device(str(device), "device")
        network = ScaledNetwork(saved.model, saved.pixels).to(self.device)
        self.network: nn.Module = network.eval().requires_grad_(False)

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.input_shape))
        run = f"{self.spec.algorithm} on {self.spec.dataset}, {self.spec.rounds} rounds"
        return f"TrainedModel({self.spec.model}: {shape} to {len(self.class_names)} classes; {run})"

    def predict_proba(self, X: Any, *, shift: np.ndarray | None = None) -> np.ndarray:  # noqa: N803 - as scikit-learn
        """Probabilities ``[samples, classes]``; ``shift`` is added to the logits (`fedga.measures.prior`)."""
        parts = list(self.batches(self.checked(X), shift))
        return np.concatenate(parts) if parts else np.empty((0, len(self.class_names)))

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """The name of the most probable class of every sample."""
        return np.array(self.class_names, dtype=str)[self.predict_proba(X).argmax(1)]

    @torch.inference_mode()
    def batches(self, samples: np.ndarray, shift: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """Probabilities of samples that are `checked`, some rows at a time."""
        moved = None if shift is None else torch.from_numpy(np.asarray(shift, dtype=np.float64)).to(self.device)
        for first in range(0, len(samples), ROWS_AT_ONCE):
            rows = np.require(samples[first : first + ROWS_AT_ONCE], requirements=["C", "W"])
            logits = self.network(torch.from_numpy(rows).to(self.device)).double()
            yield (logits if moved is None else logits + moved).softmax(1).cpu().numpy()

    def checked(self, X: Any, called: str = "X") -> np.ndarray:  # noqa: N803
        """``X`` as an array that the network can read; an error where it is none."""
        if columns := [str(name) for name in getattr(X, "columns", ())]:
            X = self._by_name(X, columns)  # noqa: N806
        if isinstance(X, Tensor):
            X = X.detach().cpu().numpy()  # noqa: N806
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of NumPy, on rows of several lengths: an error says more
                samples = np.asarray(X)
        except (ValueError, TypeError) as error:
            raise FedGAError(
                f"{called} is {a_or_an(X)} that is no array ({error}): give numbers of one shape"
            ) from None
        if samples.dtype.kind not in "uifb":
            raise FedGAError(f"{called} holds values of type {samples.dtype}: give numbers")
        if samples.ndim == 0 or samples.shape[1:] != self.input_shape:
            wanted = ", ".join(["samples", *map(str, self.input_shape)])
            one = "; one sample is X[None]" if samples.shape == self.input_shape else ""
            raise FedGAError(
                f"{called} has shape {list(samples.shape)}, and {self.name} reads [{wanted}]: give that shape{one}"
            )
        self._check_values(samples, called)
        return samples if samples.dtype == np.uint8 else samples.astype(np.float32, copy=False)

    def _by_name(self, table: Any, columns: Sequence[str]) -> Any:
        """The columns it was trained on, of a DataFrame."""
        if not self.feature_names:
            return table.to_numpy()
        check_features(columns, self.feature_names, "X", self.name)
        return table[list(self.feature_names)].to_numpy()

    def _check_values(self, samples: np.ndarray, called: str) -> None:
        """Refuse pictures on another scale than those it was trained on, which would be answered without a word."""
        with np.errstate(over="ignore"):
            finite = samples.dtype.kind != "f" or np.isfinite(samples.astype(np.float32, copy=False)).all()
        if not finite:
            raise FedGAError(
                f"{called} has values that are NaN, infinite or too large: fill them in, or leave these rows out"
            )
        if len(self.input_shape) != _PICTURE_AXES or not samples.size:
            return
        # How far apart stored values lay: their deviation, or the number by which all were divided.
        spread, highest = 1 / float(self.saved.pixels.scale.min()), float(samples.max())
        fractions = samples.dtype.kind == "f" and bool((samples != np.rint(samples)).any())
        if spread > _FRACTIONS_SPREAD and fractions and float(samples.min()) >= 0 and highest <= 1:
            sentence = f"{called} has pictures of fractions from 0 to 1, and {self.name} was trained on larger numbers"
            raise FedGAError(f"{sentence}: give the pictures as they were stored (uint8, most likely)")
        far = samples.dtype == np.uint8 or self.spec.standardize
        if spread <= 1 and far and highest > _FAR * spread:
            sentence = f"{called} has pictures with values up to {highest:g}, and {self.name} was trained on fractions"
            raise FedGAError(f"{sentence}: divide them as those were (by 255, most likely)")


def check_features(columns: Sequence[str], features: Sequence[str], where: str, called: str) -> list[str]:
    """Refuse a table without some of the ``features`` of a model; the columns that are not among them.

    >>> check_features(["b", "a", "id"], ["a", "b"], "new.csv", "the model")
    ['id']
    """
    known, there = set(features), set(columns)
    further = [name for name in columns if name not in known]
    missing = [name for name in features if name not in there]
    if missing:
        has = f" (columns it has and {called} does not know: {listed(further, _NAMED)})" if further else ""
        needed = f"{where} lacks {len(missing)} of the {len(features)} columns that {called} was trained on"
        raise FedGAError(f"{needed}, {listed(missing, _NAMED)}{has}: add or rename them")
    return further


def load_model(
    path: str | os.PathLike[str],
    model: str | None = None,
    *,
    device: str | torch.device = "cpu",
    notice: Callable[[str], None] = warnings.warn,
) -> TrainedModel:
    """A model that `fedga run` or a federation saved, to predict with: a `TrainedModel`.

    ``model`` names your own network, ``package.module:Class``, where it is neither one of fedga's nor in your
    ``fedga.toml``: what a model's file says is never imported. ``notice`` hears whose code is run, and of a file
    without a digest.

    ```
    model = fedga.load_model("runs/digits-0f3a/models/digits-fedga.safetensors")
    model.predict_proba(pictures)  # [samples, classes]
    ```
    """
    path = Path(path)
    return TrainedModel(load_saved(path, model, notice), device, path.name)
