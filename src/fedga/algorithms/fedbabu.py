"""FedBABU: the body alone is trained; all clients keep the head that the run began with, a random one.

The head neither travels nor moves. The authors tune it on every client afterwards, for that client's own use. That is
no part of the federation, and left to the user: the saved model has the random head and is an ordinary network.
Oh, Kim and Yun. FedBABU: Toward Enhanced Representation for Federated Image Classification. ICLR 2022.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from fedga.algorithms.base import Algorithm
from fedga.algorithms.parameters import Parameters


@dataclass(frozen=True)
class FedBABU(Algorithm):
    citation: ClassVar[str] = "Oh et al. 2022"
    stacks: ClassVar[bool] = True

    def moves(self, parameters: Parameters) -> Collection[str]:
        return [name for name in parameters.shapes if name not in parameters.head]
