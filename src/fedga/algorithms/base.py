"""What a federated algorithm is: a handful of pure functions, written once, for one client and one server.

The same object runs on thousands of stacked clients (``fedga.engine``), in the plain loop (``fedga.engine.reference``),
and on real machines (``fedga.flower``). Every hook has a default, and the defaults together are FedAvg; an algorithm
overrides the lines in which it differs, and a hook that nobody overrides costs nothing.

Hooks work on tensors of *one* client or *one* server and must not branch on tensor values, so that the engine can
``torch.func.vmap`` them. Parameters appear as one flat vector, ``[parameters]``; ``parameters.views(vector)`` gives
them by name.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from math import prod
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedga.algorithms.legacy import adapt_hooks
from fedga.algorithms.parameters import Parameters
from fedga.common.ranges import Number
from fedga.errors import check_known

Tensors = Mapping[str, Tensor]


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Per sample, ``[..., classes], [...] -> [...]``."""
    flat = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
    return flat.view(targets.shape)


def among(logits: Tensor, classes: Tensor) -> Tensor:
    """The logits of some ``classes`` (True); all others are so low that softmax gives them 0, and still finite."""
    return torch.where(classes, logits, torch.finfo(logits.dtype).min / 2)


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
class Choice:
    """The texts that an option may be."""

    names: tuple[str, ...]

    def check(self, where: str, value: Any) -> None:
        owner, _, name = where.partition(": ")
        check_known(f"{name} of {owner}", str(value), self.names)


def choice(default: str, *others: str) -> Any:
    """An option that is one of a few texts: ``form: str = choice("hard", "soft")``.

    >>> @dataclass(frozen=True)
    ... class Restricted(Algorithm):
    ...     form: str = choice("hard", "soft")
    >>> Restricted(form="sofd")
    Traceback (most recent call last):
        ...
    fedga.errors.FedGAError: unknown form of Restricted 'sofd': did you mean 'soft'? (known: hard, soft)
    """
    return field(default=default, metadata={"range": Choice((default, *others))})


def overrides(part: Any, hook: str) -> bool:
    """Whether an algorithm or rule has a hook of its own: what is left at its default costs nothing."""
    kind: Any = type(part)
    return _overrides(kind, hook)


@cache
def _overrides(kind: type, hook: str) -> bool:
    base = next(each for each in reversed(kind.__mro__) if hook in vars(each))
    return getattr(kind, hook) is not vars(base)[hook]


def trains_on_features(algorithm: "Algorithm") -> bool:
    """Whether a local step needs the input of the last linear layer."""
    return algorithm.needs_features or overrides(algorithm, "head")


def uses_features(algorithm: "Algorithm") -> bool:
    return algorithm.needs_class_features or trains_on_features(algorithm)


# --- what hooks are given -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """One mini-batch of one client, as a loss sees it."""

    logits: Tensor  # [samples, classes]
    targets: Tensor  # [samples]
    mask: Tensor  # [samples]: 1 for a sample, 0 for padding; the engine drops the loss of padding
    class_counts: Tensor  # [classes]: the client's samples of every class
    global_logits: Tensor | None = None  # [samples, classes] of the received model, if `needs_global_logits`
    received: Tensors = field(default_factory=dict)  # what `broadcast` sent
    features: Tensor | None = None  # [samples, features]: the head's input, if `needs_features`
    global_features: Tensor | None = None  # of the received model, if `needs_global_logits` too
    round: Tensor | None = None  # []: number of the round, from 1
    earlier_logits: Tensor | None = None  # [samples, classes] of the model that `earlier` names
    earlier_features: Tensor | None = None  # of that model, if `needs_features` too


@dataclass(frozen=True)
class Client:
    """A client in a round, before or during its local training."""

    global_params: Tensor  # [parameters] it received; its own where some of them do not travel
    client_state: Tensors  # what it kept after its last round
    received: Tensors  # what `broadcast` sent
    class_counts: Tensor  # [classes]: its samples of every class
    round: Tensor  # []: number of the round, from 1
    lr: Tensor  # []: local learning rate of this round
    parameters: Parameters  # by name


@dataclass(frozen=True)
class Trained(Client):
    """A client at the end of its local training. Nothing of it leaves the client but what `report` returns."""

    params: Tensor  # [parameters]
    steps: Tensor  # []: local steps taken
    class_features: Tensor | None = None  # [classes, features]: sums over its samples, if `needs_class_features`
    second_moment: Tensor | None = None  # [features, features]: sum of outer products, if `needs_second_moment`
    class_moments: Tensor | None = None  # [classes, features, features]: the same by class, if `needs_class_moments`


@dataclass(frozen=True)
class Setup:
    """A run before its first round, as the server sees it."""

    params: Tensor  # [parameters]: the first global model
    num_clients: int
    num_classes: int
    parameters: Parameters


@dataclass(frozen=True)
class Server:
    """The server at the start of a round."""

    params: Tensor  # [parameters]: the global model
    state: Tensors  # what the algorithm keeps on the server
    num_classes: int
    forward: Callable[[Tensor, Tensor], Tensor]  # (params, inputs) -> logits, in evaluation mode
    parameters: Parameters  # by name
    auxiliary: Tensor | None = None  # [classes, samples, ...]: inputs the server holds, if `auxiliary_samples`
    round: int = 1  # its number

    @property
    def last_layer(self) -> tuple[int, tuple[int, int]]:
        """Offset in `params` and shape ``[classes, features]`` of the output weights; an error where there are none."""
        name = self.parameters.output_weight(self.num_classes)
        rows, columns = self.parameters.shapes[name]
        return self.parameters.slices()[name].start, (rows, columns)


@dataclass(frozen=True)
class RoundResult:
    """What came back in a round, as the server sees it; ``active`` counts the clients that answered."""

    round: int  # its number, from 1
    clients: Tensor  # [active]
    shares: Tensor  # [active]: by samples, or equal; they sum to 1
    update: Tensor  # [parameters]: mean of the clients' updates by `weights`
    reports: Tensors  # [active, ...]: from `report` and `inspect`
    survey: Tensor | None = None  # [clients], if `evaluates_all_clients`


@dataclass(frozen=True)
class Sent:
    """One thing that travels beside the model, declared so that its cost and what it reveals can be printed."""

    name: str
    size: str  # of `SIZES`, or several of them with "×" between
    reveals: str = "nothing about a client"
    summed: bool = False  # whether the server needs no more than its sum over clients

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Of the tensor, from the length that every word of its size stands for.

        >>> Sent("prototypes", "classes×features").shape({"classes": 10, "features": 84})
        (10, 84)
        """
        return tuple(sizes[word] for word in self.size.split("×") if word != "1")

    def bytes(self, num_classes: int, num_parameters: int, num_features: int = 0) -> int:
        return 4 * prod(self.shape({"classes": num_classes, "parameters": num_parameters, "features": num_features}))


SIZES = ("1", "classes", "parameters", "features")


# --- the hooks -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Algorithm:
    """FedAvg, and the base of all others. A subclass's dataclass fields are its options (``fedprox:mu=0.01``).

    One declared by `option` has a range, one declared by `choice` is one of a few texts.
    """

    citation: ClassVar[str] = ""
    # True (never inherited) for a class whose `local_loss` also takes a stack of clients: ``[clients, samples,
    # classes]``, with ``class_counts [clients, 1, classes]``. It is called once instead of mapped: faster on a CPU.
    stacks: ClassVar[bool] = False
    needs_global_logits: ClassVar[bool] = False  # fills Batch.global_logits: one more forward pass per local step
    needs_features: ClassVar[bool] = False  # fills Batch.features
    needs_class_features: ClassVar[bool] = False  # fills Trained.class_features: one more pass after local training
    needs_second_moment: ClassVar[bool] = False  # fills Trained.second_moment as well
    needs_class_moments: ClassVar[bool] = False  # fills Trained.class_moments as well
    auxiliary_samples: ClassVar[int] = 0  # samples of each class the server must hold
    plain_sgd_only: ClassVar[bool] = False  # reads a gradient off `Trained`'s step: no momentum, no Adam at clients
    evaluates_all_clients: ClassVar[bool] = False  # before each round every client evaluates the model: `survey`
    finishes: ClassVar[bool] = False  # after the last round every client reports once more: `final_report`, `finish`
    downloads: ClassVar[tuple[Sent, ...]] = ()  # what `broadcast` returns
    uploads: ClassVar[tuple[Sent, ...]] = ()  # what `report` returns, and `survey`
    final_uploads: ClassVar[tuple[Sent, ...]] = ()  # what `final_report` returns
    client_state_spec: ClassVar[tuple[Sent, ...]] = ()  # what a client keeps between rounds: `client_state`

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        adapt_hooks(cls)

    def __post_init__(self) -> None:
        for each in fields(self):
            if "range" in each.metadata:
                each.metadata["range"].check(f"{type(self).__name__}: {each.name}", getattr(self, each.name))

    # --- on the client -------------------------------------------------------------------------------------------

    def class_rates(self, class_counts: Tensor) -> Tensor:
        """How often each class is drawn, relatively, ``[classes]``; samples are then drawn with replacement.

        Classes drawn as often as they occur, in an epoch of the usual length: every sample is used once per epoch.
        """
        return class_counts

    def epoch_length(self, class_counts: Tensor) -> Tensor:
        """How many samples an epoch has, ``[]``."""
        return class_counts.sum()

    def moves(self, parameters: Parameters) -> Collection[str]:
        """Names of the parameters that are trained; all others stand still and are neither sent nor paid for.

        So do the statistics of a batch normalisation none of whose parameters is trained.
        """
        return list(parameters.shapes)

    def travels(self, parameters: Parameters) -> Collection[str]:
        """Names of the parameters that server and clients exchange; every client keeps all others for itself."""
        return list(parameters.shapes)

    def start(self, client: Client) -> Tensor:
        """Where local training begins, ``[parameters]``."""
        return client.global_params

    def earlier(self, client: Client) -> Tensor:
        """Parameters of one more model, ``[parameters]``, whose outputs a loss finds in its batch: `earlier_logits`.

        As the client's own last one, kept in its state. It has the statistics of normalisation that were received.
        Where nobody overrides this hook there is no such model.
        """
        return client.global_params

    def head(self, features: Tensor, params: Tensors, received: Tensors) -> Tensor:
        """Logits from the head's input, ``[samples, features] -> [samples, classes]``, in training and evaluation.

        As it stands the network's own last layer. ``params`` are the trained parameters by name.
        """
        raise AssertionError("the network's own head is used where an algorithm has none")

    def local_loss(self, batch: Batch) -> Tensor:
        """Loss of every sample, ``[samples]``."""
        return cross_entropy(batch.logits, batch.targets)

    def penalty(self, params: Tensor, global_params: Tensor) -> Tensor:
        """A regulariser on the parameters, added to the mean loss, ``[]``."""
        return params.new_zeros(())

    def gradient(self, at: Callable[[Tensor], Tensor], params: Tensor, client: Client) -> Tensor:
        """The step's gradient, ``[parameters]``; ``at(params)`` is that of loss and penalty on this step's batch.

        Statistics of normalisation layers move with the first call of ``at`` alone.
        """
        return at(params)

    def client_state(self, params: Tensor) -> dict[str, Tensor]:
        """What a client keeps between rounds, before its first one. ``params`` gives shape and device."""
        return {}

    def correct(self, gradient: Tensor, client: Client) -> Tensor:
        """The gradient to follow instead of the loss's own, ``[parameters]``."""
        return gradient

    def report(self, trained: Trained) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What the client returns besides its model, and what it keeps: ``(report, client_state)``."""
        return {}, dict(trained.client_state)

    def embed(self, features: Tensor) -> Tensor:
        """What of every sample's features is added up in `Trained.class_features`, ``[samples, features]``."""
        return features

    def survey(self, batch: Batch) -> Tensor:
        """Per-sample value of the received model, averaged over every client's samples (`evaluates_all_clients`).

        ``batch.class_counts`` are not known here: NaN.
        """
        return cross_entropy(batch.logits, batch.targets)

    def final_report(self, client: Trained) -> dict[str, Tensor]:
        """What every client returns after the last round, if it `finishes`; ``client.params`` is the final model."""
        return {}

    # --- on the server -------------------------------------------------------------------------------------------

    def server_state(self, setup: Setup) -> dict[str, Tensor]:
        """What the server keeps between rounds, before the first one. ``setup.params`` gives shape and device."""
        return {}

    def broadcast(self, server: Server) -> dict[str, Tensor]:
        """What the server sends every active client besides the model."""
        return {}

    def groups(self, server: Server, clients: Tensor, class_counts: Tensor) -> Tensor:
        """A group number for each active client, ``[active]``: members of a group train one after another.

        ``class_counts [active, classes]``. Their order is that of the round's draws. As it stands everybody trains at
        once.
        """
        return torch.arange(len(clients), device=clients.device)

    def inspect(self, server: Server, client_params: Tensor) -> dict[str, Tensor]:
        """A look at the returned models ``[active, parameters]`` before they are averaged: more reports.

        What does not travel has the values of the global model.
        """
        return {}

    def weights(self, state: Tensors, clients: Tensor, shares: Tensor) -> Tensor:
        """Weight of each client's update, ``[active]``; ``shares`` sum to 1 (by samples, or equal)."""
        return shares

    def update_server(self, state: Tensors, result: RoundResult) -> dict[str, Tensor]:
        """The server's state after a round."""
        return dict(state)

    def aggregate(self, server: Server, result: RoundResult, step: Callable[[Tensor], Tensor]) -> Tensor:
        """The next global model, ``[parameters]``; ``server.state`` is that after `update_server`.

        ``step(update)`` is the step of the chosen server optimiser (``--server``).
        """
        return step(result.update)

    def finish(self, server: Server, reports: Tensors) -> Tensor:
        """The final model after an exchange that follows the last round; ``reports [clients, ...]`` of all that answer.

        The model averaged over rounds (``--server-average``) is left as it is.
        """
        return server.params
