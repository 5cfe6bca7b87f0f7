"""FedETF: a head of directions as far apart as they can be, which nobody trains, under a balanced softmax.

Logits are ``scale · <h / ||h||, v_c>`` with the rows ``v_c`` of a simplex equiangular tight frame; the local loss is
the cross-entropy of ``z + log n``, with n the client's class counts. With C classes and d features the frame takes
``d >= C - 1``; where d is smaller its rows are random directions. The scale, which the authors train from 10 on, is
fixed here, and there is no projection layer between the network's features and the head.
Li, Shang, He, Lin and Wu. No Fear of Classifier Biases: Neural Collapse Inspired Federated Learning with Synthetic and
Fixed Classifier. ICCV 2023.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedga.algorithms.base import Algorithm, Batch, Sent, Server, Setup, Tensors, cross_entropy, option
from fedga.algorithms.frames import simplex_frame
from fedga.algorithms.parameters import Parameters


@dataclass(frozen=True)
class FedETF(Algorithm):
    scale: float = option(10.0, above=0, smallest=1e-6, largest=1e6)

    citation: ClassVar[str] = "Li et al. 2023"
    stacks: ClassVar[bool] = True
    downloads: ClassVar[tuple[Sent, ...]] = (Sent("frame", "classes×features"),)

    def moves(self, parameters: Parameters) -> Collection[str]:
        return [name for name in parameters.shapes if name not in parameters.head]

    def head(self, features: Tensor, params: Tensors, received: Tensors) -> Tensor:
        return self.scale * F.normalize(features, dim=-1) @ received["frame"].mT

    def local_loss(self, batch: Batch) -> Tensor:
        """A class that the client lacks gets a finite logit so low that its share is 0."""
        present = batch.logits + batch.class_counts.clamp(min=1).log()
        lowest = torch.finfo(batch.logits.dtype).min / 2
        return cross_entropy(torch.where(batch.class_counts > 0, present, lowest), batch.targets)

    def server_state(self, setup: Setup) -> dict[str, Tensor]:
        return {"frame": simplex_frame(setup.num_classes, setup.parameters.features or 1).to(setup.params)}

    def broadcast(self, server: Server) -> dict[str, Tensor]:
        return {"frame": server.state["frame"]}
