"""A bandit over clients: those whose class mix looks even are chosen more often (CMAB).

A client's mix R is estimated from its returned model, by ``estimate``. ``update`` looks at how training moved the head:
with ``Δb_c`` the change of class c's bias, ``R = softmax(Δb / temperature)``, as in HiCS-FL (Chen and Vikalo, 2024).
``auxiliary`` is the paper's: ``R_c ~ 1 / g_c`` with ``g_c`` the mean square of each layer's gradient, summed over them,
on samples of class c from the training split that the server holds. ``counts`` are the client's own class counts. Its
reward is ``1 / H(U, R)`` with ``H(U, R) = -1/C Σ log R_c``, averaged over its turns. Those without a turn come first,
then the largest ``mean reward + explore · sqrt(3 ln t / (2 turns))``: a whole round with ``compose=top``. With
``greedy``, the paper's, that is the first of a round alone, and each further one makes ``1 / H(U, R)`` of the mean R of
those chosen largest; some clients then hardly ever take part.
Yang, Wong, Zhu, Wang and Qian. Federated Learning with Class Imbalance Reduction. EUSIPCO 2021, section III.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedga.algorithms.base import RoundResult, Server, Setup, Tensors, option
from fedga.algorithms.parameters import Parameters
from fedga.errors import FedGAError, unknown_name
from fedga.selection.base import Choice, Selection

ESTIMATES, COMPOSE, AUXILIARY = ("update", "auxiliary", "counts"), ("top", "greedy"), 32


@dataclass(frozen=True)
class Bandit(Selection):
    explore: float = option(0.8, least=0, largest=1e6)
    temperature: float = option(0.01, above=0, smallest=1e-6, largest=1e6)
    estimate: str = "update"
    compose: str = "top"

    citation: ClassVar[str] = "Yang et al. 2021"
    reads_head: ClassVar[bool] = True
    reveals: ClassVar[str] = "an estimate of every client's class mix"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in (("estimate", ESTIMATES), ("compose", COMPOSE)):
            if getattr(self, name) not in known:
                raise unknown_name(f"{name} of bandit", getattr(self, name), known)
        asks = {"needs_class_counts": self._knows, "reads_head": not self._knows}
        for name, value in (asks | {"auxiliary_samples": AUXILIARY * (self.estimate == "auxiliary")}).items():
            object.__setattr__(self, name, value)  # of this rule, other than of its class

    @property
    def _knows(self) -> bool:
        return self.estimate == "counts"

    def state(self, setup: Setup) -> dict[str, Tensor]:
        if not self._knows:
            _bias(setup.parameters)
        state = {name: torch.zeros(setup.num_clients, device=setup.params.device) for name in ("turns", "rewards")}
        mixes = {"mixes": torch.zeros(setup.num_clients, setup.num_classes, device=setup.params.device)}
        return state | (mixes if self.compose == "greedy" and not self._knows else {})

    def select(self, choice: Choice) -> Tensor:
        turns, known = choice.state["turns"], choice.class_counts
        mean, mixes = choice.state["rewards"] / turns.clamp(min=1), choice.state.get("mixes", turns[:, None])
        mixes = mixes.double() / turns.clamp(min=1)[:, None]
        if self._knows and known is not None:
            mixes = (known / known.sum(1, keepdim=True)).double()
            mean = reward(mixes)
        bonus = self.explore * (3 * torch.log(torch.tensor(float(choice.round))) / (2 * turns.clamp(min=1))).sqrt()
        value = torch.where(turns == 0, choice.draws - 1e6, choice.draws * 1e-3 - (mean + bonus).double())
        if self.compose == "top":
            return choice.smallest(value)

        def score(number: int, taken: Tensor) -> Tensor:
            pooled = -reward((taken @ mixes + mixes) / (number + 1)) + 1e-9 * choice.draws
            return torch.where(turns == 0, value, pooled) if number else value

        return choice.one_by_one(score)

    def inspect(self, server: Server, client_params: Tensor) -> dict[str, Tensor]:
        if self._knows:
            return {}
        if self.estimate == "auxiliary":  # one client at a time: ten classes of 32 samples are many activations
            sizes = torch.stack([gradient_sizes(server, params) for params in client_params])
            mix = F.normalize(1 / sizes.clamp(min=1e-30), p=1, dim=-1)
        else:
            bias = _bias(server.parameters)
            mix = F.softmax((client_params[:, bias] - server.params[bias]) / self.temperature, dim=-1)
        return {"reward": reward(mix), "mix": mix}

    def update(self, state: Tensors, result: RoundResult) -> dict[str, Tensor]:
        chosen = F.one_hot(result.clients, len(state["turns"])).to(result.update.dtype)  # [active, clients]
        found = {"turns": state["turns"] + chosen.sum(0), "rewards": state["rewards"]}
        if not self._knows:
            found["rewards"] = state["rewards"] + result.reports["reward"] @ chosen
        return found | ({"mixes": state["mixes"] + chosen.mT @ result.reports["mix"]} if "mixes" in state else {})


def reward(mix: Tensor) -> Tensor:
    """``1 / H(U, R)`` of class mixes ``[..., classes]``."""
    return 1 / -mix.clamp(min=1e-12).log().mean(-1)


def gradient_sizes(server: Server, params: Tensor) -> Tensor:
    """``g_c`` of one model, ``[classes]``."""
    assert server.auxiliary is not None

    def loss(params: Tensor, inputs: Tensor, target: Tensor) -> Tensor:
        logits = server.forward(params, inputs)
        return F.cross_entropy(logits, target.expand(logits.shape[0]))

    targets = torch.arange(server.num_classes, device=params.device)
    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(params, server.auxiliary, targets)
    return torch.stack([part.flatten(1).square().mean(1) for part in server.parameters.views(gradients).values()]).sum(
        0
    )


def _bias(parameters: Parameters) -> slice:
    """Where the bias of the head lies."""
    for name in parameters.head:
        if len(parameters.shapes[name]) == 1:
            return parameters.slices()[name]
    what = "how training moves the bias of the last linear layer, and here none is trained"
    raise FedGAError(f"--select bandit reads {what}: choose another rule")
