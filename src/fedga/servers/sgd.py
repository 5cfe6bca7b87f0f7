"""FedAvg's server: ``w += rate Δ``.

McMahan, Moore, Ramage, Hampson and Agüera y Arcas. AISTATS 2017.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedga.servers.base import ServerOptimizer


@dataclass(frozen=True)
class SGD(ServerOptimizer):
    citation: ClassVar[str] = "McMahan et al. 2017"

    def state(self, params: Tensor) -> dict[str, Tensor]:
        """Nothing, under the names that checkpoints of version 0.1 have."""
        return {"first": params.new_zeros(0), "second": params.new_zeros(0)}
