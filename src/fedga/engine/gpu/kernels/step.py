"""Clip, weight decay, momentum and step of many copies, in one pass."""

import triton
import triton.language as tl
from torch import Tensor

BLOCK = tl.constexpr(2048)


@triton.jit
def _square_sums(gradient, sums, size):
    copy = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(gradient + copy * size + at, mask=at < size, other=0.0)
    tl.store(sums + copy * tl.num_programs(0) + tl.program_id(0), tl.sum(value * value))


@triton.jit
def _sgd_step(
    weights,  # [copies, size]; Triton keeps the name `params` for itself
    gradient,
    velocity,
    sums,  # [copies, blocks]: of squares of the gradient
    rate,  # [copies]
    clip,
    decay,
    size,
    momentum,
    blocks,
    CLIPS: tl.constexpr,
    DECAYS: tl.constexpr,
    MOMENTUM: tl.constexpr,  # 0: none; 1: first step; 2: later ones
    SUMS: tl.constexpr,
):
    copy = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    change = tl.load(gradient + copy * size + at, mask=inside, other=0.0)
    value = tl.load(weights + copy * size + at, mask=inside, other=0.0)
    if CLIPS:
        each = tl.arange(0, SUMS)
        norm = tl.sqrt(tl.sum(tl.load(sums + copy * blocks + each, mask=each < blocks, other=0.0)))
        change *= tl.minimum(tl.load(clip + copy) / (norm + 1e-6), 1.0)
    if DECAYS:
        change += tl.load(decay + copy) * value
    if MOMENTUM == 2:
        change += momentum * tl.load(velocity + copy * size + at, mask=inside, other=0.0)
    if MOMENTUM > 0:
        tl.store(velocity + copy * size + at, change, mask=inside)
    tl.store(weights + copy * size + at, value - tl.load(rate + copy) * change, mask=inside)


def sgd_step(
    params: Tensor,  # [copies, parameters]: moved in place
    gradient: Tensor,
    velocity: Tensor | None,  # filled where `first`, else moved
    rate: Tensor,  # [copies]
    clip: Tensor | None,  # [copies]: largest norm
    decay: Tensor | None,  # [copies]
    momentum: float,
    first: bool,
) -> None:
    """Clip, weight decay, momentum and step in one pass over the parameters, after one over the gradient."""
    copies, size = params.shape
    blocks = triton.cdiv(size, BLOCK.value)
    sums = params.new_empty(copies, blocks)
    if clip is not None:
        _square_sums[(blocks, copies)](gradient.contiguous(), sums, size, num_warps=8)
    _sgd_step[(blocks, copies)](
        *(params, gradient.contiguous(), params if velocity is None else velocity, sums, rate.contiguous()),
        *(rate if clip is None else clip.contiguous(), rate if decay is None else decay.contiguous()),
        *(size, momentum, blocks),
        CLIPS=clip is not None,
        DECAYS=decay is not None,
        MOMENTUM=0 if velocity is None else 1 if first else 2,
        SUMS=triton.next_power_of_2(blocks),
        num_warps=8,
    )
