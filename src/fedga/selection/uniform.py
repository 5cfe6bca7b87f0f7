"""Clients sampled uniformly, without replacement, in every round.

McMahan, Moore, Ramage, Hampson and Agüera y Arcas. Communication-Efficient Learning of Deep Networks from
Decentralized Data. AISTATS 2017, Algorithm 1.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedga.selection.base import Selection


@dataclass(frozen=True)
class Uniform(Selection):
    citation: ClassVar[str] = "McMahan et al. 2017"
