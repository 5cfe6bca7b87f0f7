"""Networks whose weights are standardised."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fedga.engine.gpu.layers import StackedConv2d
from fedga.engine.stack.layers import prepare_for_padding
from fedga.errors import FedGAError
from fedga.models import build_model
from fedga.models.standardized import StandardizedConv2d, StandardizedLinear, standardized
from tests.engine.runs import make_dataset, make_federation, make_lane
from tests.engine.test_engine_equals_reference import assert_engine_equals_reference


def test_every_output_has_weights_of_mean_0_and_one_length() -> None:
    weight = standardized(3 + torch.randn(7, 3, 5, 5, generator=torch.Generator().manual_seed(0)))
    torch.testing.assert_close(weight.mean((1, 2, 3)), torch.zeros(7), rtol=0, atol=1e-6)
    torch.testing.assert_close(weight.square().sum((1, 2, 3)), torch.full((7,), 2.0))


@pytest.mark.parametrize(("name", "norm"), [("mlp", "weight"), ("lenet", "weight"), ("resnet20", "group+weight")])
def test_neither_length_nor_mean_of_the_weights_changes_what_the_network_says(name: str, norm: str) -> None:
    """But for its head; and parameters have the names, shapes and first values that they have without."""
    layers = "group" if norm == "group+weight" else "batch"
    model, plain = (build_model(name, (3, 32, 32), 10, norm=kind).eval() for kind in (norm, layers))
    pairs = zip(model.named_parameters(), plain.named_parameters(), strict=True)
    assert all(mine == theirs and torch.equal(one, other) for (mine, one), (theirs, other) in pairs)
    inputs = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    before = model(inputs)
    assert not torch.allclose(before, plain(inputs), atol=1e-3)
    layers_of = [each for each in model.modules() if isinstance(each, StandardizedConv2d | StandardizedLinear)]
    assert len(layers_of) == {"mlp": 1, "lenet": 4, "resnet20": 19}[name]
    with torch.no_grad():
        for layer in layers_of:
            layer.weight.mul_(3).add_(0.2)
    torch.testing.assert_close(model(inputs), before, rtol=1e-3, atol=1e-3)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("model", "norm", "algorithm"),
    [("mlp", "weight", "fedga"), ("lenet", "weight", "moon"), ("resnet20", "group+weight", "fedavg")],
)
def test_they_train_alike_in_the_engine_and_the_plain_loop(model: str, norm: str, algorithm: str) -> None:
    dataset = make_dataset({"lenet": (1, 16, 16)}.get(model, (3, 8, 8)), samples=80)
    federation = make_federation(dataset, (21, 13, 4, 9))
    settings: dict[str, Any] = {"norm": norm, "local_epochs": 1, "evaluate_every": 100, "diagnose_every": 100}
    assert_engine_equals_reference(make_lane(dataset, federation, model, algorithm, **settings))


def test_standardised_convolutions_run_as_one_kernel_for_all_copies() -> None:
    model = build_model("lenet", (3, 32, 32), 10, norm="weight").eval()
    prepared, _ = prepare_for_padding(model)
    assert isinstance(prepared.conv1, StackedConv2d)
    inputs = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(prepared.eval()(inputs), model(inputs))


def test_what_cannot_be_standardised_is_refused() -> None:
    with pytest.raises(FedGAError, match="model mlp has no normalisation layers: give --norm weight"):
        build_model("mlp", (4,), 3, norm="group+weight")
    with pytest.raises(FedGAError, match="has no layer before its head whose weights --norm weight could standardise"):
        build_model(lambda shape, classes: nn.Linear(*shape, classes), (4,), 3, norm="weight")
