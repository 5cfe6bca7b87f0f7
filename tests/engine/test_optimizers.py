"""Local optimisers against torch.optim, row by row; server optimisers against their formulas, number by number."""

from __future__ import annotations

from collections.abc import Callable
from math import cos, inf, pi, sqrt

import pytest
import torch
from torch import Tensor

from fedga.engine.optimizers import (
    LocalOptimizer,
    averaging_weight,
    scheduled_rate,
)
from fedga.servers import SERVERS, make_server

pytestmark = pytest.mark.usefixtures("float64")
EXACT = {"rtol": 1e-12, "atol": 1e-12}
STEPS = 6


def gradients(rows: int, size: int = 7) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [2 * torch.randn(rows, size, generator=generator) for _ in range(STEPS)]


# Every row is a client with a rate, a weight decay and a clip of its own.
RATES = [0.1, 0.5, 0.01, 0.2, 0.3]
DECAYS = [0.0, 0.1, 0.0, 0.01, 0.5]
CLIPS = [inf, 5.0, 0.5, inf, 1.0]


@pytest.mark.parametrize(("kind", "momentum"), [("sgd", 0.0), ("sgd", 0.9), ("adam", 0.0)])
@pytest.mark.parametrize("clips", [CLIPS, [inf] * 5], ids=["clipped", "not clipped"])
@pytest.mark.parametrize("decays", [DECAYS, [0.0] * 5], ids=["decaying", "not decaying"])
def test_local_optimizer_equals_torch(kind: str, momentum: float, clips: list[float], decays: list[float]) -> None:
    given = gradients(5)
    start = torch.linspace(-1, 1, 35).view(5, 7)
    mover = LocalOptimizer(kind, momentum, torch.tensor(decays), torch.tensor(clips))
    moved = start.clone()
    for gradient in given:
        mover.step(moved, gradient.clone(), torch.tensor(RATES))
    for row in range(5):
        parameter = torch.nn.Parameter(start[row].clone())
        optimizer: torch.optim.Optimizer = torch.optim.Adam([parameter], RATES[row], weight_decay=decays[row])
        if kind == "sgd":
            optimizer = torch.optim.SGD([parameter], RATES[row], momentum, weight_decay=decays[row])
        for gradient in given:
            parameter.grad = gradient[row].clone()
            if clips[row] < inf:
                torch.nn.utils.clip_grad_norm_([parameter], clips[row])
            optimizer.step()
        torch.testing.assert_close(moved[row], parameter.detach(), **EXACT)


def test_some_of_the_gradients_are_clipped_and_some_are_not() -> None:
    norms = torch.stack([gradient.norm(dim=1) for gradient in gradients(5)])
    assert norms[:, 1].min() < 5 < norms[:, 1].max()


@pytest.mark.parametrize(("kind", "momentum"), [("sgd", 0.0), ("sgd", 0.9), ("adam", 0.0)])
def test_a_copy_whose_rate_is_zero_stands_still(kind: str, momentum: float) -> None:
    """Clients with fewer batches end earlier: their last step is final, momentum or not."""
    given = gradients(2)
    mover = LocalOptimizer(kind, momentum, torch.tensor([0.1, 0.1]), torch.tensor([5.0, 5.0]))
    moved = torch.ones(2, 7)
    rates = torch.tensor([0.1, 0.1])
    for step, gradient in enumerate(given):
        before = moved.clone()
        mover.step(moved, gradient.clone(), torch.where(torch.tensor([step < 3, True]), rates, 0.0))
        assert torch.equal(moved[0], before[0]) == (step >= 3)
        assert not torch.equal(moved[1], before[1])


# --- the server ------------------------------------------------------------------------------------------------------

UPDATES = [0.5, -2.0, 0.03, 0.0, 1.0]


def by_hand(kind: str, rate: float, w: float) -> list[float]:
    """Reddi et al. 2021, Algorithm 2, β1 = 0.9 (adagrad: 0), β2 = 0.99, τ = 1e-3, v starts at τ²."""
    m, v, tau, ends = 0.0, 1e-6, 1e-3, []
    for update in UPDATES:
        if kind == "sgd":
            w += rate * update
        elif kind == "momentum":
            m = 0.9 * m + update
            w += rate * m
        elif kind == "adagrad":
            v += update**2
            w += rate * update / (sqrt(v) + tau)
        else:
            m = 0.9 * m + 0.1 * update
            if kind == "adam":
                v = 0.99 * v + 0.01 * update**2
            else:
                sign = (v > update**2) - (v < update**2)
                v = v - 0.01 * update**2 * sign
            w += rate * m / (sqrt(v) + tau)
        ends.append(w)
    return ends


@pytest.mark.parametrize("kind", SERVERS)
def test_server_optimizer_follows_its_formula(kind: str) -> None:
    """Two runs with rates of their own, every parameter moved alike."""
    rates, starts = [1.0, 0.3], [2.0, -1.0]
    params = torch.tensor(starts)[:, None].expand(2, 3).clone()
    optimizer = make_server(kind)
    state = torch.func.vmap(optimizer.state)(params)
    found = []
    for update in UPDATES:
        before = params.clone()
        step = torch.func.vmap(optimizer.step)
        params, state = step(params, torch.full((2, 3), update), state, torch.tensor(rates))
        found.append(params)
        assert before.shape == params.shape
    for row in range(2):
        expected = torch.tensor(by_hand(kind, rates[row], starts[row]))
        torch.testing.assert_close(torch.stack(found)[:, row], expected[:, None].expand(-1, 3), **EXACT)


@pytest.mark.parametrize(
    ("kind", "moments"), [("sgd", (0, 0)), ("momentum", (3, 0)), ("adam", (3, 3)), ("yogi", (3, 3))]
)
def test_server_optimizer_keeps_what_it_needs(kind: str, moments: tuple[int, int]) -> None:
    state = make_server(kind).state(torch.zeros(3))
    assert (len(state["first"]), len(state["second"])) == moments


@pytest.mark.parametrize("weight", [0.05, 0.5, 1.0])
def test_averaged_model_is_the_corrected_exponential_mean(weight: float) -> None:
    """After t rounds: Σ w (1 - w)^(t - i) x_i / (1 - (1 - w)^t), in which the initial weights do not occur."""
    models = torch.linspace(-1, 3, 8)
    averaged = torch.tensor(1e6)  # the random start, which must leave no trace
    for t in range(1, 9):
        step = averaging_weight(torch.tensor(weight), t)
        averaged = torch.lerp(averaged, models[t - 1], step)
        terms = [weight * (1 - weight) ** (t - i) for i in range(1, t + 1)]
        expected = sum(term * models[i].item() for i, term in enumerate(terms)) / sum(terms)
        assert averaged.item() == pytest.approx(expected, abs=1e-9)
        assert sum(terms) == pytest.approx(1 - (1 - weight) ** t)
    assert averaging_weight(torch.tensor(weight), 1).item() == pytest.approx(1, abs=1e-14)


SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "cosine": lambda done: (1 + cos(pi * done)) / 2,
    "exponential": lambda done: 10 ** (-2 * done),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_scheduled_rate(schedule: str) -> None:
    rates = [scheduled_rate(0.2, schedule, number, 10) for number in range(1, 11)]
    assert rates == pytest.approx([0.2 * SCHEDULES[schedule]((number - 1) / 10) for number in range(1, 11)])
    assert rates[0] == 0.2
    assert all(rate > 0 for rate in rates)
    assert sorted(rates, reverse=True) == rates
