"""Batch normalisation of many copies: one program instance per copy and channel."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _entries(row, columns, start, samples, K: tl.constexpr, M: tl.constexpr):
    """Where the values of one channel lie in these rows, from column ``start`` on, and which of them there are."""
    at = row[:, None] * (K * M) + (start + columns)[None, :]
    return at, (row < samples)[:, None] & (start + columns < M)[None, :]


@triton.jit
def _normalize(
    x,  # [copies, samples, K, M]
    mask,  # [copies, samples]: 1 for rows that count
    weight,  # [copies, K]
    bias,
    y,
    mean,  # [copies, K]
    variance,
    samples,
    eps,
    K: tl.constexpr,
    M: tl.constexpr,
    BB: tl.constexpr,
    BM: tl.constexpr,
):
    """One channel of one copy: mean and variance over its real rows, then the normalised channel."""
    channel, copy = tl.program_id(0), tl.program_id(1).to(tl.int64)
    x += copy * samples * (K * M) + channel * M
    y += copy * samples * (K * M) + channel * M
    mask += copy * samples
    rows, columns = tl.arange(0, BB), tl.arange(0, BM)
    count = tl.zeros([BB], tl.float32)
    total = tl.zeros([BB, BM], tl.float32)
    for first in range(0, samples, BB):
        row = first + rows
        counts = tl.load(mask + row, mask=row < samples, other=0.0)
        count += counts
        for start in tl.static_range(0, M, BM):
            at, inside = _entries(row, columns, start, samples, K, M)
            total += tl.load(x + at, mask=inside, other=0.0) * counts[:, None]
    number = tl.sum(count) * M
    middle = tl.sum(total) / number
    squares = tl.zeros([BB, BM], tl.float32)
    for first in range(0, samples, BB):
        row = first + rows
        counts = tl.load(mask + row, mask=row < samples, other=0.0)
        for start in tl.static_range(0, M, BM):
            at, inside = _entries(row, columns, start, samples, K, M)
            centred = tl.where(inside, tl.load(x + at, mask=inside, other=0.0) - middle, 0.0) * counts[:, None]
            squares += centred * centred
    spread = tl.sum(squares) / number
    tl.store(mean + copy * K + channel, middle)
    tl.store(variance + copy * K + channel, spread)
    scale = tl.load(weight + copy * K + channel) / tl.sqrt(spread + eps)
    shift = tl.load(bias + copy * K + channel) - middle * scale
    for first in range(0, samples, BB):
        row = first + rows
        for start in tl.static_range(0, M, BM):
            at, inside = _entries(row, columns, start, samples, K, M)
            tl.store(y + at, tl.load(x + at, mask=inside, other=0.0) * scale + shift, mask=inside)


@triton.jit
def _normalize_gradient(
    x,
    by_y,
    mask,
    weight,
    mean,
    variance,
    by_x,
    by_weight,  # [copies, K]
    by_bias,
    samples,
    eps,
    K: tl.constexpr,
    M: tl.constexpr,
    BB: tl.constexpr,
    BM: tl.constexpr,
):
    """Rows that do not count depend on mean and variance, which do not depend on them."""
    channel, copy = tl.program_id(0), tl.program_id(1).to(tl.int64)
    x += copy * samples * (K * M) + channel * M
    by_y += copy * samples * (K * M) + channel * M
    by_x += copy * samples * (K * M) + channel * M
    mask += copy * samples
    middle = tl.load(mean + copy * K + channel)
    inverse = 1.0 / tl.sqrt(tl.load(variance + copy * K + channel) + eps)
    rows, columns = tl.arange(0, BB), tl.arange(0, BM)
    count = tl.zeros([BB], tl.float32)
    change = tl.zeros([BB, BM], tl.float32)
    along = tl.zeros([BB, BM], tl.float32)
    for first in range(0, samples, BB):
        row = first + rows
        count += tl.load(mask + row, mask=row < samples, other=0.0)
        for start in tl.static_range(0, M, BM):
            at, inside = _entries(row, columns, start, samples, K, M)
            given = tl.load(by_y + at, mask=inside, other=0.0)
            change += given
            along += given * ((tl.load(x + at, mask=inside, other=0.0) - middle) * inverse)
    sum_change, sum_along, number = tl.sum(change), tl.sum(along), tl.sum(count) * M
    tl.store(by_weight + copy * K + channel, sum_along)
    tl.store(by_bias + copy * K + channel, sum_change)
    scale = tl.load(weight + copy * K + channel) * inverse
    for first in range(0, samples, BB):
        row = first + rows
        counts = tl.load(mask + row, mask=row < samples, other=0.0)[:, None]
        for start in tl.static_range(0, M, BM):
            at, inside = _entries(row, columns, start, samples, K, M)
            given = tl.load(by_y + at, mask=inside, other=0.0)
            normal = (tl.load(x + at, mask=inside, other=0.0) - middle) * inverse
            through = (sum_change + normal * sum_along) / number * counts
            tl.store(by_x + at, (given - through) * scale, mask=inside)


def _sizes(x: Tensor) -> dict[str, int]:
    """Channels, values of a channel, and the tile that a program instance takes of it."""
    values = x[0, 0, 0].numel()
    across = min(1024, triton.next_power_of_2(values))
    return {"K": x.shape[2], "M": values, "BB": max(1, 4096 // across), "BM": across, "num_warps": 8}


def normalize(
    x: Tensor,  # [copies, samples, channels, *pixels]
    mask: Tensor,  # [copies, samples]
    weight: Tensor,  # [copies, channels]
    bias: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch normalisation over the rows that count; also their mean and (biased) variance, ``[copies, channels]``."""
    x = x.contiguous()
    copies, samples, channels = x.shape[:3]
    y = torch.empty_like(x)
    mean, variance = x.new_empty(copies, channels), x.new_empty(copies, channels)
    _normalize[(channels, copies)](
        *(x, mask.contiguous(), weight.contiguous(), bias.contiguous(), y, mean, variance, samples, eps),
        **_sizes(x),
    )
    return y, mean, variance


def normalize_gradient(
    x: Tensor, by_y: Tensor, mask: Tensor, weight: Tensor, mean: Tensor, variance: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Derivatives of `normalize` by ``x``, ``weight`` and ``bias``."""
    x, by_y = x.contiguous(), by_y.contiguous()
    copies, samples, channels = x.shape[:3]
    by_x = torch.empty_like(x)
    by_weight, by_bias = x.new_empty(copies, channels), x.new_empty(copies, channels)
    _normalize_gradient[(channels, copies)](
        *(x, by_y, mask.contiguous(), weight.contiguous(), mean.contiguous(), variance.contiguous()),
        *(by_x, by_weight, by_bias, samples, eps),
        **_sizes(x),
    )
    return by_x, by_weight, by_bias
