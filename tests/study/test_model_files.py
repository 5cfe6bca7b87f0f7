"""Trained models on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedga.data import load_dataset
from fedga.engine.device_data import InputScaling
from fedga.engine.stack.stacked import StackedModel
from fedga.errors import FedGAError
from fedga.models import build_model
from fedga.spec.settings import RunSpec
from fedga.study.model_files import load_model, model_path, save_model
from fedga.study.prepare import fitting_model

SPEC = RunSpec(dataset="digits", alpha=0.1, clients=10, active=2, standardize=True)


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    model = build_model("mlp", (1, 8, 8), 10, seed=3)
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def test_model_comes_back_as_it_was(tmp_path: Path, weights: dict[str, torch.Tensor]) -> None:
    dataset, path = load_dataset("digits"), tmp_path / "models" / "one.safetensors"
    save_model(path, SPEC, dataset, weights)
    saved = load_model(path)
    assert saved.spec == SPEC
    assert (saved.input_shape, saved.class_names) == (dataset.input_shape, dataset.class_names)
    assert not saved.model.training
    assert all(torch.equal(saved.model.state_dict()[name], tensor) for name, tensor in weights.items())
    pixels = InputScaling.of(dataset, standardize=True)
    assert torch.equal(saved.pixels.scale, pixels.scale)
    assert torch.equal(saved.pixels.shift, pixels.shift)
    assert RunSpec.from_json(path.with_suffix(".json").read_text(encoding="utf-8")) == SPEC
    assert sorted(found.name for found in path.parent.iterdir()) == ["one.json", "one.safetensors"]


@pytest.mark.parametrize("failing", ["one.safetensors", "one.json"])
def test_failed_write_leaves_the_old_file(
    failing: str, tmp_path: Path, weights: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, path = load_dataset("digits"), tmp_path / "one.safetensors"
    save_model(path, SPEC, dataset, weights)
    before = (tmp_path / failing).read_bytes()

    def half(self: Path, write: Callable[..., int], data: Any, **options: Any) -> int:
        if (failing == "one.json") != ("json" in self.name):
            return write(self, data, **options)
        write(self, data[:100], **options)
        raise OSError(28, "No space left on device")

    for name in ("write_bytes", "write_text"):
        monkeypatch.setattr(Path, name, partialmethod(half, getattr(Path, name)))
    with pytest.raises(OSError, match="No space"):
        save_model(path, SPEC, dataset, {name: tensor + 1 for name, tensor in weights.items()})
    assert (tmp_path / failing).read_bytes() == before
    assert sorted(found.name for found in tmp_path.iterdir()) == ["one.json", "one.safetensors"]


def test_names_tell_runs_apart_and_suit_every_file_system(tmp_path: Path) -> None:
    specs = [
        SPEC,
        RunSpec(dataset="/data/my set.csv", partition="iid", active=2, algorithm="fedprox:mu=0.1", preset="strong"),
        RunSpec(dataset="/data/my set.csv", partition="iid", active=2, algorithm="fedprox:mu=0.1", lr=0.2),
    ]
    names = [model_path(tmp_path, spec, averaged).name for spec in specs for averaged in (False, True)]
    assert len(set(names)) == 6
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.=") for name in names)
    assert names[0].startswith("digits-alpha0.1-fedga-own-seed0-")
    assert names[1].endswith("-averaged.safetensors")
    assert names[2].startswith("my_set-fedprox_mu=0.1-strong-seed0-")


def test_weights_that_are_missing_are_not_made_up(tmp_path: Path, weights: dict[str, torch.Tensor]) -> None:
    path = tmp_path / "one.safetensors"
    save_model(path, SPEC, load_dataset("digits"), {name: weights[name] for name in weights if name != "output.weight"})
    with pytest.raises(FedGAError, match=r"has no weights output.weight, which model mlp needs: give an intact copy"):
        load_model(path)


class Tied(nn.Module):
    """Two names of one weight, as in an autoencoder."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.first, self.again = nn.Linear(64, 64), nn.Linear(64, 64)
        self.again.weight = self.first.weight
        self.last = nn.Linear(64, num_classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(self.again(self.first(inputs.flatten(1)).relu()).relu())


@pytest.mark.parametrize("model", ["resnet20", "tests.study.test_model_files:Tied"])
def test_what_the_engine_writes_is_all_that_is_needed(model: str, tmp_path: Path) -> None:
    """Running means, but no counters of batches, and of weights with two names the first."""
    spec, dataset, path = replace(SPEC, model=model), load_dataset("digits"), tmp_path / "one.safetensors"
    built = fitting_model(model, dataset.input_shape, dataset.num_classes, norm=spec.norm)
    stacked = StackedModel(built)
    trained = dict.fromkeys((*stacked.params.shapes, *stacked.buffers.shapes))
    weights = {name: value + 1 for name, value in built.state_dict().items() if name in trained}
    assert len(weights) < len(built.state_dict())
    save_model(path, spec, dataset, weights)
    loaded = load_model(path, model).model.state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in weights.items())


def test_what_is_no_model_is_refused_in_a_sentence(tmp_path: Path, weights: dict[str, torch.Tensor]) -> None:
    path = tmp_path / "one.safetensors"
    with pytest.raises(FedGAError, match="there is no model file"):
        load_model(path)
    save_model(path, SPEC, load_dataset("digits"), weights)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FedGAError, match=r"is damaged .*: give an intact copy"):
        load_model(path)
    description = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    assert description["dataset"] == "digits"
