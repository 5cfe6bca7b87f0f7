"""The usual mistakes of a selection rule, found on a made-up federation, each as one sentence."""

import traceback

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap

from fedga.algorithms.base import RoundResult, Server, Setup
from fedga.algorithms.checking.declared import check_hooks
from fedga.algorithms.parameters import Parameters
from fedga.common.tracing import format_error
from fedga.errors import FedGAError
from fedga.selection.base import Choice, Selection

CLIENTS, ACTIVE, CLASSES, FEATURES, RUNS, ROUNDS = 7, 3, 4, 5, 2, 6


def check_selection(rule: Selection, name: str = "") -> None:
    """Refuse a rule that picks absent clients, or one twice, or that cannot be mapped over runs.

    >>> from fedga.selection import make_selection
    >>> check_selection(make_selection("in-turn"))
    """
    called = f"selection rule {name or type(rule).__name__}"
    check_hooks(type(rule), Selection, called)
    try:
        _play(rule, called)
    except FedGAError:
        raise
    except Exception as error:
        own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.name in vars(type(rule))]
        where = f"line {own[-1].lineno}, " if own else ""
        cure = (
            "it is mapped over runs, so write it with torch alone, without .item(), .tolist() or branching on values "
            "of tensors"
        )
        if "'NoneType'" in str(error) and not rule.needs_class_counts:
            cure = "choice.class_counts is given to rules that say needs_class_counts: ClassVar[bool] = True"
        elif isinstance(error, KeyError):
            cure = "state holds what `state` returns, and result.reports what `inspect` returns"
        raise FedGAError(f"{called} fails ({where}{format_error(error)}): {cure}") from error


def _play(rule: Selection, called: str) -> None:
    network = nn.Linear(FEATURES, CLASSES)
    parameters, params = Parameters(network), nn.utils.parameters_to_vector(network.parameters()).detach()
    state = rule.state(Setup(params, CLIENTS, CLASSES, parameters))
    counts = torch.arange(1.0, CLIENTS * CLASSES + 1).view(CLIENTS, CLASSES) % 5 + 1
    own_counts = (counts,) if rule.needs_class_counts else ()
    generator = torch.Generator().manual_seed(0)
    server = Server(params, {}, CLASSES, lambda params, inputs: inputs[:, :CLASSES], parameters)
    for number in range(1, ROUNDS + 1):
        draws = torch.rand(CLIENTS, generator=generator, dtype=torch.float64)
        everyone = torch.ones(CLIENTS, dtype=torch.bool)

        def one(state: dict[str, Tensor], draws: Tensor, at: int = number, there: Tensor = everyone) -> Tensor:
            return rule.select(Choice(at, state, draws, there, ACTIVE, *own_counts))

        chosen = one(state, draws)
        many = {key: torch.stack([value] * RUNS) for key, value in state.items()}
        mapped = vmap(one)(many, torch.stack([draws] * RUNS))
        if not torch.equal(mapped[1], chosen):
            raise FedGAError(f"{called} chooses others when it is mapped over runs: keep nothing outside its state")
        for absent in (0, 2, CLIENTS - ACTIVE, CLIENTS - 1):
            available = torch.arange(CLIENTS) >= absent
            some = rule.select(Choice(number, state, draws, available, ACTIVE, *own_counts))
            _check_chosen(some, available, called)
        models = params + 0.1 * torch.randn(ACTIVE, len(params), generator=generator)
        reports = rule.inspect(server, models)
        shares = F.softmax(torch.ones(ACTIVE), dim=0)
        after = rule.update(state, RoundResult(number, chosen, shares, params, reports))
        if after.keys() != state.keys() or any(after[key].shape != state[key].shape for key in state):
            raise FedGAError(f"{called}: update must return all that state has, in the same shapes, and nothing else")
        state = after


def _check_chosen(chosen: Tensor, available: Tensor, called: str) -> None:
    if chosen.shape != (ACTIVE,) or chosen.is_floating_point():
        raise FedGAError(f"{called}: select must return the numbers of `choice.active` clients, {ACTIVE} here")
    names = chosen.tolist()
    if len(set(names)) < ACTIVE or not all(0 <= client < CLIENTS for client in names):
        raise FedGAError(f"{called} chose {names} of {CLIENTS} clients: return different ones, from 0 on")
    there = int(available.sum())
    if sum(bool(available[client]) for client in names) < min(ACTIVE, there):
        raise FedGAError(
            f"{called} chose clients that are absent: use choice.available, or choice.smallest(scores), which does"
        )
