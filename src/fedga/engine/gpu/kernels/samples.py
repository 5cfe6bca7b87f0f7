"""Batches straight from the stored samples: gathered, made float and scaled in one pass."""

import triton
import triton.language as tl
from torch import Tensor

BLOCK = tl.constexpr(1024)


@triton.jit
def _batches(
    stored,  # [all samples, VALUES]
    places,  # [copies * samples]
    scale,  # [copies, CHANNELS]
    shift,
    moves,  # [copies * samples]: how a picture is changed, see `fedga.engine.augment`
    inputs,  # [copies * samples, VALUES]
    samples,
    VALUES: tl.constexpr,
    CHANNELS: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    MOVES: tl.constexpr,
    LARGEST: tl.constexpr,  # shift in pixels
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < VALUES
    channel = (row // samples) * CHANNELS + at // (VALUES // CHANNELS)
    source, there = at, inside
    if MOVES:
        code = tl.load(moves + row).to(tl.int32)
        span = 2 * LARGEST + 1
        y = at // WIDTH % HEIGHT - (code // 2 // span - LARGEST)
        x = at % WIDTH
        x = tl.where(code % 2 > 0, WIDTH - 1 - x, x) - (code // 2 % span - LARGEST)
        there = inside & (y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH)
        source = at // (HEIGHT * WIDTH) * (HEIGHT * WIDTH) + y * WIDTH + x
    value = tl.load(stored + tl.load(places + row) * VALUES + source, mask=there, other=0).to(tl.float32)
    value = value * tl.load(scale + channel, mask=inside, other=0.0) + tl.load(shift + channel, mask=inside, other=0.0)
    tl.store(inputs + row * VALUES + at, value, mask=inside)


def batches(
    stored: Tensor, places: Tensor, scale: Tensor, shift: Tensor, moves: Tensor | None = None, largest: int = 0
) -> Tensor:
    """``stored[places] * scale + shift``: places ``[copies, samples]``, scale and shift ``[copies, channels]``.

    With ``moves``, shaped like places, every picture is mirrored and moved by up to ``largest`` pixels on the way.
    """
    copies, samples = places.shape
    inputs = scale.new_empty(copies, samples, *stored.shape[1:])
    values = stored[0].numel()
    height, width = (stored.shape[2], stored.shape[3]) if moves is not None else (1, 1)
    _batches[(copies * samples, triton.cdiv(values, BLOCK.value))](
        *(stored, places.contiguous(), scale.contiguous(), shift.contiguous()),
        *(places if moves is None else moves.contiguous(), inputs, samples),
        **{"VALUES": values, "CHANNELS": stored.shape[1], "HEIGHT": height, "WIDTH": width},
        **{"MOVES": moves is not None, "LARGEST": largest},
    )
    return inputs
