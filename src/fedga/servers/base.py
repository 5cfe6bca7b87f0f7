"""The server's step: how the mean of the clients' updates moves the global model. One short file per optimiser."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedga.algorithms.base import Tensors


@dataclass(frozen=True)
class ServerOptimizer:
    """Adds the update, times the rate; the base of all others. Functions of one server, which `vmap` can map."""

    citation: ClassVar[str] = ""
    default_rate: ClassVar[float] = 1.0  # where --server-rate is not given

    def state(self, params: Tensor) -> dict[str, Tensor]:
        """What is kept between rounds, before the first one."""
        return {}

    def step(self, params: Tensor, update: Tensor, state: Tensors, rate: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The next model and what is kept, from the clients' mean ``update [parameters]`` and ``rate []``."""
        return params + rate * update, dict(state)
