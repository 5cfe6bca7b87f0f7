"""The usual mistakes of a selection rule, found on a made-up federation, each as one sentence."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedga.algorithms.base import RoundResult, Setup, Tensors
from fedga.algorithms.checking.declared import check_hooks
from fedga.algorithms.checking.hooks import Hooks, check_state, shown
from fedga.algorithms.checking.made_up import CLASSES, FEATURES, NETWORK, PARAMETERS, server_of
from fedga.common import streams
from fedga.errors import FedGAError
from fedga.selection.base import Choice, Selection

CLIENTS, ACTIVE, ROUNDS = 7, 3, 6


def check_selection(rule: Selection, name: str = "") -> None:
    """Refuse a rule that picks absent clients, or one twice, or that cannot be mapped over runs.

    >>> from fedga.selection import make_selection
    >>> check_selection(make_selection("in-turn"))
    """
    called = f"selection rule {name or type(rule).__name__}"
    check_hooks(type(rule), Selection, called)
    hooks = Hooks(rule, called, {})
    generator = torch.Generator().manual_seed(0)
    params = torch.randn(PARAMETERS, generator=generator)
    setup = Setup(params, CLIENTS, CLASSES, NETWORK)
    state = hooks.tensors("state", hooks.call("state", lambda: rule.state(setup)))
    counts = torch.arange(1.0, CLIENTS * CLASSES + 1).view(CLIENTS, CLASSES) % 5
    more = {"key": torch.tensor(streams.key(0, "selection"))}
    more |= {"class_counts": counts} if rule.needs_class_counts else {}
    more |= {"losses": torch.linspace(0.5, 2.0, CLIENTS).roll(2)} if rule.needs_losses else {}
    held = torch.randn(CLASSES, max(1, rule.auxiliary_samples), FEATURES, generator=generator)

    def select(at: int, state: Tensors, draws: Tensor, available: Tensor, more: Tensors) -> Tensor:
        return rule.select(Choice(at, state, draws, available, ACTIVE, **more))

    def inspect(params: Tensor, models: Tensor) -> dict[str, Tensor]:
        return rule.inspect(server_of(params, {}, held if rule.auxiliary_samples else None), models)

    def update(at: int, state: Tensors, *given: Any) -> dict[str, Tensor]:
        return rule.update(state, RoundResult(at, *given))

    for number in range(1, ROUNDS + 1):
        draws = torch.rand(CLIENTS, generator=generator, dtype=torch.float64)
        for absent in (CLIENTS - 1, CLIENTS - ACTIVE, 2, 0):
            available = torch.arange(CLIENTS) >= absent
            chosen = hooks.mapped("select", partial(select, number), state, draws, available, more)
            check_chosen(chosen, available, ACTIVE, called)
        models = params + 0.1 * torch.randn(ACTIVE, PARAMETERS, generator=generator)
        reports = hooks.mapped("inspect", inspect, params, models)
        given = (chosen, torch.tensor([0.5, 0.3, 0.2]), params, hooks.tensors("inspect", reports))
        after = hooks.tensors("update", hooks.mapped("update", partial(update, number), state, *given))
        if wrong := check_state(state, after, "update", "state"):
            raise hooks.wrong(wrong)
        state = after


def check_chosen(chosen: Tensor, available: Tensor, active: int, called: str) -> None:
    """Refuse what is no choice: ``[active]`` numbers of different clients, absent ones only where too few are there."""
    if chosen.shape != (active,) or chosen.is_floating_point():
        found = f"{shown(chosen)} of {chosen.dtype}".replace("torch.", "")
        raise FedGAError(f"{called}: select gave {found}: return the whole numbers of choice.active clients, {active}")
    names, there = chosen.tolist(), available.nonzero().flatten().tolist()
    if len(set(names)) < active or not all(0 <= client < len(available) for client in names):
        raise FedGAError(f"{called} chose {names} of {len(available)} clients: return different ones, from 0 on")
    if len(set(names) & set(there)) < min(active, len(there)):
        raise FedGAError(
            f"{called} chose {names}, and only {there} are there: use choice.available, or choice.smallest(scores), "
            "which does"
        )
