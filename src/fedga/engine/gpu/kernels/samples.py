"""Batches straight from the stored samples: gathered, made float and scaled in one pass."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _batches(
    stored,  # [all samples, VALUES]
    places,  # [copies * samples]
    scale,  # [copies, CHANNELS]
    shift,
    inputs,  # [copies * samples, VALUES]
    samples,
    VALUES: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < VALUES
    channel = (row // samples) * CHANNELS + at // (VALUES // CHANNELS)
    value = tl.load(stored + tl.load(places + row) * VALUES + at, mask=inside, other=0).to(tl.float32)
    value = value * tl.load(scale + channel, mask=inside, other=0.0) + tl.load(shift + channel, mask=inside, other=0.0)
    tl.store(inputs + row * VALUES + at, value, mask=inside)


def batches(stored: Tensor, places: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """``stored[places] * scale + shift``: places ``[copies, samples]``, scale and shift ``[copies, channels]``."""
    copies, samples = places.shape
    inputs = scale.new_empty(copies, samples, *stored.shape[1:])
    values = stored[0].numel()
    _batches[(copies * samples, triton.cdiv(values, BLOCK))](
        *(stored, places.contiguous(), scale.contiguous(), shift.contiguous(), inputs, samples),
        **{"VALUES": values, "CHANNELS": stored.shape[1]},
        BLOCK=BLOCK,
    )
    return inputs
