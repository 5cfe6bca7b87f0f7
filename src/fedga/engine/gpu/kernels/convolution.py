"""Convolutions of many small independent networks.

Libraries are made for one large network: a grouped convolution over hundreds of copies runs at a few per cent of what
an H200 can do (``benchmarks/results/convolution.md`` compares). Here a program instance belongs to one copy, and all
sizes but the number of samples are compile-time constants, so that an address costs no division.

Three ways to sum, chosen by what was fastest on an H200:

- few output channels: outer products (channels × positions) in plain float32;
- many: matrix products on tensor cores. Float32 values are split in two TF32 parts and multiplied three times (Ootomo
  and Yokota 2022), which is as close to float64 as plain float32 sums are; with ``tf32`` they are multiplied once;
- derivative by wide kernels: the same with four neighbouring positions as rows of their own, so that inputs are read
  16 bytes at a time. Entry ``(o, s), (i, ky, X)`` of that product is a share of kernel entry ``kx = X - s * stride``.
"""

import triton
import triton.language as tl
from torch import Tensor

from fedga.engine.gpu.kernels.padding import one_block_each, spread

OUTER_CHANNELS = 16  # up to so many output channels, outer products are faster
PRECISIONS = {False: "tf32x3", True: "tf32"}  # of products on tensor cores, by ``tf32``
WIDE_TAPS = 5  # kernels at least so wide have their derivative summed four positions at a time
PROGRAMS_WANTED = 1024  # enough to keep every multiprocessor of a large GPU busy


@triton.jit
def _correlate_outer(
    x,  # [copies, samples, I, H, W], copies x_copy apart
    w,  # [copies, I, KH * KW, OP]
    bias,  # [copies, O]
    y,  # [copies, samples, O, OH, OW]
    x_copy,
    positions,  # samples * OH * OW
    I: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    O: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    STRIDE: tl.constexpr,
    BIAS: tl.constexpr,
    OP: tl.constexpr,
    BO: tl.constexpr,
    BP: tl.constexpr,
):
    """Outputs as sums of outer products (channels × positions) in plain float32."""
    copy = tl.program_id(1).to(tl.int64)
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    place = tl.minimum(p, positions - 1)
    b, r = place // (OH * OW), place % (OH * OW)
    o = tl.program_id(2) * BO + tl.arange(0, BO)
    acc = tl.zeros([BO, BP], tl.float32)
    if BIAS:
        acc += tl.load(bias + copy * O + o, mask=o < O, other=0.0)[:, None]
    x += copy * x_copy + b * (I * H * W) + (r // OW) * (STRIDE * W) + (r % OW) * STRIDE
    w += copy * (I * KH * KW * OP)
    for _ in range(I):
        for t in tl.static_range(KH * KW):
            value = tl.load(x + ((t // KW) * W + t % KW))
            acc += tl.load(w + t * OP + o)[:, None] * value[None, :]
        x += H * W
        w += KH * KW * OP
    out = y + copy * O * positions + (b * (O * OH * OW) + r)[None, :] + o[:, None] * (OH * OW)
    tl.store(out, acc, mask=(p < positions)[None, :] & (o < O)[:, None])


@triton.jit
def _correlate_dot(
    x,
    w,  # [copies, O, I * KH * KW]
    bias,
    y,
    x_copy,
    positions,
    I: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    O: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    STRIDE: tl.constexpr,
    BIAS: tl.constexpr,
    BO: tl.constexpr,
    BP: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The same as matrix products on tensor cores, BK of the kernel's entries at a time."""
    K: tl.constexpr = I * KH * KW
    copy = tl.program_id(1).to(tl.int64)
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    place = tl.minimum(p, positions - 1)
    b, r = place // (OH * OW), place % (OH * OW)
    o = tl.program_id(2) * BO + tl.arange(0, BO)
    x += copy * x_copy
    w += copy * O * K
    at = b * (I * H * W) + (r // OW) * (STRIDE * W) + (r % OW) * STRIDE
    row = tl.minimum(o, O - 1) * K
    acc = tl.zeros([BP, BO], tl.float32)
    for first in range(0, K, BK):
        k = first + tl.arange(0, BK)
        tap = k % (KH * KW)
        step = (k // (KH * KW)) * (H * W) + (tap // KW) * W + tap % KW
        if K % BK == 0:
            weights = tl.load(w + (row[None, :] + k[:, None]))
        else:
            step = tl.where(k < K, step, 0)
            weights = tl.load(w + (row[None, :] + k[:, None]), mask=(k < K)[:, None], other=0.0)
        value = tl.load(x + (at[None, :] + step[:, None]))
        acc = tl.dot(tl.trans(value), weights, acc, input_precision=PRECISION)
    if BIAS:
        acc += tl.load(bias + copy * O + o, mask=o < O, other=0.0)[None, :]
    out = y + copy * O * positions + (b * (O * OH * OW) + r)[:, None] + o[None, :] * (OH * OW)
    tl.store(out, acc, mask=(p < positions)[:, None] & (o < O)[None, :])


@triton.jit
def _weight_gradient(
    x,  # [copies, samples, I, H, W], copies x_copy apart
    dy,  # [copies, samples, O, OH, OW]
    dw,  # [parts * TILES, copies, O, I * KH * KW]
    x_copy,
    samples,
    per_part,  # samples of one part
    I: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    O: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    STRIDE: tl.constexpr,
    PAD_Y: tl.constexpr,
    PAD_X: tl.constexpr,
    TILES: tl.constexpr,
    BO: tl.constexpr,
    BN: tl.constexpr,
    BP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One tile of output positions in a loop over samples: what depends on the position is computed once."""
    N: tl.constexpr = I * KH * KW
    blocks: tl.constexpr = (N + BN - 1) // BN
    copy = tl.program_id(0).to(tl.int64)
    n = (tl.program_id(1) % blocks) * BN + tl.arange(0, BN)
    o = (tl.program_id(1) // blocks) * BO + tl.arange(0, BO)
    tile, part = tl.program_id(2) % TILES, tl.program_id(2) // TILES
    r = tile * BP + tl.arange(0, BP)
    tap = n % (KH * KW)
    row = ((r // OW) * STRIDE - PAD_Y)[:, None] + (tap // KW)[None, :]
    column = ((r % OW) * STRIDE - PAD_X)[:, None] + (tap % KW)[None, :]
    inside = (row >= 0) & (row < H) & (column >= 0) & (column < W) & (n < N)[None, :]
    from_x = tl.where(inside, (n // (KH * KW))[None, :] * (H * W) + row * W + column, 0)
    from_y = tl.minimum(o, O - 1)[None, :] * (OH * OW) + tl.minimum(r, OH * OW - 1)[:, None]
    first = part * per_part
    x += copy * x_copy + first * (I * H * W)
    dy += (copy * samples + first) * (O * OH * OW)
    acc = tl.zeros([BN, BO], tl.float32)
    for _ in range(0, tl.minimum(per_part, samples - first)):
        if PAD_Y == 0 and PAD_X == 0:
            value = tl.load(x + from_x)  # rows past N are not stored, positions past the last meet zeros in dy
        else:
            value = tl.load(x + from_x, mask=inside, other=0.0)
        change = tl.load(dy + from_y, mask=(r < OH * OW)[:, None], other=0.0)
        acc = tl.dot(tl.trans(value), change, acc, input_precision=PRECISION)
        x += I * H * W
        dy += O * OH * OW
    out = dw + (tl.program_id(2).to(tl.int64) * tl.num_programs(0) + copy) * (O * N)
    tl.store(out + o[None, :] * N + n[:, None], acc, mask=(n < N)[:, None] & (o < O)[None, :])


@triton.jit
def _wide_weight_gradient(
    x,  # [copies, samples, I, H, W], copies x_copy apart; rows of whole fours
    dy,  # [copies, samples, O, OH, OW]
    wide,  # [parts * TILES, copies, O * 4, I * KH * XB]
    x_copy,
    samples,
    per_part,
    I: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    O: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    KH: tl.constexpr,
    STRIDE: tl.constexpr,
    XB: tl.constexpr,
    TILES: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BQ: tl.constexpr,
    PRECISION: tl.constexpr,
):
    Q: tl.constexpr = (OW + 3) // 4
    N: tl.constexpr = I * KH * XB
    blocks: tl.constexpr = (N + BN - 1) // BN
    copy = tl.program_id(0).to(tl.int64)
    n = (tl.program_id(1) % blocks) * BN + tl.arange(0, BN)
    m = (tl.program_id(1) // blocks) * BM + tl.arange(0, BM)
    tile, part = tl.program_id(2) % TILES, tl.program_id(2) // TILES
    p = tile * BQ + tl.arange(0, BQ)
    place = tl.minimum(p, OH * Q - 1)
    oy, q = place // Q, place % Q
    entry = (n // (KH * XB)) * (H * W) + ((n // XB) % KH) * W + n % XB
    from_x = (oy * (STRIDE * W) + q * (4 * STRIDE))[:, None] + entry[None, :]
    from_y = (oy * OW + 4 * q)[:, None] + (tl.minimum(m // 4, O - 1) * (OH * OW) + m % 4)[None, :]
    inside = (p < OH * Q)[:, None]
    if OW % 4 != 0:
        inside = inside & (4 * q[:, None] + (m % 4)[None, :] < OW)
    first = part * per_part
    x += copy * x_copy + first * (I * H * W)
    dy += (copy * samples + first) * (O * OH * OW)
    acc = tl.zeros([BM, BN], tl.float32)
    for _ in range(0, tl.minimum(per_part, samples - first)):
        if N % BN == 0:
            value = tl.load(x + from_x)
        else:
            value = tl.load(x + from_x, mask=(n < N)[None, :], other=0.0)
        change = tl.load(dy + from_y, mask=inside, other=0.0)
        acc = tl.dot(tl.trans(change), value, acc, input_precision=PRECISION)
        x += I * H * W
        dy += O * OH * OW
    out = wide + (tl.program_id(2).to(tl.int64) * tl.num_programs(0) + copy) * (4 * O * N)
    tl.store(out + m[:, None] * N + n[None, :], acc, mask=(m < 4 * O)[:, None] & (n < N)[None, :])


@triton.jit
def _fold(
    wide,  # [parts, copies, O * 4, I * KH * XB]
    dw,  # [copies, O, I, KH, KW]
    copies,
    parts,
    O: tl.constexpr,
    I: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    STRIDE: tl.constexpr,
    XB: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sums what the four positions and all parts say of each kernel entry."""
    N: tl.constexpr = I * KH * XB
    copy = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < O * I * KH * KW
    tap, row, o = at % KW, (at // KW) % (I * KH), at // (KW * I * KH)
    total = tl.zeros([BLOCK], tl.float32)
    for part in range(0, parts):
        for s in tl.static_range(4):
            entry = (o * 4 + s) * N + row * XB + tap + s * STRIDE
            total += tl.load(wide + (part * copies + copy) * (4 * O * N) + entry, mask=inside, other=0.0)
    tl.store(dw + copy * (O * I * KH * KW) + at, total, mask=inside)


def _block(channels: int) -> int:
    return min(64, max(8, triton.next_power_of_2(channels)))


def _packed(weight: Tensor, block: int) -> Tensor:
    """``[copies, O, I, KH, KW]`` as ``[copies, I, KH * KW, O rounded up]``: what a thread reads together."""
    copies, outputs, inputs = weight.shape[:3]
    packed = weight.new_zeros(copies, inputs, weight.shape[3] * weight.shape[4], -(-outputs // block) * block)
    packed[..., :outputs] = weight.flatten(3).permute(0, 2, 3, 1)
    return packed


def correlate(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, tf32: bool = False) -> Tensor:
    """Every copy's inputs ``[copies, samples, I, H, W]`` with that copy's kernels ``[copies, O, I, KH, KW]``."""
    x = one_block_each(x)
    copies, samples, inputs, height, width = x.shape
    outputs, taps = weight.shape[1], weight.shape[3:]
    out = ((height - taps[0]) // stride + 1, (width - taps[1]) // stride + 1)
    y = x.new_empty(copies, samples, outputs, *out)
    positions = samples * out[0] * out[1]
    sizes = {"I": inputs, "H": height, "W": width, "O": outputs, "OH": out[0], "OW": out[1]}
    sizes |= {"KH": taps[0], "KW": taps[1], "STRIDE": stride, "BIAS": bias is not None}
    bias = y if bias is None else bias.contiguous()
    block = _block(outputs)
    if outputs <= OUTER_CHANNELS:
        packed = _packed(weight, block)
        _correlate_outer[(triton.cdiv(positions, 256), copies, packed.shape[-1] // block)](
            *(x, packed, bias, y, x.stride(0), positions), **sizes, OP=packed.shape[-1], BO=block, BP=256, num_warps=2
        )
    else:
        _correlate_dot[(triton.cdiv(positions, 128), copies, triton.cdiv(outputs, block))](
            *(x, weight.contiguous(), bias, y, x.stride(0), positions),
            **sizes,
            **{"BO": block, "BP": 128, "BK": 32, "PRECISION": PRECISIONS[tf32]},
            num_warps=4,
            num_stages=3,
        )
    return y


def input_gradient(
    by_y: Tensor, weight: Tensor, size: tuple[int, int], stride: int, padding: tuple[int, int], tf32: bool
) -> Tensor:
    """Derivative by every copy's inputs, of this ``size``."""
    around: list[int] = []
    for length, taps, pad in zip(size, weight.shape[3:], padding, strict=True):
        unread = (length + 2 * pad - taps) % stride  # rows at the end that no output looked at
        around += [taps - 1 - pad, taps - 1 - pad + unread]
    return correlate(spread(by_y, around, stride), weight.flip((3, 4)).transpose(1, 2), None, 1, tf32)


def weight_gradient(
    x: Tensor,  # [copies, samples, I, H, W]
    by_y: Tensor,  # [copies, samples, O, OH, OW]
    taps: tuple[int, int],
    stride: int,
    padding: tuple[int, int],
    tf32: bool = False,
) -> Tensor:
    """Derivative by the kernels of every copy, ``[copies, O, I, KH, KW]``; summed in one fixed order."""
    x, by_y = one_block_each(x), by_y.contiguous()
    by_kind = _wide_gradient if taps[1] >= WIDE_TAPS else _narrow_gradient
    return by_kind(x, by_y, taps, stride, padding, tf32)


def _parts(programs: int, samples: int) -> tuple[int, int]:
    """In how many parts to sum over the samples so that a GPU is busy, and how many samples a part has."""
    wanted = max(1, min(samples // 4, PROGRAMS_WANTED // programs))
    per_part = triton.cdiv(samples, wanted)
    return triton.cdiv(samples, per_part), per_part


def _narrow_gradient(
    x: Tensor, by_y: Tensor, taps: tuple[int, int], stride: int, padding: tuple[int, int], tf32: bool
) -> Tensor:
    copies, samples, inputs, height, width = x.shape
    outputs, out_height, out_width = by_y.shape[2:]
    columns, positions = inputs * taps[0] * taps[1], out_height * out_width
    block = _block(outputs)
    few = block <= 16 and not tf32
    across, tile = (32, 32) if few else (64, 32 if tf32 else 64)
    tiles = triton.cdiv(positions, tile)
    blocks = triton.cdiv(columns, across) * triton.cdiv(outputs, block)
    parts, per_part = _parts(copies * tiles * blocks, samples)
    by_weight = x.new_empty(parts * tiles, copies, outputs, inputs, *taps)
    _weight_gradient[(copies, blocks, tiles * parts)](
        *(x, by_y, by_weight, x.stride(0), samples, per_part),
        **{"I": inputs, "H": height, "W": width, "O": outputs, "OH": out_height, "OW": out_width},
        **{"KH": taps[0], "KW": taps[1], "STRIDE": stride, "PAD_Y": padding[0], "PAD_X": padding[1]},
        **{"TILES": tiles, "BO": block, "BN": across, "BP": tile, "PRECISION": PRECISIONS[tf32]},
        num_warps=1 if few else 4,
        num_stages=4 if few else 3,
    )
    return by_weight.sum(0) if len(by_weight) > 1 else by_weight[0]


def _wide_gradient(
    x: Tensor, by_y: Tensor, taps: tuple[int, int], stride: int, padding: tuple[int, int], tf32: bool
) -> Tensor:
    outputs, out_height, out_width = by_y.shape[2:]
    fours = triton.cdiv(out_width, 4)
    columns = 4 * triton.cdiv(3 * stride + taps[1], 4)  # that four positions look at
    reached = max(4 * stride * (fours - 1) + columns, x.shape[4] + 2 * padding[1])
    top, left = padding
    x = spread(x, (top, top, left, 4 * triton.cdiv(reached, 4) - x.shape[4] - left), 1)
    copies, samples, inputs, height, width = x.shape
    rows, across = 4 * outputs, inputs * taps[0] * columns
    block, tiles = 32, triton.cdiv(out_height * fours, 16)
    blocks = triton.cdiv(across, 128) * triton.cdiv(rows, block)
    parts, per_part = _parts(copies * tiles * blocks, samples)
    wide = x.new_empty(parts * tiles, copies, rows, across)
    _wide_weight_gradient[(copies, blocks, tiles * parts)](
        *(x, by_y, wide, x.stride(0), samples, per_part),
        **{"I": inputs, "H": height, "W": width, "O": outputs, "OH": out_height, "OW": out_width},
        **{"KH": taps[0], "STRIDE": stride, "XB": columns, "TILES": tiles},
        **{"BM": block, "BN": 128, "BQ": 16, "PRECISION": PRECISIONS[tf32]},
        num_warps=4,
        num_stages=4,
    )
    by_weight = x.new_empty(copies, outputs, inputs, *taps)
    _fold[(triton.cdiv(by_weight[0].numel(), 512), copies)](
        *(wide, by_weight, copies, parts * tiles),
        **{"O": outputs, "I": inputs, "KH": taps[0], "KW": taps[1], "STRIDE": stride, "XB": columns},
        BLOCK=512,
    )
    return by_weight
