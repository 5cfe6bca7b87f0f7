"""Many copies of a network as one tensor: the same numbers as the copies one by one, for every network."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedga.engine.stack.stacked import Layout, Outputs, StackedModel
from fedga.errors import FedGAError
from fedga.models import MLP, MODELS, LeNet, build_model
from tests.engine.runs import sum_of_logits

EXACT = {"rtol": 1e-12, "atol": 1e-12}
COPIES = 3


class Curved(MLP):
    """A user's network made from ours: other activations, the same parameters."""

    def forward(self, inputs: Tensor) -> Tensor:
        return self.output(torch.tanh(self.hidden(inputs.flatten(1))))


class Stack(nn.Module):
    """A user's network with a layer of an ordinary name."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.stacked = nn.Sequential(nn.Flatten(), nn.Linear(256, 8), nn.ReLU())
        self.output = nn.Linear(8, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.output(self.stacked(inputs))


NETWORKS: dict[str, Any] = {**MODELS, "subclass of mlp": Curved, "layer called stacked": Stack}


def networks(name: str) -> list[nn.Module]:
    return [build_model(NETWORKS[name], (1, 16, 16), 4, seed=seed).double() for seed in range(COPIES)]


def stack(model: StackedModel, modules: list[nn.Module]) -> tuple[Tensor, Tensor]:
    vectors = [model.flatten(module) for module in modules]
    return torch.stack([params for params, _ in vectors]), torch.stack([buffers for _, buffers in vectors])


def pictures(*shape: int) -> Tensor:
    return torch.rand(*shape, 1, 16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("copies", [1, COPIES])
@pytest.mark.parametrize("name", NETWORKS)
def test_evaluation_equals_the_copies_one_by_one(name: str, copies: int) -> None:
    modules = networks(name)[:copies]
    model = StackedModel(modules[0])
    params, buffers = stack(model, modules)
    shared, own = pictures(5), pictures(copies, 5)
    with torch.no_grad():
        expected = torch.stack([module.eval()(shared) for module in modules])
        torch.testing.assert_close(model.evaluate(params, buffers, shared), expected, **EXACT)
        expected = torch.stack([module.eval()(inputs) for module, inputs in zip(modules, own, strict=True)])
        torch.testing.assert_close(model.evaluate_each(params, buffers, own), expected, **EXACT)
    assert (expected[0] - expected[-1]).abs().max() > 1e-3 or copies == 1


@pytest.mark.parametrize("copies", [1, COPIES])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_training_step_equals_the_copies_one_by_one(name: str, copies: int) -> None:
    """Logits, gradients and the buffers afterwards; copies with 6, 5 and 4 real samples of 6."""
    modules = networks(name)[:copies]
    model = StackedModel(modules[0])
    params, buffers = stack(model, modules)
    inputs, real = pictures(copies, 6), [6, 5, 4][:copies]
    mask = (torch.arange(6) < torch.tensor(real)[:, None]).float()
    seen = []

    def loss(outputs: Outputs) -> Tensor:
        logits = outputs.logits
        seen.append(logits.detach().clone())
        return (logits.square().sum(-1) * mask).sum()

    keys = torch.zeros(copies, dtype=torch.int64)
    with torch.no_grad():
        gradient, moved = model.gradient(params, buffers, inputs, mask, keys, loss, torch.full_like(params, torch.nan))
    (logits,) = seen
    for row, module in enumerate(modules):
        expected = module.train()(inputs[row, : real[row]])
        expected.square().sum().backward()
        torch.testing.assert_close(logits[row, : real[row]], expected, **EXACT)
        wanted = model.params.flatten({name: parameter.grad for name, parameter in module.named_parameters()})
        torch.testing.assert_close(gradient[row], wanted, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(moved[row], model.flatten(module)[1], **EXACT)


@pytest.mark.parametrize("name", NETWORKS)
def test_vectors_go_back_into_an_ordinary_network(name: str) -> None:
    one, other, _ = networks(name)
    model = StackedModel(one)
    params, buffers = model.flatten(other)
    assert params.shape == (sum(parameter.numel() for parameter in one.parameters()),)
    model.unflatten(params, buffers, one)
    for key, value in other.state_dict().items():
        assert torch.equal(one.state_dict()[key], value), key


@pytest.mark.parametrize("name", NETWORKS)
def test_the_original_is_not_touched(name: str) -> None:
    module = networks(name)[0]
    before = copy.deepcopy(module.state_dict())
    kinds = [type(each) for each in module.modules()]
    model = StackedModel(module)
    params, buffers = stack(model, [module])
    keys = torch.zeros(1, dtype=torch.int64)
    scratch = torch.zeros_like(params)
    model.gradient(params, buffers, pictures(1, 4), torch.ones(1, 4), keys, sum_of_logits, scratch)
    assert [type(each) for each in module.modules()] == kinds
    assert all(parameter.requires_grad for parameter in module.parameters())
    for key, value in module.state_dict().items():
        assert torch.equal(value, before[key])


@pytest.mark.parametrize("name", MODELS)
def test_the_output_weights_are_found_by_name(name: str) -> None:
    module = networks(name)[0]
    model = StackedModel(module)
    weights = list(module.parameters())[-2]
    place = model.params.slices()[model.params.output_weight(4)]
    assert torch.equal(model.flatten(module)[0][place].view_as(weights), weights)
    assert model.params.head[0] == model.params.output_weight(4)
    assert model.params.features == weights.shape[1]


def test_the_last_of_several_layers_of_that_width_is_the_output() -> None:
    network = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    assert StackedModel(network).params.output_weight(4) == "2.weight"


def test_a_network_without_an_output_layer_is_refused_where_it_is_needed() -> None:
    with pytest.raises(FedGAError, match=r"no output layer with weights \[7, features\]"):
        StackedModel(nn.Linear(3, 4)).params.output_weight(7)


def test_layout_is_reversible() -> None:
    tensors = {"a": torch.rand(2, 3), "b": torch.tensor(5.0), "c": torch.rand(4)}
    layout = Layout(tensors)
    flat = layout.flatten(tensors)
    assert flat.tolist() == [*tensors["a"].flatten().tolist(), 5.0, *tensors["c"].tolist()]
    for vectors in (flat, flat.expand(2, -1), flat.expand(3, 2, -1)):
        views = layout.views(vectors.contiguous())
        for name, tensor in tensors.items():
            assert torch.equal(views[name], tensor.expand((*vectors.shape[:-1], *tensor.shape)))
        assert torch.equal(layout.join(views), vectors)


def test_a_network_whose_layers_were_changed_is_run_as_it_is_now() -> None:
    """Ours bring a training step written by hand, which knows nothing of a layer that somebody put in."""
    untouched, changed = LeNet((1, 16, 16), 3), LeNet((1, 16, 16), 3)
    changed.pool = nn.AvgPool2d(2)  # type: ignore[assignment]
    for network, by_hand in ((untouched, True), (changed, False)):
        model = StackedModel(network)
        params, buffers = (part[None] for part in model.flatten(network))
        inputs = torch.rand(1, 4, 1, 16, 16)
        given = (params, buffers, inputs, torch.ones(1, 4), torch.zeros(1, dtype=torch.int64), sum_of_logits)
        found, _ = model.gradient(*given, torch.empty_like(params))
        assert model.adds_gradients == by_hand
        network(inputs[0]).sum().backward()
        expected = torch.cat([parameter.grad.flatten() for parameter in network.parameters()])  # type: ignore[union-attr]
        torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-5)
