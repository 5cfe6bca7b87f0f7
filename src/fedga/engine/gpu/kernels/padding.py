"""Pictures with zeros around them and between their pixels, as convolutions and their derivatives read them."""

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

BLOCK = tl.constexpr(1024)


@triton.jit
def _spread(
    x,  # [copies, planes, H, W], copies x_copy apart
    y,  # [copies, planes, YH, YW]
    x_copy,
    values,  # planes * YH * YW
    H: tl.constexpr,
    W: tl.constexpr,
    YH: tl.constexpr,
    YW: tl.constexpr,
    PAD_Y: tl.constexpr,
    PAD_X: tl.constexpr,
    STEP: tl.constexpr,
):
    """Pictures with zeros around them and, for STEP > 1, between their pixels."""
    copy = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    plane, place = at // (YH * YW), at % (YH * YW)
    row, column = place // YW - PAD_Y, place % YW - PAD_X
    inside = (row >= 0) & (row < (H - 1) * STEP + 1) & (column >= 0) & (column < (W - 1) * STEP + 1)
    if STEP > 1:
        inside = inside & (row % STEP == 0) & (column % STEP == 0)
    source = x + copy * x_copy + plane * (H * W) + (row // STEP) * W + column // STEP
    value = tl.load(source, mask=inside & (at < values), other=0.0)
    tl.store(y + copy * values + at, value, mask=at < values)


def one_block_each(x: Tensor) -> Tensor:
    """``x`` with every copy contiguous; copies may share memory."""
    return x if x[0].is_contiguous() else x.contiguous()


def spread(x: Tensor, padding: Sequence[int], step: int) -> Tensor:
    """``[copies, samples, channels, H, W]`` with zeros around (top, bottom, left, right) and between the pixels."""
    top, bottom, left, right = padding
    if step == 1 and not any(padding):
        return x
    x = one_block_each(x)
    height, width = x.shape[3:]
    shape = ((height - 1) * step + 1 + top + bottom, (width - 1) * step + 1 + left + right)
    y = x.new_empty(*x.shape[:3], *shape)
    values = y[0].numel()
    _spread[(triton.cdiv(values, BLOCK.value), len(x))](
        *(x, y, x.stride(0), values),
        **{"H": height, "W": width, "YH": shape[0], "YW": shape[1], "PAD_Y": top, "PAD_X": left, "STEP": step},
    )
    return y
