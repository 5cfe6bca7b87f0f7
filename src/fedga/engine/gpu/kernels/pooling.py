"""Maximum over windows that do not overlap."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = tl.constexpr(1024)


@triton.jit
def _pool(
    x,  # [planes, H, W]
    y,  # [planes, YH, YW]
    chosen,  # which of the window's entries is the largest: the first of equals
    values,  # planes * YH * YW
    H: tl.constexpr,
    W: tl.constexpr,
    YH: tl.constexpr,
    YW: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < values
    place = at % (YH * YW)
    corner = x + (at // (YH * YW)) * (H * W) + (place // YW) * (KH * W) + (place % YW) * KW
    best = tl.load(corner, mask=inside, other=0.0)
    which = tl.zeros([BLOCK], tl.int32)
    for t in tl.static_range(1, KH * KW):
        value = tl.load(corner + (t // KW) * W + t % KW, mask=inside, other=0.0)
        larger = (value > best) | (value != value)
        best = tl.where(larger, value, best)
        which = tl.where(larger, t, which)
    tl.store(y + at, best, mask=inside)
    tl.store(chosen + at, which.to(tl.uint8), mask=inside)


@triton.jit
def _pool_gradient(
    by_y,
    chosen,
    by_x,
    values,  # planes * H * W
    H: tl.constexpr,
    W: tl.constexpr,
    YH: tl.constexpr,
    YW: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    place = at % (H * W)
    row, column = place // W, place % W
    inside = (at < values) & (row < YH * KH) & (column < YW * KW)
    window = (at // (H * W)) * (YH * YW) + (row // KH) * YW + column // KW
    which = tl.load(chosen + window, mask=inside, other=255)
    mine = which == (row % KH) * KW + column % KW
    tl.store(by_x + at, tl.load(by_y + window, mask=inside & mine, other=0.0), mask=at < values)


def pool(x: Tensor, window: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Largest entry of every window of ``[..., H, W]``, and which it is."""
    x = x.contiguous()
    height, width = x.shape[-2:]
    size = (height // window[0], width // window[1])
    y = x.new_empty(*x.shape[:-2], *size)
    chosen = torch.empty_like(y, dtype=torch.uint8)
    _pool[(triton.cdiv(y.numel(), BLOCK.value),)](
        *(x, y, chosen, y.numel()),
        **{"H": height, "W": width, "YH": size[0], "YW": size[1], "KH": window[0], "KW": window[1]},
    )
    return y, chosen


def pool_gradient(by_y: Tensor, chosen: Tensor, size: tuple[int, int], window: tuple[int, int]) -> Tensor:
    by_x = by_y.new_empty(*by_y.shape[:-2], *size)
    _pool_gradient[(triton.cdiv(by_x.numel(), BLOCK.value),)](
        *(by_y.contiguous(), chosen.contiguous(), by_x, by_x.numel()),
        **{"H": size[0], "W": size[1], "YH": by_y.shape[-2], "YW": by_y.shape[-1], "KH": window[0], "KW": window[1]},
    )
    return by_x
