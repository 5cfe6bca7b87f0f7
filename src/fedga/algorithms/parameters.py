"""A network's parameters as one flat vector, and by name: what an algorithm needs to treat some of them apart."""

from collections.abc import Callable, Collection, Mapping
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from fedga.errors import FedGAError


class Layout:
    """Where each named tensor lies in one flat vector."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.shapes = {name: tensor.shape for name, tensor in tensors.items()}
        self.sizes = [shape.numel() for shape in self.shapes.values()]
        self.total = sum(self.sizes)

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        parts = [tensors[name].detach().reshape(-1) for name in self.shapes]
        return torch.cat(parts) if parts else torch.zeros(0)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """``[..., total]`` as named tensors ``[..., *shape]`` that share its memory."""
        lead = flat.shape[:-1]
        parts = flat.split(self.sizes, dim=-1)
        return {
            name: part.view((*lead, *shape)) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def join(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The reverse of `views`."""
        parts = [(tensors[name], len(shape)) for name, shape in self.shapes.items()]
        return torch.cat([part.reshape(*part.shape[: part.dim() - axes], -1) for part, axes in parts], dim=-1)

    def slices(self) -> dict[str, slice]:
        """Where each tensor lies."""
        ends = list(accumulate(self.sizes))
        return {name: slice(end - size, end) for name, size, end in zip(self.shapes, self.sizes, ends, strict=True)}

    def mask(self, names: Collection[str]) -> Tensor:
        """``[total]`` bool: True where one of these tensors lies."""
        found = torch.zeros(self.total, dtype=torch.bool)
        for name, place in self.slices().items():
            found[place] = name in names
        return found


class Parameters(Layout):
    """The trained parameters of a network, and which of them are its head or belong to normalisation layers.

    >>> network = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> parameters = Parameters(network)
    >>> parameters.head, parameters.features, parameters.total
    (('2.weight', '2.bias'), 3, 23)
    >>> centred = parameters.map(lambda name, part: part - part.mean() if part.dim() > 1 else part, torch.ones(23))
    >>> centred.sum().item()
    5.0
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__({name: each for name, each in network.named_parameters() if each.requires_grad})
        self.head_layer = find_head(network)
        layer = dict(network.named_modules()).get(self.head_layer or "")
        self.features = layer.in_features if isinstance(layer, nn.Linear) else None  # width of the head's input
        prefix = f"{self.head_layer}." if self.head_layer else ""
        of_head = (f"{prefix}weight", f"{prefix}bias") if self.head_layer is not None else ()
        self.head = tuple(name for name in of_head if name in self.shapes)
        self.normalization = frozenset(
            f"{path}.{name}".lstrip(".")
            for path, module in network.named_modules()
            if _normalizes(module)
            for name, _ in module.named_parameters(recurse=False)
        ) & set(self.shapes)

    def output_weight(self, num_classes: int) -> str:
        """The name of the last weights of shape ``[classes, features]``."""
        for name, shape in reversed(self.shapes.items()):
            if len(shape) == 2 and shape[0] == num_classes:
                return name
        raise FedGAError(
            f"the model has no output layer with weights [{num_classes}, features], which this algorithm reads: end "
            "the model with torch.nn.Linear"
        )

    def map(self, function: Callable[[str, Tensor], Tensor], flat: Tensor) -> Tensor:
        """A flat vector whose named parts went through ``function(name, part)``, each in its own shape."""
        return self.join({name: function(name, part) for name, part in self.views(flat).items()})


def find_head(network: nn.Module) -> str | None:
    """The name of the last linear layer; None where there is none."""
    found = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)]
    return found[-1] if found else None


def _normalizes(module: nn.Module) -> bool:
    """Batch, instance, group and layer normalisation, of PyTorch or of the engine's own."""
    return isinstance(module, _NormBase | nn.GroupNorm | nn.LayerNorm) or getattr(module, "normalizes", False)


def centralize(parameters: Layout, gradient: Tensor) -> Tensor:
    """Gradient centralisation: from every weight of two or more axes its mean over the inputs of each output.

    ``[..., parameters]``. Yong, Huang, Hua and Zhang. Gradient Centralization. ECCV 2020, Eq. (1).
    """
    centred = {
        name: part - part.mean(tuple(range(1 - len(shape), 0)), keepdim=True) if len(shape) > 1 else part
        for (name, part), shape in zip(parameters.views(gradient).items(), parameters.shapes.values(), strict=True)
    }
    return parameters.join(centred)
