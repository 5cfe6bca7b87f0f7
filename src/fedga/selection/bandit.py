"""A bandit over clients: those whose updates look class-balanced are chosen more often (CMAB).

The class mix of a client is estimated from how its training moved the head: with ``Δb_c`` the change of class c's bias,
``R = softmax(Δb / temperature)``, as in HiCS-FL (Chen and Vikalo, 2024). Its reward is ``1 / H(U, R)`` with
``H(U, R) = -1/C Σ log R_c``, averaged over its turns. Every round takes the clients with the largest
``mean reward + explore · sqrt(3 ln t / (2 turns))``; those without a turn come first.
Yang, Wong, Zhu, Wang and Qian. Federated Learning with Class Imbalance Reduction. EUSIPCO 2021, section III.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedga.algorithms.base import RoundResult, Server, Setup, Tensors, option
from fedga.algorithms.parameters import Parameters
from fedga.errors import FedGAError
from fedga.selection.base import Choice, Selection


@dataclass(frozen=True)
class Bandit(Selection):
    explore: float = option(0.8, least=0, largest=1e6)
    temperature: float = option(0.01, above=0, smallest=1e-6, largest=1e6)

    citation: ClassVar[str] = "Yang et al. 2021"
    reads_head: ClassVar[bool] = True
    reveals: ClassVar[str] = "an estimate of every client's class mix"

    def state(self, setup: Setup) -> dict[str, Tensor]:
        _bias(setup.parameters)
        return {name: torch.zeros(setup.num_clients, device=setup.params.device) for name in ("turns", "rewards")}

    def select(self, choice: Choice) -> Tensor:
        turns, mean = choice.state["turns"], choice.state["rewards"] / choice.state["turns"].clamp(min=1)
        bonus = self.explore * (3 * torch.log(torch.tensor(float(choice.round))) / (2 * turns.clamp(min=1))).sqrt()
        value = choice.draws * 1e-3 - (mean + bonus).double()
        return choice.smallest(torch.where(turns == 0, choice.draws - 1e6, value))

    def inspect(self, server: Server, client_params: Tensor) -> dict[str, Tensor]:
        bias = _bias(server.parameters)
        mix = F.softmax((client_params[:, bias] - server.params[bias]) / self.temperature, dim=-1)
        return {"reward": 1 / -mix.clamp(min=1e-12).log().mean(-1)}

    def update(self, state: Tensors, result: RoundResult) -> dict[str, Tensor]:
        chosen = F.one_hot(result.clients, len(state["turns"])).to(result.update.dtype)  # [active, clients]
        rewards = state["rewards"] + result.reports["reward"] @ chosen
        return {"turns": state["turns"] + chosen.sum(0), "rewards": rewards}


def _bias(parameters: Parameters) -> slice:
    """Where the bias of the head lies."""
    for name in parameters.head:
        if len(parameters.shapes[name]) == 1:
            return parameters.slices()[name]
    what = "how training moves the bias of the last linear layer, and here none is trained"
    raise FedGAError(f"--select bandit reads {what}: choose another rule")
