"""What a float32 run computes in: float32, with the same bits each time."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

Given = ParamSpec("Given")
Result = TypeVar("Result")


def reproducible_float32(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Run with cuDNN's TF32 off (PyTorch leaves it on for convolutions) and only its repeatable algorithms."""

    @wraps(function)
    def inside(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            return function(*args, **kwargs)

    return inside
