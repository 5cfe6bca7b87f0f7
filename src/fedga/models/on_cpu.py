"""Convolution, pooling and products of one network on a CPU, where PyTorch's own take up to twice as long.

Each chooses by the layout of its inputs alone, so that the same network gives the same numbers every time.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def is_channels_last(x: Tensor) -> bool:
    """Whether the channels of a pixel lie side by side in memory."""
    return x.dim() == 4 and x.shape[1] > 1 and x.stride(1) == 1  # inside vmap nobody may ask for more than strides


def _is_transformed() -> bool:
    """Whether `torch.func` maps or differentiates what is computed here: it knows PyTorch's own operations best."""
    return torch._C._are_functorch_transforms_active()


@cache
def _has_onednn_products() -> bool:
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def takes_products(x: Tensor) -> bool:
    """Whether `product` is to be had for such values."""
    return x.device.type == "cpu" and x.dtype == torch.float32 and not _is_transformed() and _has_onednn_products()


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "none") -> Tensor:
    """``[rows, inputs] @ [outputs, inputs].T`` plus bias, by oneDNN, as compiled models do; not differentiable.

    Measured (64×784 by 784×128, one core of an AMD EPYC with AVX-512, µs): 69 where BLAS takes 121.
    """
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, activation, [], "")


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: tuple[int, int]) -> Tensor:
    """``torch.nn.functional.conv2d``."""
    pictures = x.device.type == "cpu" and x.dtype == torch.float32 and x.dim() == 4 and not is_channels_last(x)
    if pictures and torch.is_grad_enabled() and x.requires_grad and not _is_transformed():
        return _NarrowConvolution.apply(x, weight, bias, stride, padding)
    return F.conv2d(x, weight, bias, stride, padding)


class _NarrowConvolution(torch.autograd.Function):
    """A convolution of few channels, plane by plane, with `convolution_gradient`."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: tuple[int, int]) -> Tensor:
        return F.conv2d(x, weight, bias, stride, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, ctx.bias, ctx.stride, ctx.padding = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, by_y: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        wanted = (*ctx.needs_input_grad[:2], ctx.bias is not None and ctx.needs_input_grad[2])
        return (*convolution_gradient(by_y, x, weight, (ctx.stride, ctx.stride), ctx.padding, wanted), None, None)


def convolution_gradient(
    by_y: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    wanted: Sequence[bool] = (True, True, True),
) -> list[Tensor | None]:
    """Derivatives by input, weight and bias, of few channels: that by the weights channels-last.

    Measured (LeNet's second convolution, one core, ms): plane by plane .45 by weights and .42 by inputs, channels-last
    .19 and .69, each of them with the copies it needs .25 and .42.
    """
    by_input, by_weight, by_bias = wanted
    found: list[Tensor | None] = [None, None, None]
    settings = ([weight.shape[0]], stride, padding, (1, 1), False, (0, 0), 1)
    derivative: Any = torch.ops.aten.convolution_backward
    if not by_input:  # a first layer, whose inputs are large and have hardly any channels
        return list(derivative(by_y, x, weight, *settings, wanted))
    found[0] = derivative(by_y, x, weight, *settings, (True, False, False))[0]
    if by_weight or by_bias:
        given = (each.contiguous(memory_format=torch.channels_last) for each in (by_y, x))
        _, found[1], found[2] = derivative(*given, weight, *settings, (False, by_weight, by_bias))
    return found


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Left and right columns of all windows of 2×2, an odd last row or column left out."""
    height, width = x.shape[-2] // 2 * 2, x.shape[-1] // 2 * 2
    return x[..., :height, 0:width:2].contiguous(), x[..., :height, 1:width:2].contiguous()


def pool_halves(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The largest entry of every window, and factors 0 and 1 that say where it stands, the first one of equals.

    Comparisons that give floats in place run as vectors, those that give truth values do not. ``right`` is overwritten.
    """
    rows = torch.maximum(left, right)
    is_right = right.gt_(left)
    top, bottom = rows[..., 0::2, :], rows[..., 1::2, :]
    return torch.maximum(top, bottom), bottom.clone().gt_(top), is_right


def by_halves(by_y: Tensor, is_below: Tensor, is_right: Tensor) -> tuple[Tensor, Tensor]:
    """Derivatives by left and right columns, from that by the largest entries."""
    below = by_y * is_below
    by_rows = torch.stack((by_y - below, below), -2).flatten(-3, -2)
    right = by_rows * is_right
    return by_rows.sub_(right), right


class _PairPooling(torch.autograd.Function):
    """Windows of 2×2 as two maxima of neighbours; the same bits as PyTorch's pooling, whose loop is ten times slower.

    The other outputs are the factors of `pool_halves`.
    """

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return pool_halves(*halves(x))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor, Tensor]) -> None:
        _, is_below, is_right = output
        ctx.mark_non_differentiable(is_below, is_right)
        ctx.save_for_backward(is_below, is_right)
        ctx.size = inputs[0].shape[-2:]

    @staticmethod
    def backward(ctx: Any, by_y: Tensor, *_: Tensor) -> Tensor:
        # As parts of complex numbers is the fastest way to interleave left and right.
        by_x = torch.view_as_real(torch.complex(*by_halves(by_y, *ctx.saved_tensors))).flatten(-2)
        missing = (ctx.size[0] - by_x.shape[-2], ctx.size[1] - by_x.shape[-1])
        return F.pad(by_x, (0, missing[1], 0, missing[0])) if any(missing) else by_x


def pool_pairs(x: Tensor) -> Tensor:
    """``torch.nn.functional.max_pool2d(x, 2)``."""
    if _is_transformed():
        return F.max_pool2d(x, 2)
    if torch.is_grad_enabled():
        return _PairPooling.apply(x)[0]
    rows = torch.maximum(*halves(x))
    return torch.maximum(rows[..., 0::2, :], rows[..., 1::2, :])
