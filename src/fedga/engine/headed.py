"""A trained network whose head is the algorithm's formula, as an ordinary module."""

from torch import Tensor, nn

from fedga.algorithms.base import Algorithm, Tensors, overrides
from fedga.algorithms.parameters import Parameters, find_head


class HeadedModel(nn.Module):
    """``algorithm.head`` of the features that ``network`` gives its last linear layer."""

    def __init__(self, network: nn.Module, algorithm: Algorithm, received: Tensors) -> None:
        super().__init__()
        self.network, self.algorithm, self._names = network, algorithm, tuple(received)
        self._trained = frozenset(algorithm.moves(Parameters(network)))
        for name, value in received.items():
            self.register_buffer(f"received_{name}", value.detach().clone())

    def forward(self, inputs: Tensor) -> Tensor:
        seen: list[Tensor] = []
        layer = self.network.get_submodule(find_head(self.network) or "")
        handle = layer.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
        try:
            self.network(inputs)
        finally:
            handle.remove()
        received = {name: getattr(self, f"received_{name}") for name in self._names}
        trained = {name: value for name, value in self.network.named_parameters() if name in self._trained}
        return self.algorithm.head(seen[0], trained, received)


def with_head(network: nn.Module, algorithm: Algorithm, received: Tensors) -> nn.Module:
    """The network itself, unless the algorithm has a head of its own."""
    return HeadedModel(network, algorithm, received) if overrides(algorithm, "head") else network
