"""The server's step: how the mean of the clients' updates moves the global model. One short file per optimiser."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedga.algorithms.base import Tensors


@dataclass(frozen=True)
class ServerOptimizer:
    """Adds the update, times the rate; the base of all others. Functions of one server, which `vmap` can map."""

    citation: ClassVar[str] = ""
    default_rate: ClassVar[float] = 1.0  # where --server-rate is not given

    def state(self, params: Tensor) -> dict[str, Tensor]:
        """What is kept between rounds, before the first one."""
        return {"first": params.new_zeros(0), "second": params.new_zeros(0)}

    def step(self, params: Tensor, update: Tensor, state: Tensors, rate: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The next model and what is kept, from the clients' mean ``update [parameters]`` and ``rate []``."""
        return params + rate * update, dict(state)


def zeros_and(params: Tensor, second: float | None = None) -> dict[str, Tensor]:
    """A first moment of zeros, and a second one where there is any."""
    rest = params.new_zeros(0) if second is None else torch.full_like(params, second)
    return {"first": torch.zeros_like(params), "second": rest}
