"""What an algorithm's hooks are given when they are checked: a network, a server and clients, made up."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from fedga.algorithms.base import Algorithm, Batch, Client, Sent, Server, Tensors, overrides
from fedga.algorithms.parameters import Parameters

# All different, so that no wrong shape looks like a right one.
SAMPLES, REAL, CLASSES, FEATURES, CLIENTS, ACTIVE, LANES = 23, 17, 4, 6, 5, 3, 2
NETWORK = Parameters(nn.Linear(FEATURES, CLASSES))
PARAMETERS = NETWORK.total
_LENGTHS = {"classes": CLASSES, "parameters": PARAMETERS, "features": FEATURES}
SIZES = {
    size: Sent("", size).shape(_LENGTHS)
    for size in ("1", *_LENGTHS, "classes×features", "features×features", "classes×classes")
}
OF_OTHERS = ("global_logits", "global_features", "earlier_logits", "earlier_features")  # of a batch, by other models


@dataclass(frozen=True)
class Round:
    """What the hooks of a round are given: made up, and the same every time."""

    params: Tensor  # [LANES, PARAMETERS]: as one server has it
    logits: Tensor  # [ACTIVE, SAMPLES, CLASSES]
    global_logits: Tensor
    targets: Tensor  # [ACTIVE, SAMPLES]: none of the first class, which the clients lack
    mask: Tensor  # the last samples are padding
    class_counts: Tensor  # [ACTIVE, CLASSES]
    auxiliary: Tensor  # [CLASSES, samples, FEATURES]
    features: Tensor  # [ACTIVE, SAMPLES, FEATURES]
    global_features: Tensor
    earlier_logits: Tensor
    earlier_features: Tensor

    @classmethod
    def make_up(cls, algorithm: Algorithm) -> Self:
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        targets = torch.arange(ACTIVE * SAMPLES).reshape(ACTIVE, SAMPLES) % (CLASSES - 1) + 1
        mask = (torch.arange(SAMPLES) < REAL).double().expand(ACTIVE, SAMPLES)
        counts = torch.tensor([[0.0, 9.0, 4.0, 1.0], [0.0, 2.0, 8.0, 5.0], [0.0, 1.0, 3.0, 7.0]], dtype=torch.float64)
        logits, teacher = normal(2, ACTIVE, SAMPLES, CLASSES)
        held = normal(CLASSES, max(1, algorithm.auxiliary_samples), FEATURES)
        params = normal(LANES, PARAMETERS)
        features, received, earlier = normal(3, ACTIVE, SAMPLES, FEATURES)
        by_earlier = normal(ACTIVE, SAMPLES, CLASSES)
        return cls(params, logits, teacher, targets, mask, counts, held, features, received, by_earlier, earlier)

    def batch(self, client: int | slice, received: Tensors, algorithm: Algorithm) -> Batch:
        """What a loss is given, of one client or of all at once."""
        teaches, features = algorithm.needs_global_logits, algorithm.needs_features
        counts, compares = self.class_counts[client], overrides(algorithm, "earlier")
        return Batch(
            self.logits[client],
            self.targets[client],
            self.mask[client],
            counts if isinstance(client, int) else counts.unsqueeze(1),
            self.global_logits[client] if teaches else None,
            received,
            self.features[client] if features else None,
            self.global_features[client] if features and teaches else None,
            torch.tensor(3.0, dtype=torch.float64),
            self.earlier_logits[client] if compares else None,
            self.earlier_features[client] if compares and features else None,
        )


def server_of(params: Tensor, state: Tensors, auxiliary: Tensor | None = None) -> Server:
    """A server whose model is one linear layer."""

    def forward(params: Tensor, inputs: Tensor) -> Tensor:
        named = NETWORK.views(params)
        return inputs.flatten(1) @ named["weight"].T + named["bias"]

    return Server(params, state, CLASSES, forward, NETWORK, auxiliary)


def client_of(start: Tensor, state: Tensors, received: Tensors, counts: Tensor) -> Client:
    at = (torch.tensor(1.0, dtype=torch.float64), torch.tensor(0.1, dtype=torch.float64))
    return Client(start, state, received, counts, *at, NETWORK)


def bowl(params: Tensor) -> Tensor:
    """The gradient of a made-up loss."""
    return params + torch.sin(params)
