"""What a federated algorithm is: a handful of pure functions, written once, for one client and one server.

The same object runs on thousands of stacked clients (``fedga.engine.engine``), in the plain loop
(``fedga.engine.reference``), and on real machines. Every hook has a default, and the defaults together are
FedAvg; an algorithm overrides the lines in which it differs.

Hooks work on tensors of *one* client or *one* server and must not branch on tensor values, so that the engine can
``torch.func.vmap`` them. Parameters appear as one flat vector: ``[parameters]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedga.common.ranges import Number

Tensors = Mapping[str, Tensor]


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Per sample, ``[..., classes], [...] -> [...]``."""
    flat = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
    return flat.view(targets.shape)


def option(default: float, **bounds: float) -> Any:
    """A numeric option and the range it lies in: ``mu: float = option(0.001, least=0)``; the names are `Number`'s.

    >>> @dataclass(frozen=True)
    ... class Focal(Algorithm):
    ...     gamma: float = option(2.0, least=0, largest=100)
    >>> Focal(gamma=-1)
    Traceback (most recent call last):
        ...
    fedga.errors.FedGAError: Focal: gamma must be a number of at least 0, not -1
    """
    whole = isinstance(default, int)
    return field(default=default, metadata={"range": Number(whole=whole, **bounds)})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Batch:
    """One mini-batch of one client, as a loss sees it."""

    logits: Tensor  # [samples, classes]
    targets: Tensor  # [samples]
    mask: Tensor  # [samples]: 1 for a sample, 0 for padding; the engine drops the loss of padding
    class_counts: Tensor  # [classes]: the client's samples of every class
    global_logits: Tensor | None = None  # [samples, classes] of the received model, if `needs_global_logits`
    received: Tensors = field(default_factory=dict)  # what `broadcast` sent


@dataclass(frozen=True)
class Server:
    """The server at the start of a round."""

    params: Tensor  # [parameters]: the global model
    state: Tensors  # what the algorithm keeps on the server
    num_classes: int
    forward: Callable[[Tensor, Tensor], Tensor]  # (params, inputs) -> logits, in evaluation mode
    find_last_layer: Callable[[int], tuple[int, tuple[int, int]]]  # from the number of classes to `last_layer`
    auxiliary: Tensor | None = None  # [classes, samples, ...]: inputs the server holds, if `auxiliary_samples`

    @property
    def last_layer(self) -> tuple[int, tuple[int, int]]:
        """Offset in `params` and shape ``[classes, features]`` of the output weights; an error where there are none."""
        return self.find_last_layer(self.num_classes)


@dataclass(frozen=True)
class Trained:
    """A client at the end of its local training."""

    params: Tensor  # [parameters]
    global_params: Tensor  # [parameters] it received
    client_state: Tensors
    received: Tensors
    steps: Tensor  # []: local steps taken
    lr: Tensor  # []: local learning rate of this round
    class_counts: Tensor  # [classes]: the client's samples of every class; they leave it only in what `report` returns


@dataclass(frozen=True)
class Sent:
    """One thing that travels beside the model, declared so that its cost and what it reveals can be printed."""

    name: str
    size: str  # how many float32 values: "1", "classes" or "parameters"
    reveals: str = "nothing about a client"

    def bytes(self, num_classes: int, num_parameters: int) -> int:
        return 4 * {"1": 1, "classes": num_classes, "parameters": num_parameters}[self.size]


@dataclass(frozen=True)
class Algorithm:
    """FedAvg, and the base of all others. A subclass's dataclass fields are its options (``fedprox:mu=0.01``).

    One declared by `option` has a range.
    """

    citation: ClassVar[str] = ""
    # True (never inherited) for a class whose `local_loss` also takes a stack of clients: ``[clients, samples,
    # classes]``, with ``class_counts [clients, 1, classes]``. It is called once instead of mapped: faster on a CPU.
    stacks: ClassVar[bool] = False
    needs_global_logits: ClassVar[bool] = False  # fills Batch.global_logits: one more forward pass per local step
    auxiliary_samples: ClassVar[int] = 0  # samples of each class the server must hold
    surveys: ClassVar[bool] = False  # before each round every client evaluates the model: `survey`
    downloads: ClassVar[tuple[Sent, ...]] = ()  # what `broadcast` returns
    uploads: ClassVar[tuple[Sent, ...]] = ()  # what `report` returns, and `survey`
    keeps: ClassVar[tuple[Sent, ...]] = ()  # what a client keeps between rounds: `client_state`

    def __post_init__(self) -> None:
        for each in fields(self):
            if "range" in each.metadata:
                each.metadata["range"].check(f"{type(self).__name__}: {each.name}", getattr(self, each.name))

    # --- on the client -------------------------------------------------------------------------------------------

    def local_loss(self, batch: Batch) -> Tensor:
        """Loss of every sample, ``[samples]``."""
        return cross_entropy(batch.logits, batch.targets)

    def penalty(self, params: Tensor, global_params: Tensor) -> Tensor | None:
        """A regulariser on the parameters, added to the mean loss, ``[]``; None for none."""
        return None

    def client_state(self, params: Tensor) -> dict[str, Tensor]:
        """What a client keeps between rounds, before its first one. ``params`` gives shape and device."""
        return {}

    def correct(self, gradient: Tensor, client_state: Tensors, received: Tensors) -> Tensor:
        """The gradient to follow instead of the loss's own, ``[parameters]``."""
        return gradient

    def report(self, trained: Trained) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What the client returns besides its model, and what it keeps: ``(report, client_state)``."""
        return {}, dict(trained.client_state)

    def survey(self, batch: Batch) -> Tensor:
        """Per-sample value of the received model, averaged over all samples of every client (if `surveys`)."""
        return cross_entropy(batch.logits, batch.targets)

    # --- on the server -------------------------------------------------------------------------------------------

    def server_state(self, params: Tensor, num_clients: int, num_classes: int) -> dict[str, Tensor]:
        """What the server keeps between rounds, before the first one. ``params`` gives shape and device."""
        return {}

    def select(self, state: Tensors, draws: Tensor, active: int) -> Tensor:
        """Who takes part: ``active`` of the clients, from one uniform draw per client, ``[clients] -> [active]``."""
        return torch.topk(draws, active, largest=False, sorted=True).indices

    def broadcast(self, server: Server) -> dict[str, Tensor]:
        """What the server sends every active client besides the model."""
        return {}

    def weights(self, state: Tensors, clients: Tensor, shares: Tensor) -> Tensor:
        """Weight of each client's update, ``[active]``; ``shares`` sum to 1 (by samples, or equal)."""
        return shares

    def update_server(
        self, state: Tensors, clients: Tensor, reports: Tensors, survey: Tensor | None
    ) -> dict[str, Tensor]:
        """The server's state after a round; ``reports`` are stacked ``[active, ...]``, ``survey`` is ``[clients]``."""
        return dict(state)
