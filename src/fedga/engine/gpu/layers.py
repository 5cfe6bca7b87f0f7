"""Layers of stacked networks that run as kernels of ours on a GPU: one launch for all copies.

Inside `torch.func.vmap` a layer sees one copy. The functions here take an axis of copies first, and their rule for
`vmap` joins the mapped axis to it: whatever is mapped over them, one kernel runs for all.
"""

import os
import shutil
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn.modules.utils import _pair

from fedga.models.on_cpu import convolve, is_channels_last, pool_pairs
from fedga.models.standardized import StandardizedConv2d, standardized


@cache
def _kernels_compile() -> bool:
    """Triton builds a small host program for every kernel, for which it needs a C compiler."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang") or shutil.which("cc")
    return find_spec("triton") is not None and bool(compiler)


@cache
def _has_tensor_cores(device: torch.device) -> bool:
    """Those with TF32: Ampere and later."""
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)


def runs_kernels(tensor: Tensor) -> bool:
    """Whether our kernels take this tensor: float32 on CUDA. Everything else goes through PyTorch's own operations."""
    if not tensor.is_cuda or tensor.dtype != torch.float32:
        return False
    return _kernels_compile() and _has_tensor_cores(tensor.device)


def why_not_fast(device: torch.device) -> str | None:
    """What keeps a GPU from running our kernels, and what to do about it; None where nothing does, or there is none."""
    if device.type != "cuda" or not _has_tensor_cores(device) or _kernels_compile():
        return None
    missing = "Triton (pip install triton)" if find_spec("triton") is None else "a C compiler (such as gcc)"
    return f"{missing} is not installed: convolutions run several times slower than they could"


def _joined(info: Any, dim: Any, given: Any) -> Any:
    """A tensor with the mapped axis joined to its first one, that of the copies; all else as it is."""
    if not isinstance(given, Tensor):
        return given
    mapped = given.expand(info.batch_size, *given.shape) if dim is None else given.movedim(dim, 0)
    return mapped.flatten(0, 1)


class _ForAllCopies(torch.autograd.Function):
    """A function of tensors whose first axis is that of the copies; its outputs are such tensors too."""

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[Any, ...], *given: Any) -> tuple[Any, Any]:
        outputs = cls.apply(*(_joined(info, dim, each) for dim, each in zip(in_dims, given, strict=True)))
        if isinstance(outputs, Tensor):
            return outputs.unflatten(0, (info.batch_size, -1)), 0
        return tuple(output.unflatten(0, (info.batch_size, -1)) for output in outputs), (0,) * len(outputs)


class _Convolution(_ForAllCopies):
    """``[copies, samples, I, H, W]`` with ``[copies, O, I, KH, KW]`` and ``[copies, O]`` or None."""

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: tuple[int, int], tf32: bool
    ) -> Tensor:
        from fedga.engine.gpu.kernels.convolution import correlate
        from fedga.engine.gpu.kernels.padding import spread

        pad_y, pad_x = padding
        return correlate(spread(x, (pad_y, pad_y, pad_x, pad_x), 1), weight, bias, stride, tf32)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, bias, ctx.stride, ctx.padding, ctx.tf32 = inputs
        ctx.has_bias = bias is not None
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, by_y: Tensor) -> tuple[Tensor | None, ...]:
        from fedga.engine.gpu.kernels.convolution import input_gradient, weight_gradient

        x, weight = ctx.saved_tensors
        by_x = by_weight = by_bias = None
        shared = (ctx.stride, ctx.padding, ctx.tf32)
        if ctx.needs_input_grad[0]:
            by_x = _Gradient.apply(input_gradient, by_y, weight, tuple(x.shape[3:]), *shared)
        if ctx.needs_input_grad[1]:
            by_weight = _Gradient.apply(weight_gradient, x, by_y, tuple(weight.shape[3:]), *shared)
        if ctx.has_bias and ctx.needs_input_grad[2]:
            by_bias = by_y.sum((1, 3, 4))
        return by_x, by_weight, by_bias, None, None, None


class _Gradient(_ForAllCopies):
    """A derivative, which has none of its own, by a function: a class only in order to have a rule for `vmap`."""

    @staticmethod
    def forward(function: Callable[..., Any], *given: Any) -> Any:
        return function(*given)

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Any, ...], output: Any) -> None:
        pass


class StackedConv2d(nn.Module):
    """``torch.nn.Conv2d`` that runs for all copies at once; its weights are standardised first where they should be."""

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        assert isinstance(original, nn.Conv2d)
        assert not isinstance(original.padding, str)
        self.weight, self.bias = original.weight, original.bias
        self.standardizes = isinstance(original, StandardizedConv2d)
        self.stride = original.stride[0]
        self.padding = (original.padding[0], original.padding[1])

    @staticmethod
    def takes(layer: nn.Module) -> bool:
        """Whether a layer is of the ordinary kind: one group, zero padding within the kernel, one stride."""
        return (
            isinstance(layer, nn.Conv2d)
            and type(layer) in (nn.Conv2d, StandardizedConv2d)
            and layer.groups == 1
            and layer.dilation == (1, 1)
            and layer.padding_mode == "zeros"
            and not isinstance(layer.padding, str)
            and layer.stride[0] == layer.stride[1]
            and all(pad < size for pad, size in zip(layer.padding, layer.kernel_size, strict=True))
        )

    def forward(self, inputs: Tensor) -> Tensor:
        weight = standardized(self.weight) if self.standardizes else self.weight
        if not runs_kernels(inputs) or not self._fits(inputs):
            return convolve(inputs, weight, self.bias, self.stride, self.padding)
        bias = None if self.bias is None else self.bias.unsqueeze(0)
        settings = (self.stride, self.padding, torch.backends.cudnn.allow_tf32)
        return _Convolution.apply(inputs.unsqueeze(0), weight.unsqueeze(0), bias, *settings).squeeze(0)

    def _fits(self, inputs: Tensor) -> bool:
        """Pictures at least as large as the kernel; PyTorch says what is wrong with others."""
        padded = (inputs.shape[-2] + 2 * self.padding[0], inputs.shape[-1] + 2 * self.padding[1])
        return inputs.dim() == 4 and padded[0] >= self.weight.shape[-2] and padded[1] >= self.weight.shape[-1]


class _Pooling(_ForAllCopies):
    """Largest entry of every window of ``[copies, samples, channels, H, W]``; its second output says which it is."""

    @staticmethod
    def forward(x: Tensor, window: tuple[int, int]) -> tuple[Tensor, Tensor]:
        from fedga.engine.gpu.kernels.pooling import pool

        return pool(x, window)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, ctx.window = inputs
        ctx.size = tuple(x.shape[-2:])
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, by_y: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        from fedga.engine.gpu.kernels.pooling import pool_gradient

        return _Gradient.apply(pool_gradient, by_y, ctx.saved_tensors[0], ctx.size, ctx.window), None


class StackedMaxPool2d(nn.Module):
    """``torch.nn.MaxPool2d`` with windows side by side."""

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        assert isinstance(original, nn.MaxPool2d)
        self.window = _pair(original.kernel_size)

    @staticmethod
    def takes(layer: nn.Module) -> bool:
        return (
            type(layer) is nn.MaxPool2d
            and _pair(layer.kernel_size) == _pair(layer.stride)
            and _pair(layer.padding) == (0, 0)
            and _pair(layer.dilation) == (1, 1)
            and not layer.return_indices
            and not layer.ceil_mode
        )

    def forward(self, inputs: Tensor) -> Tensor:
        fits = inputs.dim() == 4 and inputs.shape[-2] >= self.window[0] and inputs.shape[-1] >= self.window[1]
        if fits and runs_kernels(inputs):
            return _Pooling.apply(inputs.unsqueeze(0), self.window)[0].squeeze(0)
        if fits and self.window == (2, 2) and inputs.device.type == "cpu" and not is_channels_last(inputs):
            return pool_pairs(inputs)
        return F.max_pool2d(inputs, self.window)


class _Normalization(_ForAllCopies):
    """Batch normalisation of ``[copies, samples, channels, ...]``; its second and third output are statistics."""

    @staticmethod
    def forward(x: Tensor, mask: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        from fedga.engine.gpu.kernels import normalization

        return normalization.normalize(x, mask, weight, bias, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        x, mask, weight, _, ctx.eps = inputs
        _, mean, variance = output
        ctx.mark_non_differentiable(mean, variance)
        ctx.save_for_backward(x, mask, weight, mean, variance)

    @staticmethod
    def backward(ctx: Any, by_y: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        from fedga.engine.gpu.kernels.normalization import normalize_gradient

        x, *saved = ctx.saved_tensors
        by_x, by_weight, by_bias = _Gradient.apply(normalize_gradient, x, by_y, *saved, ctx.eps)
        return by_x, None, by_weight, by_bias, None


def normalize(
    inputs: Tensor, mask: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """One copy's ``[samples, channels, ...]`` by the mean and variance of the rows that ``mask`` counts, and these."""
    channels = inputs.shape[1]
    weight = inputs.new_ones(channels) if weight is None else weight
    bias = inputs.new_zeros(channels) if bias is None else bias
    outputs = _Normalization.apply(*(tensor.unsqueeze(0) for tensor in (inputs, mask, weight, bias)), eps)
    return tuple(output.squeeze(0) for output in outputs)
