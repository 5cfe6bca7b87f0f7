"""CCVR: after the last round the server trains the head anew, on features it draws from a Gaussian of every class.

Mean and covariance of each class's features come from sums over clients. From them ``samples`` features per class are
drawn, and the head goes ``steps`` steps of Nesterov's gradient descent on their cross-entropy, each as long as the
loss's curvature allows. ``base=NAME`` names the algorithm that trains the network. The model averaged over rounds is
left as it is.
Luo, Chen, Hu, Zhang, Liang and Feng. No Fear of Heterogeneity: Classifier Calibration for Federated Learning with
Non-IID Data. NeurIPS 2021.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedga.algorithms.base import Sent, Server, Tensors, Trained, option
from fedga.algorithms.refit import RefittedHead, logits_of_held, means_of
from fedga.common import streams

RIDGE = 1e-3  # of a class's mean variance, added to that of every direction


@dataclass(frozen=True)
class CCVR(RefittedHead):
    samples: int = option(200, least=1, most=10_000)
    steps: int = option(200, least=1, most=100_000)

    citation: ClassVar[str] = "Luo et al. 2021"
    stacks: ClassVar[bool] = True
    needs_class_moments: ClassVar[bool] = True
    final_uploads: ClassVar[tuple[Sent, ...]] = (
        *RefittedHead.final_uploads,
        Sent("class_moments", "classes×features×features", "their second moments", summed=True),
    )

    def final_report(self, client: Trained) -> dict[str, Tensor]:
        assert client.class_moments is not None
        return {**super().final_report(client), "class_moments": client.class_moments}

    def _refitted(self, server: Server, sums: Tensors) -> tuple[Tensor, Tensor]:
        counts = sums["class_counts"]
        drawn, held = self._drawn(sums), (counts > 0).double()
        inputs = F.pad(drawn, (0, 1), value=1.0).flatten(0, 1)  # a last feature of 1, for the bias
        targets = torch.eye(len(counts), dtype=inputs.dtype).repeat_interleave(self.samples, 0)
        shares = (held / held.sum() / self.samples).repeat_interleave(self.samples)
        curvature = torch.linalg.eigvalsh(inputs.mT @ (shares[:, None] * inputs))[-1] / 2
        weight, bias = (server.parameters.views(server.params)[name].cpu() for name in server.parameters.head)
        head = torch.cat([weight, bias[:, None]], 1).double()
        velocity = torch.zeros_like(head)
        for _ in range(self.steps):
            ahead = head + 0.9 * velocity
            logits = logits_of_held(counts, inputs @ ahead.mT)
            gradient = (shares[:, None] * (logits.softmax(-1) - targets)).mT @ inputs
            velocity = 0.9 * velocity - gradient / curvature
            head = head + velocity
        return head[:, :-1], logits_of_held(counts, head[:, -1])

    def _drawn(self, sums: Tensors) -> Tensor:
        """Virtual features, ``[classes, samples, features]``."""
        counts, means = sums["class_counts"][:, None, None], means_of(sums)
        scatter = sums["class_moments"] - counts * means[:, :, None] * means[:, None]
        values, axes = torch.linalg.eigh(scatter / (counts - 1).clamp(min=1))
        # Sums of float32 tell small values from 0 by rounding alone, which a root would make a thousand times larger.
        values = values.clamp(min=0) + RIDGE * values.mean(-1, keepdim=True).clamp(min=0)
        root = (axes * values.sqrt()[:, None]) @ axes.mT
        numbers = torch.arange(len(means) * self.samples * means.shape[1])
        uniform = streams.uniform(streams.fold(torch.tensor(streams.key(0, "virtual features")), numbers))
        normal = torch.special.ndtri(uniform.clamp(min=2**-54)).view(len(means), self.samples, -1)
        return means[:, None] + normal @ root
