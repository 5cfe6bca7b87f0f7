"""FedAvg's server: ``w += rate Δ``.

McMahan, Moore, Ramage, Hampson and Agüera y Arcas. AISTATS 2017.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedga.servers.base import ServerOptimizer


@dataclass(frozen=True)
class SGD(ServerOptimizer):
    citation: ClassVar[str] = "McMahan et al. 2017"
