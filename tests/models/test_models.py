"""Networks by name: their sizes, what they refuse, and weights that depend on the seed alone."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedga import plugins
from fedga.errors import FedGAError
from fedga.models import MODELS, LeNet, ResNet20, build_model, known_models

CPU_SHAPE = (1, 16, 16)


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "classes", "expected"),
    [
        ("mlp", (1, 28, 28), 10, 101_770),
        ("lenet", (3, 32, 32), 10, 62_006),
        ("resnet20", (3, 32, 32), 10, 269_722),
        ("resnet20", (3, 32, 32), 100, 275_572),
        ("resnet20", (3, 64, 64), 200, 282_072),
    ],
)
def test_parameter_counts_of_the_method(name: str, shape: tuple[int, ...], classes: int, expected: int) -> None:
    assert count(build_model(name, shape, classes)) == expected


def test_group_norm_has_as_many_parameters_and_no_statistics() -> None:
    model = build_model("resnet20", (3, 32, 32), 10, norm="group")
    assert count(model) == 269_722
    assert not list(model.buffers())
    kinds = {type(module) for module in model.modules()}
    assert nn.GroupNorm in kinds
    assert nn.BatchNorm2d not in kinds


@pytest.mark.parametrize("classes", [2, 7])
@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 17, 23), (3, 64, 64)])
@pytest.mark.parametrize("name", MODELS)
def test_every_network_takes_every_size(name: str, shape: tuple[int, ...], classes: int) -> None:
    logits = build_model(name, shape, classes)(torch.rand(2, *shape))
    assert logits.shape == (2, classes)
    assert logits.isfinite().all()


@pytest.mark.parametrize("name", MODELS)
def test_every_network_is_new_but_the_same_for_a_seed(name: str) -> None:
    one, again, other = (build_model(name, CPU_SHAPE, 4, seed=seed).state_dict() for seed in (5, 5, 6))
    assert all(torch.equal(one[key], again[key]) for key in one)
    moving = [key for key in one if key.endswith("weight") and one[key].dim() > 1]
    assert not any(torch.equal(one[key], other[key]) for key in moving)
    assert moving


@pytest.mark.parametrize("name", MODELS)
def test_building_leaves_the_global_generator_alone(name: str) -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    build_model(name, CPU_SHAPE, 4)
    assert torch.equal(torch.get_rng_state(), state)
    expected = build_model(name, CPU_SHAPE, 4).state_dict()
    torch.manual_seed(2)
    torch.rand(3)
    found = build_model(name, CPU_SHAPE, 4).state_dict()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_lenet_is_the_papers() -> None:
    model = LeNet((3, 32, 32), 10)
    assert (model.conv1.out_channels, model.conv2.out_channels) == (6, 16)
    assert [layer.out_features for layer in (model.fc1, model.fc2, model.fc3)] == [120, 84, 10]
    inputs = features = torch.rand(2, 3, 32, 32)
    for layer in (model.conv1, model.conv2):
        features = nn.functional.max_pool2d(layer(features).relu(), 2)
    features = model.fc2(model.fc1(features.flatten(1)).relu()).relu()
    torch.testing.assert_close(model(inputs), model.fc3(features))


def test_resnet_shortcuts_are_option_a() -> None:
    """Where the picture halves, the shortcut drops pixels and adds channels of zeros, and has no parameters."""
    model = ResNet20((3, 32, 32), 10)
    block = model.blocks[3]
    for convolution in (block.conv1, block.conv2):
        nn.init.zeros_(convolution.weight)
    inputs = torch.rand(2, 16, 8, 8)
    outputs = block.eval()(inputs)
    assert outputs.shape == (2, 32, 4, 4)
    torch.testing.assert_close(outputs[:, 8:24], inputs[:, :, ::2, ::2])
    assert (outputs[:, :8] == 0).all()
    assert (outputs[:, 24:] == 0).all()
    assert all(module.bias is None for module in model.modules() if isinstance(module, nn.Conv2d))


def test_resnet_weights_are_kaiming_normal() -> None:
    model = build_model("resnet20", (3, 32, 32), 10)
    weights = model.blocks[-1].conv1.weight  # type: ignore[index, union-attr]
    assert weights.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.02)


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 15, 16), (1, 16, 15), (3, 8, 8), (20,)])
def test_lenet_on_pictures_that_are_too_small(shape: tuple[int, ...]) -> None:
    sizes = "×".join(map(str, shape))
    with pytest.raises(FedGAError, match=f"at least 16×16 pixels and the samples are {sizes}: use --model mlp"):
        build_model("lenet", shape, 10)


def test_resnet_on_a_table() -> None:
    with pytest.raises(FedGAError, match="needs pictures"):
        build_model("resnet20", (20,), 10)


def test_mlp_on_a_table() -> None:
    assert build_model("mlp", (20,), 3)(torch.rand(5, 20)).shape == (5, 3)


@pytest.mark.parametrize(("name", "nearest"), [("lent", "lenet"), ("resnet", "resnet20"), ("MLP", None)])
def test_an_unknown_network(name: str, nearest: str | None) -> None:
    hint = f"did you mean '{nearest}'" if nearest else "known: .*mlp"
    with pytest.raises(FedGAError, match=f"unknown model '{name}'.*{hint}"):
        build_model(name, CPU_SHAPE, 4)


@pytest.mark.parametrize("name", ["mlp", "lenet"])
def test_group_norm_where_there_is_no_norm(name: str) -> None:
    with pytest.raises(FedGAError, match="has no normalisation layers: leave --norm out"):
        build_model(name, CPU_SHAPE, 4, norm="group")


def test_an_unknown_norm() -> None:
    with pytest.raises(FedGAError, match="unknown norm 'bach': did you mean 'batch'"):
        build_model("resnet20", (3, 32, 32), 10, norm="bach")


# --- networks of the user's own --------------------------------------------------------------------------------------

SOURCE = """
import torch
from torch import nn

class Small(nn.Module):
    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.output = nn.Linear(input_shape[0] * input_shape[1] * input_shape[2], num_classes)

    def forward(self, inputs):
        return self.output(inputs.flatten(1))

class Broken(nn.Module):
    def __init__(self, input_shape, num_classes):
        raise TypeError("my own mistake")

def text(input_shape, num_classes):
    return "not a network"

number = 3
"""


@pytest.fixture
def own_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "their_package").mkdir()
    (tmp_path / "their_package" / "__init__.py").touch()
    (tmp_path / "their_package" / "networks.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("their_package", "their_package.networks"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "their_package.networks"


def test_a_network_by_import_path(own_package: str) -> None:
    model = build_model(f"{own_package}:Small", (1, 4, 4), 3, seed=2)
    assert type(model).__name__ == "Small"
    assert model(torch.rand(2, 1, 4, 4)).shape == (2, 3)
    again = build_model(f"{own_package}:Small", (1, 4, 4), 3, seed=2)
    assert torch.equal(model.output.weight, again.output.weight)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("their_package.networks:Smal", "cannot be imported: .*Smal"),
        ("their_package.nets:Small", "cannot be imported: .*their_package.nets"),
        ("no_such_package:Small", "cannot be imported: .*no_such_package"),
        ("their_package.networks:", "cannot be imported"),
        (":Small", "cannot be imported"),
        (".networks:Small", "cannot be imported"),
        ("their_package.networks:text", "gave a str, not a torch.nn.Module"),
        ("their_package.networks:number", "number"),
    ],
)
def test_import_paths_that_lead_nowhere(own_package: str, name: str, words: str) -> None:
    with pytest.raises(FedGAError, match=words):
        build_model(name, CPU_SHAPE, 4)


def test_an_error_in_the_users_own_network_is_shown_as_it_is(own_package: str) -> None:
    with pytest.raises(TypeError, match="my own mistake"):
        build_model(f"{own_package}:Broken", CPU_SHAPE, 4)


class Own(nn.Module):
    def __init__(self, input_shape: tuple[int, ...], num_classes: int, norm: str = "batch") -> None:
        super().__init__()
        self.norm, self.output = norm, nn.Linear(input_shape[0], num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.output(inputs.mean((2, 3)))


def test_a_network_by_callable() -> None:
    assert build_model(Own, (3, 4, 4), 2)(torch.rand(1, 3, 4, 4)).shape == (1, 2)
    assert build_model(Own, (3, 4, 4), 2, norm="group").norm == "group"


def test_an_installed_package_offers_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def entry_points(group: str) -> list[EntryPoint]:
        asked.append(group)
        return [EntryPoint("theirs", f"{__name__}:Own", group)]

    monkeypatch.setattr(plugins, "entry_points", entry_points)
    assert isinstance(build_model("theirs", (3, 4, 4), 2), Own)
    assert known_models().keys() == {*MODELS, "theirs"}
    assert set(asked) == {"fedga.models"}
    with pytest.raises(FedGAError, match="did you mean 'theirs'"):
        build_model("their", (3, 4, 4), 2)
