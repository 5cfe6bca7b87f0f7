"""FedAvg: clients minimise cross-entropy, the server averages their models by sample count.

McMahan, Moore, Ramage, Hampson and Agüera y Arcas. Communication-Efficient Learning of Deep Networks from
Decentralized Data. AISTATS 2017.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedga.algorithms.base import Algorithm


@dataclass(frozen=True)
class FedAvg(Algorithm):
    citation: ClassVar[str] = "McMahan et al. 2017"
    stacks: ClassVar[bool] = True
