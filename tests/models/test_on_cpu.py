"""Convolution, pooling and LeNet's training step as they are computed on a CPU, against PyTorch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap

from fedga.models import build_model
from fedga.models.on_cpu import convolve, pool_pairs


def leaves(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(tensor.detach().clone().requires_grad_() for tensor in tensors)


@pytest.mark.parametrize(("stride", "padding"), [(1, (0, 0)), (2, (1, 2))])
@pytest.mark.parametrize("last", [False, True], ids=["planes", "channels-last"])
def test_a_convolution_and_its_derivatives(stride: int, padding: tuple[int, int], last: bool) -> None:
    torch.manual_seed(0)
    given = torch.randn(3, 5, 11, 9), torch.randn(7, 5, 4, 3), torch.randn(7)
    if last:
        given = (given[0].contiguous(memory_format=torch.channels_last), *given[1:])
    ours, theirs = leaves(*given), leaves(*given)
    found, expected = convolve(*ours, stride, padding), F.conv2d(*theirs, stride, padding)
    assert torch.equal(found, expected)
    direction = torch.randn_like(expected)
    derivatives = (torch.autograd.grad(each, of, direction) for each, of in ((found, ours), (expected, theirs)))
    for actual, wanted in zip(*derivatives, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-5, atol=1e-5)


def test_inside_transformations_they_are_pytorch_s_own() -> None:
    """A server differentiates the network for every class at once; a user may ask for a second derivative."""
    torch.manual_seed(0)
    weights, x = torch.randn(2, 7, 3, 3, 3), torch.randn(4, 3, 9, 8)

    def ours(weight: Tensor) -> Tensor:
        return pool_pairs(convolve(x, weight, None, 1, (0, 0))).square().sum()

    def theirs(weight: Tensor) -> Tensor:
        return F.max_pool2d(F.conv2d(x, weight), 2).square().sum()

    for twice in (grad, lambda loss: grad(lambda weight: grad(loss)(weight).square().sum())):
        found, expected = (vmap(twice(loss))(weights) for loss in (ours, theirs))
        torch.testing.assert_close(found, expected)


def test_one_picture_without_an_axis_of_samples() -> None:
    x = torch.randn(3, 9, 8, requires_grad=True)
    weight = torch.randn(7, 3, 3, 3)
    assert torch.equal(convolve(x, weight, None, 1, (0, 0)), F.conv2d(x, weight))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [(2, 2), (6, 8), (7, 5)])
def test_pooling_and_its_derivative_are_the_same_bits(size: tuple[int, int], dtype: torch.dtype) -> None:
    """Also among equals, of which the first one counts; few values make many of them."""
    torch.manual_seed(0)
    [ours], [theirs] = (leaves(torch.randint(-1, 2, (4, 3, *size)).to(dtype)) for _ in range(2))
    theirs.data.copy_(ours.data)
    found, expected = pool_pairs(ours), F.max_pool2d(theirs, 2)
    direction = torch.randn_like(expected)
    assert torch.equal(found, expected)
    assert torch.equal(pool_pairs(ours.detach()), expected)
    [actual], [wanted] = (torch.autograd.grad(each, of, direction) for each, of in ((found, ours), (expected, theirs)))
    assert torch.equal(actual, wanted)


@pytest.mark.parametrize("keep", [0.0, 0.9])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (2, 19, 26), (1, 26, 17)])
def test_a_step_of_lenet_by_hand_is_that_of_autograd(shape: tuple[int, ...], keep: float, float64: None) -> None:
    torch.manual_seed(0)
    networks = [build_model("lenet", shape, 5, seed=seed) for seed in range(2)]
    inputs, targets = torch.rand(2, 6, *shape), torch.randint(0, 5, (2, 6))
    inputs[:, 0] = 0.5  # among equals, the same one counts
    params = {name: torch.stack([dict(each.named_parameters())[name] for each in networks]).detach() for name, _ in
              networks[0].named_parameters()}  # fmt: skip
    before = {name: torch.randn_like(each) for name, each in params.items()}
    found = {name: each.clone() for name, each in before.items()}

    def loss_gradient(logits: Tensor) -> Tensor:
        return torch.softmax(logits, -1) - F.one_hot(targets, 5)

    networks[0].stacked_gradient(params, inputs, loss_gradient, found, keep)
    for copy, network in enumerate(networks):
        F.cross_entropy(network(inputs[copy]), targets[copy], reduction="sum").backward()
        for name, parameter in network.named_parameters():
            assert parameter.grad is not None
            torch.testing.assert_close(found[name][copy], keep * before[name][copy] + parameter.grad)


@pytest.mark.parametrize("keep", [0.0, 0.9])
def test_a_step_of_the_mlp_by_hand_is_that_of_autograd(keep: float) -> None:
    """In float32, where its products are another library's."""
    torch.manual_seed(0)
    networks = [build_model("mlp", (1, 28, 28), 5, seed=seed) for seed in range(3)]
    inputs, targets = torch.rand(3, 30, 1, 28, 28), torch.randint(0, 5, (3, 30))
    names = [name for name, _ in networks[0].named_parameters()]
    params = {name: torch.stack([each.get_parameter(name).detach() for each in networks]) for name in names}
    before = {name: torch.randn_like(each) for name, each in params.items()}
    found = {name: each.clone() for name, each in before.items()}

    def loss_gradient(logits: Tensor) -> Tensor:
        return torch.softmax(logits, -1) - F.one_hot(targets, 5)

    networks[0].stacked_gradient(params, inputs, loss_gradient, found, keep)
    logits = networks[0].stacked(params, inputs)
    for copy, network in enumerate(networks):
        outputs = network(inputs[copy])
        torch.testing.assert_close(logits[copy], outputs, rtol=1e-4, atol=1e-5)
        F.cross_entropy(outputs, targets[copy], reduction="sum").backward()
        for name in names:
            expected = keep * before[name][copy] + network.get_parameter(name).grad
            torch.testing.assert_close(found[name][copy], expected, rtol=1e-4, atol=1e-4)
