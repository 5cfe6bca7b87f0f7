"""Every kernel against PyTorch in float64; run by ``test_kernels``, in a process in which Triton interprets them.

The interpreter multiplies in float32 whatever precision a product asks for, so the bounds here are those of float32.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, nan
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedga.engine import device_data, optimizers
from fedga.engine.device_data import DeviceData
from fedga.engine.gpu import layers as accelerated
from fedga.engine.gpu.layers import StackedConv2d, StackedMaxPool2d, _Convolution, _Pooling, normalize
from fedga.engine.optimizers import LocalOptimizer
from fedga.engine.stack import layers
from fedga.engine.stack.layers import prepare_for_padding
from fedga.engine.stack.stacked import Outputs, StackedModel
from fedga.engine.stack.workers import computing_in
from tests.engine.runs import make_dataset, make_federation, make_lane, train

# One rounding of float32 is at most 6e-8 of the value; a sum of some hundred terms comes to a few of them.
ROUNDING = 1e-6


def random(*shape: int, seed: int = 0) -> Tensor:
    """Float64 values that float32 holds exactly, so that both precisions start from the same."""
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn.float().double()


def fenced(tensor: Tensor) -> Tensor:
    """In float32, with NaN before and behind in memory: who reads past the end, even to multiply it by 0, shows it."""
    fence = 4096
    memory = torch.full((tensor.numel() + 2 * fence,), nan)
    memory[fence:-fence] = tensor.flatten()
    return memory[fence:-fence].view(tensor.shape)


def assert_close(actual: Tensor, expected: Tensor, bound: float = ROUNDING, timeouts: Tensor | None = None) -> None:
    """Every row of the first axis (a copy, as a rule) by its norm, or by that of the summed sizes of its terms."""
    assert actual.shape == expected.shape
    assert actual.dtype == torch.float32
    assert expected.dtype == torch.float64
    error = (actual.double() - expected).flatten(1).norm(dim=1)
    allowed = bound * (expected if timeouts is None else timeouts).flatten(1).norm(dim=1)
    assert (error <= allowed).all(), f"errors {error.tolist()}, allowed {allowed.tolist()}"


# --- convolution -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Geometry:
    inputs: int
    outputs: int
    size: tuple[int, int]
    taps: tuple[int, int]
    stride: int = 1
    padding: tuple[int, int] = (0, 0)
    copies: int = 2
    samples: int = 3
    bias: bool = True
    tf32: bool = False

    @property
    def out(self) -> tuple[int, ...]:
        sizes = zip(self.size, self.taps, self.padding, strict=True)
        return tuple((size + 2 * pad - taps) // self.stride + 1 for size, taps, pad in sizes)

    def tensors(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """Inputs, kernels, biases and the derivative by the outputs."""
        x = random(self.copies, self.samples, self.inputs, *self.size, seed=1)
        weight = random(self.copies, self.outputs, self.inputs, *self.taps, seed=2)
        bias = random(self.copies, self.outputs, seed=3) if self.bias else None
        return x, weight, bias, random(self.copies, self.samples, self.outputs, *self.out, seed=4)


def by_torch(geometry: Geometry, *tensors: Tensor | None) -> tuple[Tensor, ...]:
    """Outputs, and derivatives by inputs, kernels and biases, copy by copy."""
    *leaves, by_y = (tensor.detach().requires_grad_() for tensor in tensors if tensor is not None)
    copies = [F.conv2d(*one, stride=geometry.stride, padding=geometry.padding) for one in zip(*leaves, strict=True)]
    y = torch.stack(copies)
    return y, *torch.autograd.grad(y, leaves, by_y)


def by_kernels(geometry: Geometry, *tensors: Tensor | None) -> tuple[Tensor, ...]:
    *leaves, by_y = (None if tensor is None else tensor.detach().requires_grad_() for tensor in tensors)
    y = _Convolution.apply(*leaves, geometry.stride, geometry.padding, geometry.tf32)
    return y, *torch.autograd.grad(y, [leaf for leaf in leaves if leaf is not None], by_y)


def assert_convolution(geometry: Geometry, exact: Sequence[Tensor | None], given: Sequence[Tensor | None]) -> None:
    """``given`` are the exact tensors in float32, however they lie in memory."""
    actual, expected = by_kernels(geometry, *given), by_torch(geometry, *exact)
    timeouts = by_torch(geometry, *(None if tensor is None else tensor.abs() for tensor in exact))
    for one, other, sizes in zip(actual, expected, timeouts, strict=True):
        assert_close(one, other, timeouts=sizes)


GEOMETRIES = {
    "1 x 1": Geometry(3, 6, (5, 4), (1, 1)),
    "1 x 1, stride": Geometry(6, 20, (7, 8), (1, 1), stride=2, bias=False),
    "3 x 3": Geometry(3, 6, (8, 7), (3, 3), padding=(1, 1)),
    "3 x 3, rows not read": Geometry(5, 7, (8, 10), (3, 3), stride=2, samples=9),
    "3 x 3, columns not read": Geometry(2, 16, (10, 9), (3, 3), stride=3, padding=(1, 2), copies=3),
    "3 x 3, many channels": Geometry(17, 20, (6, 5), (3, 3), padding=(1, 1)),
    "3 x 3, blocks of channels": Geometry(5, 70, (5, 6), (3, 3), stride=2, padding=(1, 1), bias=False),
    "3 x 3, tiles of positions": Geometry(2, 4, (15, 13), (3, 3), padding=(2, 0), samples=2),
    "5 x 5": Geometry(3, 6, (9, 11), (5, 5)),
    "5 x 5, padded": Geometry(6, 16, (4, 5), (5, 5), padding=(2, 2), samples=9, copies=1),
    "5 x 5, stride": Geometry(2, 17, (9, 12), (5, 5), stride=2, padding=(2, 1), bias=False, copies=1),
    "5 x 5, stride 3": Geometry(2, 3, (13, 12), (5, 5), stride=3, padding=(0, 4)),
    "7 x 5": Geometry(2, 5, (9, 10), (7, 5), padding=(3, 2), samples=8, copies=1),
    "3 x 7": Geometry(5, 20, (6, 9), (3, 7), stride=2, padding=(0, 3), copies=1),
    "5 x 1": Geometry(3, 5, (9, 4), (5, 1), padding=(1, 0)),
    "1 x 6": Geometry(3, 5, (3, 15), (1, 6), padding=(0, 5)),
    "one of everything": Geometry(1, 1, (1, 1), (1, 1), copies=1, samples=1),
    "one output": Geometry(3, 8, (5, 5), (5, 5), samples=5),
    "TF32, few channels": Geometry(3, 6, (9, 8), (3, 3), padding=(1, 1), tf32=True),
    "TF32, wide": Geometry(3, 6, (9, 8), (5, 5), padding=(1, 1), tf32=True),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_convolution(name: str) -> None:
    tensors = GEOMETRIES[name].tensors()
    assert_convolution(GEOMETRIES[name], tensors, [None if one is None else fenced(one) for one in tensors])


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    taps = draw(st.tuples(st.integers(1, 6), st.integers(1, 6)))
    padding = tuple(draw(st.integers(0, tap - 1)) for tap in taps)
    size = tuple(draw(st.integers(max(1, tap - 2 * pad), tap + 5)) for tap, pad in zip(taps, padding, strict=True))
    return Geometry(
        *(draw(st.integers(1, 6)), draw(st.integers(1, 20)), size, taps, draw(st.integers(1, 4)), padding),
        copies=draw(st.integers(1, 3)),
        samples=draw(st.integers(1, 9)),
        bias=draw(st.booleans()),
        tf32=draw(st.booleans()),
    )


@settings(max_examples=12, deadline=None)
@given(geometry=geometries())
def test_convolution_of_any_geometry(geometry: Geometry) -> None:
    tensors = geometry.tensors()
    assert_convolution(geometry, tensors, [None if one is None else fenced(one) for one in tensors])


@pytest.mark.parametrize("taps", [3, 5])
@pytest.mark.parametrize("padding", [0, 1])
def test_copies_may_share_their_inputs(taps: int, padding: int) -> None:
    geometry = Geometry(3, 6, (7, 6), (taps, taps), padding=(padding, padding), copies=3)
    x, weight, bias, by_y = geometry.tensors()
    assert bias is not None
    shared = fenced(x[0]).expand(x.shape)
    assert_convolution(geometry, (shared.double(), weight, bias, by_y), (shared, *map(fenced, (weight, bias, by_y))))


def reversed_in_memory(tensor: Tensor) -> Tensor:
    """The same values with the axes in the reverse order."""
    return tensor.float().permute(*reversed(range(tensor.dim()))).contiguous().permute(*reversed(range(tensor.dim())))


@pytest.mark.parametrize(("outputs", "taps", "padding"), [(6, 3, 0), (6, 5, 0), (20, 3, 1), (20, 5, 2)])
def test_tensors_may_lie_in_memory_in_any_order(outputs: int, taps: int, padding: int) -> None:
    geometry = Geometry(3, outputs, (7, 6), (taps, taps), padding=(padding, padding))
    tensors = geometry.tensors()
    given = [reversed_in_memory(tensor) for tensor in tensors if tensor is not None]
    assert not any(tensor.is_contiguous() for tensor in given)
    assert_convolution(geometry, tensors, given)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 2, 0, 3), (0, 0, 4, 0)])
def test_spread_puts_zeros_around_and_between(padding: tuple[int, int, int, int], step: int) -> None:
    from fedga.engine.gpu.kernels.padding import spread

    x, (top, bottom, left, right) = random(2, 3, 4, 6, 5), padding
    between = x.new_zeros(2, 3, 4, 5 * step + 1, 4 * step + 1)
    between[..., ::step, ::step] = x
    expected = F.pad(between, (left, right, top, bottom)).float()
    assert torch.equal(spread(fenced(x), padding, step), expected)


# --- pooling ---------------------------------------------------------------------------------------------------------


def special_pictures(*shape: int) -> Tensor:
    """Few values, so that most windows have several largest ones; some NaN, and one picture of nothing but -inf."""
    pictures = random(*shape).round()
    pictures[random(*shape, seed=1) > 2] = nan
    pictures[0, 0, 0] = -inf
    return pictures.float()


@pytest.mark.one_in(5)
@pytest.mark.parametrize("window", [(2, 2), (3, 2), (1, 3), (4, 1)])
@pytest.mark.parametrize("size", [(12, 12), (7, 9), (4, 3)])
@pytest.mark.parametrize("lay", [fenced, reversed_in_memory])
def test_pooling(window: tuple[int, int], size: tuple[int, int], lay: Any) -> None:
    """Every bit as torch: among equals the first is the largest, NaN is larger than all."""
    pictures = special_pictures(2, 3, 5, *size)
    assert pictures.isnan().any()
    plain, ours = pictures.clone().requires_grad_(), lay(pictures).requires_grad_()
    expected = F.max_pool2d(plain.flatten(0, 1), window).unflatten(0, (2, 3))
    actual, _ = _Pooling.apply(ours, window)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    by_y = random(*expected.shape, seed=2)
    (wanted,) = torch.autograd.grad(expected, plain, by_y.float())
    (found,) = torch.autograd.grad(actual, ours, lay(by_y))
    assert torch.equal(found, wanted)


# --- normalisation ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape",
    [
        (8, 5),
        (4100, 2),  # more rows than a program takes at a time
        (8, 5, 3, 2),
        (6, 2, 40, 30),  # more rows and more pixels
    ],
)
@pytest.mark.parametrize("affine", [True, False])
def test_normalization(shape: tuple[int, ...], affine: bool) -> None:
    """Outputs, statistics and derivatives; rows that do not count hold values that would be seen, and get scaled."""
    copies, (samples, channels), eps = 3, shape[:2], 0.01
    mask = (torch.arange(samples) < torch.tensor([samples, samples // 2, samples - 1])[:, None]).double()
    mask[1] = mask[1].flip(0)
    x = random(copies, *shape) + 2
    x[mask == 0] *= 10
    weight, bias, by_y = random(copies, channels, seed=1), random(copies, channels, seed=2), random(*x.shape, seed=3)

    def by_hand(x: Tensor, mask: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        real, others = x[mask == 1], (1, -1) + (1,) * (x.dim() - 2)
        axes = [axis for axis in range(x.dim()) if axis != 1]
        mean, variance = real.mean(axes), real.var(axes, correction=0)
        normal = (x - mean.view(others)) / (variance + eps).sqrt().view(others) * weight.view(others) + bias.view(
            others
        )
        torch.testing.assert_close(normal[mask == 1], F.batch_norm(real, None, None, weight, bias, True, 0.1, eps))
        return normal, mean, variance

    leaves = [x.requires_grad_(), *((weight.requires_grad_(), bias.requires_grad_()) if affine else ())]
    scales = (weight, bias) if affine else (torch.ones_like(weight), torch.zeros_like(bias))
    found = [by_hand(*one) for one in zip(x, mask, *scales, strict=True)]
    expected = [torch.stack(each) for each in zip(*found, strict=True)]
    ours = [fenced(leaf.detach()).requires_grad_() for leaf in leaves]
    given = (ours[0], fenced(mask), *(ours[1:] if affine else (None, None)))
    dims = (0, 0, *((0, 0) if affine else (None, None)))
    actual = torch.func.vmap(lambda *one: normalize(*one, eps), in_dims=dims)(*given)
    for one, other in zip(actual, expected, strict=True):
        assert_close(one, other)
    wanted = torch.autograd.grad(expected[0], leaves, by_y)
    for one, other in zip(torch.autograd.grad(actual[0], ours, fenced(by_y)), wanted, strict=True):
        assert_close(one, other, 2 * ROUNDING)


# --- the optimiser's step, and batches -------------------------------------------------------------------------------


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everything in float32 runs as on CUDA; float64 stays with PyTorch."""
    for module in (accelerated, layers, optimizers, device_data):
        monkeypatch.setattr(module, "runs_kernels", lambda tensor: tensor.dtype == torch.float32)
    with computing_in("float32"):
        yield


RATES = [0.1, 0.5, 0.0, 0.3]
DECAYS = [0.0, 0.1, 0.2, 0.5]
CLIPS = [inf, 50.0, 1.0, 5e-5]
SCALES = [1.0, 1.0, 1.0, 1e-6]  # the last gradient is so small that what is added to its norm counts


@pytest.mark.usefixtures("kernels")
@pytest.mark.one_in(5)
@pytest.mark.parametrize("size", [7, 5000])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("clips", [True, False])
@pytest.mark.parametrize("decays", [True, False])
def test_sgd(size: int, momentum: float, clips: bool, decays: bool) -> None:
    """Three steps of four copies, each with settings of its own."""
    start, *gradients = (random(4, size, seed=seed) * torch.tensor(SCALES)[:, None] for seed in range(4))
    given = (torch.tensor(DECAYS) if decays else None, torch.tensor(CLIPS) if clips else None)
    mover = LocalOptimizer("sgd", momentum, *given)
    moved, rates = fenced(start), torch.tensor(RATES)
    for gradient in gradients:
        mover.step(moved, fenced(gradient), rates)
    expected = []
    for row in range(4):
        parameter = nn.Parameter(start[row].clone())
        decay = DECAYS[row] if decays else 0.0
        optimizer = torch.optim.SGD([parameter], RATES[row], momentum, weight_decay=decay)
        for gradient in gradients:
            parameter.grad = gradient[row].clone()
            if clips:
                nn.utils.clip_grad_norm_([parameter], CLIPS[row])
            optimizer.step()
        expected.append(parameter.detach())
    assert_close(moved, torch.stack(expected))
    assert torch.equal(moved[2], start[2].float())


@pytest.mark.one_in(3)
@pytest.mark.parametrize("shape", [(3, 5, 4), (3, 20, 21), (6,), (1500,)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_batches(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    from fedga.engine.gpu.kernels.samples import batches

    stored = (random(10, *shape) * 40 + 128).clamp(0, 255).to(dtype)
    places = torch.tensor([[3, 9, 0, 3], [1, 1, 2, 8], [7, 5, 4, 6]])
    scale, shift = random(3, shape[0], seed=1), random(3, shape[0], seed=2)
    one_each = (3, 1, shape[0], *[1] * (len(shape) - 1))
    expected = stored[places].double() * scale.view(one_each) + shift.view(one_each)
    given = stored if dtype == torch.uint8 else fenced(stored)
    assert_close(batches(given, places, fenced(scale), fenced(shift)), expected)


# --- whole networks --------------------------------------------------------------------------------------------------


class Normalized(nn.Module):
    """Both kinds of convolution, both kinds of normalisation, and pooling."""

    def __init__(self, input_shape: tuple[int, ...] = (1, 7, 6), num_classes: int = 4) -> None:
        super().__init__()
        self.first = nn.Conv2d(input_shape[0], 5, 5, padding=2, bias=False)
        self.first_norm = nn.BatchNorm2d(5)
        self.pool = nn.MaxPool2d(2)
        self.second = nn.Conv2d(5, 17, 3, stride=2, padding=1)
        self.second_norm = nn.BatchNorm1d(17, eps=0.1)  # less would magnify roundings, with four real samples
        self.output = nn.Linear(17, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        features = self.pool(self.first_norm(self.first(inputs)).relu())
        return self.output(self.second_norm(self.second(features).tanh().mean((2, 3))))


class Small(nn.Module):
    """A LeNet of few layers."""

    def __init__(self, input_shape: tuple[int, ...] = (1, 7, 6), num_classes: int = 4) -> None:
        super().__init__()
        rows, columns = input_shape[1] // 2 - 2, input_shape[2] // 2 - 2
        self.layers = nn.Sequential(
            *(nn.Conv2d(input_shape[0], 6, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(6, 16, 3), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(16 * rows * columns, num_classes)),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)


COPIES, SAMPLES, CLASSES = 3, 6, 4


class Stacked:
    """Copies of a network with a padded batch, in one precision."""

    def __init__(self, network: nn.Module, dtype: torch.dtype, input_shape: tuple[int, ...] = (1, 7, 6)) -> None:
        self.model = StackedModel(network.to(dtype))
        self.params = random(COPIES, self.model.params.total, seed=1).mul(0.25).to(dtype)
        self.buffers = random(COPIES, self.model.buffers.total, seed=2).abs().to(dtype)
        self.inputs = random(COPIES, SAMPLES, *input_shape, seed=3).to(dtype)
        self.targets = torch.arange(COPIES * SAMPLES).view(COPIES, SAMPLES) % CLASSES
        self.mask = (torch.arange(SAMPLES) < torch.tensor([SAMPLES, SAMPLES - 2, 0])[:, None]).to(dtype)

    def gradient(self) -> tuple[Tensor, Tensor]:
        """By the parameters, and the buffers afterwards."""

        def loss(outputs: Outputs) -> Tensor:
            logits = outputs.logits
            losses = F.cross_entropy(logits.flatten(0, 1), self.targets.flatten(), reduction="none")
            return (losses.view_as(self.mask) * self.mask).sum()

        keys = torch.zeros(COPIES, dtype=torch.int64)
        batch = (self.inputs, self.mask, keys)
        return self.model.gradient(self.params, self.buffers, *batch, loss, torch.empty_like(self.params))

    def gradients_within(self) -> Tensor:
        """Of several batches for every copy, a map in a map, as FedRL takes them."""

        def one(params: Tensor, buffers: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
            def loss(params: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
                return F.cross_entropy(self.model.forward_one(params, buffers, inputs), targets)

            return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(params, inputs, targets)

        halves = (self.inputs.unflatten(1, (2, -1)), self.targets.unflatten(1, (2, -1)))
        return torch.func.vmap(one)(self.params, self.buffers, *halves)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("network", [Normalized, Small])
def test_networks(network: type[nn.Module]) -> None:
    actual, expected = Stacked(network(), torch.float32), Stacked(network(), torch.float64)
    gradient, buffers = actual.gradient()
    exact_gradient, exact_buffers = expected.gradient()
    assert_close(gradient, exact_gradient, 2 * ROUNDING)
    assert_close(buffers, exact_buffers)
    assert_close(actual.gradients_within(), expected.gradients_within(), 2 * ROUNDING)
    for copies in (1, COPIES):  # one copy is not mapped over
        one, other = ((each.params[:copies], each.buffers[:copies], each.inputs[0]) for each in (actual, expected))
        assert_close(actual.model.evaluate(*one), expected.model.evaluate(*other))
    one, other = ((each.params, each.buffers, each.inputs) for each in (actual, expected))
    assert_close(actual.model.evaluate_each(*one), expected.model.evaluate_each(*other))


def test_a_round_of_the_engine(request: pytest.FixtureRequest) -> None:
    """The same round twice, in float32: as it runs on a CPU, then with every kernel."""
    data = DeviceData(make_dataset(samples=40), torch.device("cpu"))
    options = {"momentum": 0.9, "weight_decay": 0.01, "clip": 1.0, "active": 2, "batch_size": 6, "lr": 0.1}
    lane = make_lane(data.dataset, make_federation(data.dataset, [9, 6, 12], seed=0), model=Small, **options)
    begun, plain = (train([lane], data, rounds).stack.params for rounds in (0, 1))
    request.getfixturevalue("kernels")
    ours = train([lane], data, 1).stack.params
    assert not torch.equal(ours, plain)
    assert_close(ours - begun, (plain - begun).double(), 10 * ROUNDING)


# --- layers that are left alone --------------------------------------------------------------------------------------


class OwnConvolution(nn.Conv2d):
    """A user's: what it changes we would not know of."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs).abs()


TAKEN = [
    nn.Conv2d(4, 6, 3),
    nn.Conv2d(4, 6, (3, 5), stride=2, padding=(2, 0), bias=False),
    nn.MaxPool2d(2),
    nn.MaxPool2d((3, 2)),
    nn.MaxPool2d(2, stride=(2, 2)),
]
LEFT = [
    nn.Conv2d(4, 6, 3, groups=2),
    nn.Conv2d(4, 6, 3, dilation=2),
    nn.Conv2d(4, 6, 3, padding="same"),
    nn.Conv2d(4, 6, 3, padding="valid"),
    nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"),
    nn.Conv2d(4, 6, 3, stride=(1, 2)),
    nn.Conv2d(4, 6, (3, 1), padding=1),
    OwnConvolution(4, 6, 3),
    nn.MaxPool2d(2, ceil_mode=True),
    nn.MaxPool2d(3, stride=2),
    nn.MaxPool2d(2, stride=3),
    nn.MaxPool2d((2, 3), stride=(3, 2)),
    nn.MaxPool2d(2, padding=1),
    nn.MaxPool2d(2, dilation=2),
]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("layer", TAKEN + LEFT, ids=str)
def test_layers_of_other_kinds_are_left_alone(layer: nn.Module) -> None:
    prepared, _ = prepare_for_padding(nn.Sequential(layer))
    ours = StackedConv2d if isinstance(layer, nn.Conv2d) else StackedMaxPool2d
    assert type(prepared[0]) is (ours if layer in TAKEN else type(layer))
    features = layer(torch.zeros(1, 4, 7, 8)).numel()
    network = nn.Sequential(nn.GroupNorm(2, 4), copy.deepcopy(layer), nn.Flatten(), nn.Linear(features, CLASSES))
    actual, expected = (Stacked(network, dtype, (4, 7, 8)) for dtype in (torch.float32, torch.float64))
    assert_close(actual.gradient()[0], expected.gradient()[0], 2 * ROUNDING)


@pytest.mark.usefixtures("kernels")
def test_indices_of_a_pooling_are_left_alone() -> None:
    prepared, _ = prepare_for_padding(nn.Sequential(nn.MaxPool2d(2, return_indices=True)))
    assert type(prepared[0]) is nn.MaxPool2d
