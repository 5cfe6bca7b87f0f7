"""The usual mistakes of a server optimiser, found on made-up vectors, each as one sentence."""

from dataclasses import fields

import torch
from torch import Tensor

from fedga.algorithms.checking.declared import check_hooks
from fedga.algorithms.checking.hooks import Hooks, check_state, shown
from fedga.algorithms.checking.made_up import PARAMETERS
from fedga.common.ranges import Number
from fedga.servers.base import ServerOptimizer


def check_server(server: ServerOptimizer, name: str = "") -> None:
    """Refuse an optimiser that fails, that cannot be mapped over runs, or that loses what it keeps.

    >>> from fedga.servers import make_server
    >>> check_server(make_server("adam"))
    """
    called = f"server optimiser {name or type(server).__name__}"
    check_hooks(type(server), ServerOptimizer, called)
    hooks = Hooks(server, called, {})
    for option in fields(server):
        constant = f"{option.name}: ClassVar[float] = {option.default!r}"
        raise hooks.wrong(f"{option.name} would be an option, and it has none but --server-rate: write {constant}")
    Number(above=0).check(f"{called}: default_rate", server.default_rate)
    params, update = torch.randn(2, PARAMETERS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    state = hooks.tensors("state", hooks.call("state", lambda: server.state(params)))
    answer = hooks.mapped("step", server.step, params, update, dict(state), params.new_tensor(0.1))
    is_pair = isinstance(answer, tuple) and len(answer) == 2
    hooks.require(is_pair, "step must return two things: the next model, and a dictionary of what is kept")
    moved, kept = answer
    is_model = isinstance(moved, Tensor) and moved.shape == params.shape
    hooks.require(is_model, f"step gave {shown(moved)} as the next model: return a vector as long as params")
    if wrong := check_state(state, hooks.tensors("step", kept), "step", "state"):
        raise hooks.wrong(wrong)
