"""A saved model as something to predict with, and as a program that needs no fedga."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedga
from fedga.data import Dataset, load_dataset
from fedga.engine.device_data import InputScaling
from fedga.errors import FedGAError
from fedga.models import build_model
from fedga.spec.settings import RunSpec
from fedga.study.export import export_model
from fedga.study.model_files import save_model
from fedga.study.trained import ROWS_AT_ONCE, TrainedModel

FEATURES = ("age", "pressure", "sugar")


def table() -> Dataset:
    rows, generator = 40, np.random.default_rng(0)
    values = generator.normal(size=(rows, 3)).astype(np.float32) * 50
    labels = np.arange(rows) % 2
    return Dataset("table", values, labels, values, labels, ("healthy", "ill"), 1.0, feature_names=FEATURES)


def colours() -> Dataset:
    pictures = np.random.default_rng(0).integers(0, 256, (12, 3, 16, 16), dtype=np.uint8)
    pictures[:, 1] //= 3  # channels of several means
    labels = np.arange(12) % 2
    return Dataset("colours", pictures, labels, pictures, labels, ("healthy", "ill"))


def saved(dataset: Dataset, folder: Path, model: str = "mlp", standardize: bool = True) -> tuple[TrainedModel, Path]:
    network = build_model(model, dataset.input_shape, dataset.num_classes, seed=3)
    path = folder / "one.safetensors"
    spec = RunSpec(dataset="digits", alpha=0.1, clients=10, active=2, model=model, standardize=standardize)
    save_model(path, spec, dataset, {name: tensor.detach() for name, tensor in network.state_dict().items()})
    return fedga.load_model(path), path


@pytest.mark.parametrize("standardize", [True, False])
def test_it_answers_as_its_network_does_on_scaled_samples(standardize: bool, tmp_path: Path) -> None:
    dataset = colours()
    model, _ = saved(dataset, tmp_path, "lenet", standardize)
    pictures = np.tile(dataset.test_inputs, (100, 1, 1, 1))[: ROWS_AT_ONCE + 5]  # more than go through it at once
    network = build_model("lenet", dataset.input_shape, 2, seed=3).eval()
    with torch.no_grad():
        inputs = InputScaling.of(dataset, standardize).apply(torch.from_numpy(pictures))
        expected = network(inputs).double().softmax(1).numpy()
    np.testing.assert_allclose(model.predict_proba(pictures), expected, rtol=0, atol=1e-6)
    assert model.predict(pictures).tolist() == [model.class_names[at] for at in expected.argmax(1)]
    assert not model.network.training
    assert model.predict_proba(pictures[:0]).shape == (0, 2)


def test_columns_of_a_data_frame_are_found_by_name(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    model, _ = saved(table(), tmp_path)
    rows = table().test_inputs
    frame = pandas.DataFrame(rows, columns=list(FEATURES))
    mixed = frame[["sugar", "age", "pressure"]].assign(name="somebody")
    assert np.array_equal(model.predict_proba(mixed), model.predict_proba(rows))
    with pytest.raises(FedGAError, match=r"lacks 1 of the 3 columns .*, sugar \(columns it has .*: glucose\)"):
        model.predict(frame.rename(columns={"sugar": "glucose"}))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda pictures: pictures[0], r"has shape \[1, 8, 8\].* one sample is X\[None\]"),
        (lambda pictures: pictures[..., 0], r"reads \[samples, 1, 8, 8\]"),
        (lambda pictures: pictures / 16.0, "fractions from 0 to 1.* larger numbers"),
        (lambda pictures: np.where(pictures == 0, np.nan, pictures), "NaN"),
        (lambda pictures: pictures.astype(str), "give numbers"),
        (lambda pictures: [[1], [1, 2]], "no array"),
    ],
)
def test_samples_that_it_cannot_read_are_refused(change: object, sentence: str, tmp_path: Path) -> None:
    dataset = load_dataset("digits")
    model, _ = saved(dataset, tmp_path)
    with pytest.raises(FedGAError, match=sentence):
        model.predict_proba(change(dataset.test_inputs))  # type: ignore[operator]


def test_whole_numbers_are_refused_by_a_model_of_fractions(tmp_path: Path) -> None:
    dataset = load_dataset("digits")
    split = {name: getattr(dataset, name).astype(np.float32) / 16 for name in ("train_inputs", "test_inputs")}
    model, _ = saved(replace(dataset, input_scale=1.0, **split), tmp_path)
    assert model.predict_proba(split["test_inputs"]).shape == (359, 10)
    with pytest.raises(FedGAError, match=r"values up to 240, .* trained on fractions"):
        model.predict(dataset.test_inputs * np.uint8(15))


def test_an_exported_program_gives_the_same_probabilities(tmp_path: Path) -> None:
    dataset = colours()
    model, _ = saved(dataset, tmp_path, "lenet")
    path = export_model(model, tmp_path / "one.pt2")
    notes = {"about.json": ""}
    program = torch.export.load(path, extra_files=notes).module()
    for samples in (dataset.test_inputs, dataset.test_inputs[:1]):  # any number of them
        found = program(torch.from_numpy(samples).float()).numpy()
        np.testing.assert_allclose(found, model.predict_proba(samples), rtol=0, atol=1e-6)
    assert json.loads(json.loads(notes["about.json"])["class_names"]) == list(dataset.class_names)
    assert json.loads((tmp_path / "one.json").read_text(encoding="utf-8"))["input_shape"] == ["samples", 3, 16, 16]


@pytest.mark.skipif(importlib.util.find_spec("onnxscript") is not None, reason="what ONNX needs is here")
def test_without_what_onnx_needs_it_is_said(tmp_path: Path) -> None:
    model, _ = saved(table(), tmp_path)
    with pytest.raises(FedGAError, match=r"ONNX needs .*pip install"):
        export_model(model, tmp_path / "one.onnx", "onnx")


def test_dir_shows_everything_public() -> None:
    assert {"load_model", "simulate", "FedGAClassifier", "ErrorAsymmetry", *fedga.__all__} <= set(dir(fedga))
