"""What a run computes in: float32 unless its spec says TF32, with the same bits each time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def computing_in(precision: str) -> Iterator[None]:
    """TF32 (10 bits of mantissa in products, on CUDA only) on or off, and only cuDNN's repeatable algorithms.

    PyTorch itself leaves TF32 on for convolutions.
    """
    tf32 = precision == "tf32"
    products = torch.backends.cuda.matmul
    before = products.allow_tf32
    products.allow_tf32 = tf32
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=tf32):
            yield
    finally:
        products.allow_tf32 = before
