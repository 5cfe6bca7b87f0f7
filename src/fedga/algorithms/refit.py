"""A head that is made anew after the last round, from class sums of features, whatever algorithm trained the network.

``lda-head:base=fedga:power=0.5`` trains as ``fedga:power=0.5`` does and then refits the head. The class that does it
inherits from both; one of your own is ``class Mine(LDAHead, Yours)``.
"""

from dataclasses import dataclass, field, make_dataclass
from functools import cache
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fedga.algorithms.base import Algorithm, Sent, Server, Setup, Tensors, Trained
from fedga.errors import FedGAError, unknown_name

UNSEEN = -1e4  # logit of a class that nobody holds


@dataclass(frozen=True)
class RefittedHead(Algorithm):
    base: str = "fedavg"

    needs_class_features: ClassVar[bool] = True
    finishes: ClassVar[bool] = True
    final_uploads: ClassVar[tuple[Sent, ...]] = (
        Sent("class_counts", "classes", "the client's class counts", summed=True),
        Sent("class_sums", "classes×features", "its mean features by class", summed=True),
    )

    def __new__(cls, **options: Any) -> Self:
        return object.__new__(over_base(cls, options))

    def server_state(self, setup: Setup) -> dict[str, Tensor]:
        if len(setup.parameters.head) < 2:
            raise FedGAError(f"{type(self).__name__} makes a head with a bias: end the model with torch.nn.Linear")
        return super().server_state(setup)

    def final_report(self, client: Trained) -> dict[str, Tensor]:
        assert client.class_features is not None
        return {"class_counts": client.class_counts, "class_sums": client.class_features}

    def finish(self, server: Server, reports: Tensors) -> Tensor:
        sums = {name: report.double().sum(0).cpu() for name, report in reports.items()}
        finite = torch.stack([each.isfinite().all() for each in sums.values()]).all()
        made = self._refitted(server, {name: each.nan_to_num(0, 0, 0) for name, each in sums.items()})
        parts = {  # of a run that has diverged, too
            name: torch.where(finite, part, torch.nan) for name, part in zip(server.parameters.head, made, strict=True)
        }
        return server.parameters.map(lambda name, part: parts.get(name, part).to(part), server.params)

    def _refitted(self, server: Server, sums: Tensors) -> tuple[Tensor, Tensor]:
        """Weight and bias from the sums of all reports, in float64."""
        raise AssertionError("a refitted head says how it is made")


def over_base(kind: Any, options: dict[str, Any]) -> Any:
    """The class that trains as the base named in ``options`` does; ``kind`` itself where none is named."""
    if not issubclass(kind, RefittedHead) or options.get("base", kind.base) == kind.base:
        return kind
    if kind.base != RefittedHead.base:
        raise FedGAError(f"{kind.__name__} trains as {kind.base} already: make it anew, by its name")
    return _over(kind, str(options["base"]))


@cache
def _over(kind: type[RefittedHead], base: str) -> type[RefittedHead]:
    from fedga.algorithms import ALGORITHMS

    kinds = {name: each for name, each in ALGORITHMS.items() if name == "fedavg" or _leaves_the_head_alone(each)}
    if base in ALGORITHMS and base not in kinds:
        raise FedGAError(f"base {base} does not train the network's own head: choose one of {', '.join(sorted(kinds))}")
    if base not in kinds:
        raise unknown_name(f"base of {kind.__name__}", base, kinds)
    stacks = vars(kinds[base]).get("stacks", False)
    bases, own = (kind, kinds[base]), [("base", str, field(default=base))]
    made = make_dataclass(kind.__name__, own, bases=bases, frozen=True, namespace={"stacks": stacks})
    made.__module__, made.__doc__ = kind.__module__, kind.__doc__
    return made


def _leaves_the_head_alone(kind: type[Algorithm]) -> bool:
    hooks = ("head", "moves", "travels", "embed")
    return not kind.finishes and all(getattr(kind, hook) is getattr(Algorithm, hook) for hook in hooks)


def means_of(sums: Tensors) -> Tensor:
    """Of every class, ``[classes, features]``; 0 for one that nobody holds."""
    return sums["class_sums"] / sums["class_counts"].clamp(min=1)[:, None]


def logits_of_held(counts: Tensor, logits: Tensor) -> Tensor:
    """Logits or biases ``[..., classes]``, so low for a class that nobody holds that its share is 0."""
    return torch.where(counts > 0, logits, UNSEEN)
