"""Counter-based randomness: every draw is a pure function of (seed, purpose, counters).

Partition, initial weights, client choice and batch order each have a purpose; round, client and epoch are counters.
Nothing is consumed from a shared generator, so a run gives the same numbers alone, among other runs, resumed half
way, on a GPU, or spread over real machines. The mixer is the finaliser of SplitMix64 (Steele, Lea and Flood 2014).
"""

import hashlib

import numpy as np
import torch
from torch import Tensor

_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def _mix_int(word: int) -> int:
    for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS, strict=False):
        word = ((word ^ (word >> shift)) * multiplier) & _WORD
    return word ^ (word >> _SHIFTS[-1])


def key(seed: int, purpose: str, *counters: int) -> int:
    """A signed 64-bit key for one draw.

    >>> key(0, "batches", 3) == key(0, "batches", 3) != key(0, "batches", 4)
    True
    """
    word = int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=8).digest(), "little")
    for counter in (seed, *counters):
        word = _mix_int(word ^ _mix_int((counter + _GOLDEN) & _WORD))
    return _signed(word)


def numpy_generator(seed: int, purpose: str, *counters: int) -> np.random.Generator:
    """A numpy generator of its own for one purpose, for draws that are not uniform (Dirichlet, shuffles)."""
    return np.random.Generator(np.random.Philox(key=key(seed, purpose, *counters) & _WORD))


def _shift_right(words: Tensor, shift: int) -> Tensor:
    """Logical shift: torch's is arithmetic on int64, so the copies of the sign bit are cleared."""
    return (words >> shift) & ((1 << (64 - shift)) - 1)


def _mix(words: Tensor) -> Tensor:
    for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS, strict=False):
        words = (words ^ _shift_right(words, shift)) * _signed(multiplier)
    return words ^ _shift_right(words, _SHIFTS[-1])


def fold(keys: Tensor, counters: Tensor) -> Tensor:
    """``key(..., counter)`` for whole int64 tensors, broadcast against each other, on any device.

    >>> base = torch.tensor(key(7, "batches"))
    >>> fold(base, torch.tensor([0, 1])).tolist() == [key(7, "batches", 0), key(7, "batches", 1)]
    True
    """
    return _mix(keys ^ _mix(counters + _signed(_GOLDEN)))


def uniform(words: Tensor) -> Tensor:
    """Float64 in [0, 1) from 64 random bits: the upper 53 of them."""
    return _shift_right(words, 11).to(torch.float64) * 2.0**-53
