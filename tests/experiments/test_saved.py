"""Trained models on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedga.data import load_dataset
from fedga.errors import FedGAError
from fedga.experiments.saved import load_model, model_path, save_model
from fedga.experiments.spec import RunSpec
from fedga.models import build_model
from fedga.simulation.device_data import Pixels

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
    pixels = Pixels.of(dataset, standardize=True)
    assert torch.equal(saved.pixels.scale, pixels.scale)
    assert torch.equal(saved.pixels.shift, pixels.shift)
    assert RunSpec.from_json(path.with_suffix(".json").read_text(encoding="utf-8")) == SPEC
    assert sorted(found.name for found in path.parent.iterdir()) == ["one.json", "one.safetensors"]


def test_failed_write_leaves_the_old_model(
    tmp_path: Path, weights: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, path = load_dataset("digits"), tmp_path / "one.safetensors"
    save_model(path, SPEC, dataset, weights)
    before = path.read_bytes()
    write = Path.write_bytes

    def half(self: Path, data: Any) -> int:
        write(self, data[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(OSError, match="No space"):
        save_model(path, SPEC, dataset, {name: tensor + 1 for name, tensor in weights.items()})
    assert path.read_bytes() == before
    assert sorted(found.name for found in tmp_path.iterdir()) == ["one.json", "one.safetensors"]


def test_half_a_model_of_a_killed_process_is_in_nobodys_way(tmp_path: Path, weights: dict[str, torch.Tensor]) -> None:
    path = tmp_path / "one.safetensors"
    path.with_suffix(".unfinished").write_bytes(b"half")
    save_model(path, SPEC, load_dataset("digits"), weights)
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


def test_what_is_no_model_is_refused_in_a_sentence(tmp_path: Path, weights: dict[str, torch.Tensor]) -> None:
    path = tmp_path / "one.safetensors"
    with pytest.raises(FedGAError, match="there is no model file"):
        load_model(path)
    save_model(path, SPEC, load_dataset("digits"), weights)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FedGAError, match="is not a whole safetensors file"):
        load_model(path)
    description = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    assert description["dataset"] == "digits"
