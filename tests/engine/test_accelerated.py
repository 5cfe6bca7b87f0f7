"""What stacked layers do on a CPU, and what a GPU without the means to compile kernels is told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap

from fedga.engine.gpu import layers as accelerated
from fedga.engine.gpu.layers import StackedConv2d, StackedMaxPool2d, why_not_fast
from fedga.engine.optimizers import LocalOptimizer
from fedga.engine.stack.stacked import StackedModel
from fedga.models import build_model
from tests.engine.runs import sum_of_logits


def coarse(*shape: int) -> Tensor:
    """Values with many equal neighbours, as pictures with a plain background give."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).mul(2).round().div(2)


def pooled_with_gradient(pool: nn.Module, inputs: Tensor) -> tuple[Tensor, Tensor]:
    leaf = inputs.clone().requires_grad_()
    outputs = pool(leaf)
    weights = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(1))
    return outputs.detach(), torch.autograd.grad((outputs * weights).sum(), leaf)[0]


@pytest.mark.parametrize("size", [(8, 8), (7, 9), (2, 2), (3, 2), (10, 11)], ids=str)
def test_pooling_of_pairs_is_that_of_torch_to_the_bit(size: tuple[int, int]) -> None:
    """Where several entries of a window are the largest, the first of them gets the gradient."""
    plain = nn.MaxPool2d(2)
    for inputs in (coarse(5, 3, *size), torch.zeros(2, 1, *size), coarse(3, 4, *size[::-1]).transpose(2, 3)):
        outputs, by_inputs = pooled_with_gradient(StackedMaxPool2d(plain), inputs)
        expected, by_inputs_expected = pooled_with_gradient(plain, inputs)
        assert torch.equal(outputs, expected)
        assert torch.equal(by_inputs, by_inputs_expected)
        with torch.no_grad():
            assert torch.equal(StackedMaxPool2d(plain)(inputs), expected)


def test_pooling_of_pairs_can_be_mapped() -> None:
    pool, inputs = StackedMaxPool2d(nn.MaxPool2d(2)), coarse(4, 3, 2, 7, 6)
    assert torch.equal(vmap(pool)(inputs), torch.stack([F.max_pool2d(each, 2) for each in inputs]))
    mapped = vmap(grad(lambda each: pool(each).square().sum()))(inputs)
    plain = torch.stack([grad(lambda each: F.max_pool2d(each, 2).square().sum())(each) for each in inputs])
    assert torch.equal(mapped, plain)


def test_pictures_that_are_too_small_are_refused_as_torch_refuses_them() -> None:
    with pytest.raises(RuntimeError, match="Output size is too small"):
        StackedMaxPool2d(nn.MaxPool2d(2))(torch.zeros(1, 1, 1, 4))
    with pytest.raises(RuntimeError, match="Kernel size can't be greater"):
        StackedConv2d(nn.Conv2d(1, 1, 5))(torch.zeros(1, 1, 4, 4))


def test_a_gradient_added_to_a_momentum_reads_nothing_that_was_never_written() -> None:
    """The first step has nothing to keep: whatever lies in fresh memory stays out of it."""
    model = StackedModel(build_model("mlp", (1, 4, 4), 3))
    assert model.adds_gradients
    params = torch.randn(2, model.params.total)
    given = (torch.zeros(2, 0), torch.randn(2, 5, 1, 4, 4), torch.ones(2, 5), torch.zeros(2, dtype=torch.int64))
    fresh, dirty = torch.zeros_like(params), torch.full_like(params, torch.nan)
    for into in (fresh, dirty):
        model.gradient(params, *given, sum_of_logits, into, 0.0)
    assert torch.equal(fresh, dirty)
    kept = fresh.clone()
    model.gradient(params, *given, sum_of_logits, kept, 0.5)
    torch.testing.assert_close(kept, 1.5 * fresh)


def test_only_momentum_without_a_clip_takes_gradients_in_directly() -> None:
    params, nothing, limits = torch.zeros(2, 3), torch.zeros(2), torch.full((2,), 5.0)
    assert LocalOptimizer("sgd", 0.9, nothing, None).accumulator(params) is not None
    assert LocalOptimizer("sgd", 0.9, nothing, limits).accumulator(params) is None
    assert LocalOptimizer("sgd", 0.0, nothing, None).accumulator(params) is None
    assert LocalOptimizer("adam", 0.9, nothing, None).accumulator(params) is None


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """As far as the question goes whether kernels can be compiled for it."""
    accelerated._kernels_compile.cache_clear()
    monkeypatch.setattr(accelerated, "_has_tensor_cores", lambda device: True)
    monkeypatch.delenv("CC", raising=False)
    yield torch.device("cuda")
    accelerated._kernels_compile.cache_clear()


def test_a_gpu_that_could_be_faster_says_what_is_missing(a_gpu: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerated, "find_spec", lambda name: object())
    monkeypatch.setattr(accelerated.shutil, "which", lambda name: None)
    assert "a C compiler (such as gcc) is not installed" in (why_not_fast(a_gpu) or "")
    monkeypatch.setattr(accelerated, "find_spec", lambda name: None)
    assert "pip install triton" in (why_not_fast(a_gpu) or "")
    accelerated._kernels_compile.cache_clear()
    monkeypatch.setattr(accelerated, "find_spec", lambda name: object())
    monkeypatch.setattr(accelerated.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert why_not_fast(a_gpu) is None
    assert why_not_fast(torch.device("cpu")) is None
