"""Padding never changes a number, and dropout is a function of its key."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedga.data.federation import Dataset
from fedga.engine.device_data import DeviceData
from fedga.engine.stack.layers import BatchContext, KeyedDropout, MaskedBatchNorm, prepare_for_padding
from fedga.engine.stack.stacked import StackedModel
from fedga.errors import FedGAError
from tests.engine.runs import make_engine, make_lane

CPU = torch.device("cpu")
EXACT = {"rtol": 1e-12, "atol": 1e-12}
SHAPES = {nn.BatchNorm1d: (5,), nn.BatchNorm2d: (5, 3, 2), nn.BatchNorm3d: (5, 2, 3, 2)}  # beside the samples
LONG = (5, 7)  # what nn.BatchNorm1d takes as well


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make_norm(kind: type[nn.Module], **options: Any) -> nn.Module:
    """A batch norm in the middle of a training: weights and statistics are not those it starts with."""
    norm = kind(5, **options).double()
    with torch.no_grad():
        for seed, tensor in enumerate([*norm.parameters(), norm.running_mean], start=1):
            tensor += random(5, seed=seed)
        norm.running_var += random(5, seed=9).abs()
    return norm


CASES = [(kind, shape, {}) for kind, shape in SHAPES.items()] + [
    (nn.BatchNorm1d, LONG, {}),
    (nn.BatchNorm2d, SHAPES[nn.BatchNorm2d], {"affine": False}),
    (nn.BatchNorm1d, SHAPES[nn.BatchNorm1d], {"momentum": 0.7, "eps": 0.1}),
]


@pytest.mark.parametrize(("kind", "shape", "options"), CASES)
@pytest.mark.parametrize("real", [2, 5, 8])
def test_masked_batch_norm_equals_torch_on_the_real_rows(
    kind: type[nn.Module], shape: tuple[int, ...], options: dict[str, Any], real: int
) -> None:
    """Outputs, gradients and running statistics, over two steps; the padding holds values that would be seen."""
    plain, context = make_norm(kind, **options), BatchContext()
    masked = MaskedBatchNorm(copy.deepcopy(plain), context)  # type: ignore[arg-type]
    context.mask = (torch.arange(8) < real).float()
    for step in range(2):
        inputs = random(8, *shape, seed=step)
        inputs[real:] = 1e3 * random(8 - real, *shape, seed=step + 10)
        padded, rows = inputs.clone().requires_grad_(), inputs[:real].clone().requires_grad_()
        actual, expected = masked(padded), plain(rows)
        torch.testing.assert_close(actual[:real], expected, **EXACT)
        downstream = random(*expected.shape, seed=step + 20)
        (actual[:real] * downstream).sum().backward()
        (expected * downstream).sum().backward()
        assert padded.grad is not None
        assert rows.grad is not None
        torch.testing.assert_close(padded.grad[:real], rows.grad, **EXACT)
        assert (padded.grad[real:] == 0).all()
        for one, other in zip(masked.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, **EXACT)
        for name in ("running_mean", "running_var"):
            torch.testing.assert_close(getattr(masked, name), getattr(plain, name), **EXACT)
            assert not getattr(masked, name).requires_grad
    torch.testing.assert_close(masked.eval()(inputs), plain.eval()(inputs), **EXACT)


def test_which_rows_are_padding_does_not_matter() -> None:
    context = BatchContext()
    masked = MaskedBatchNorm(make_norm(nn.BatchNorm2d), context)  # type: ignore[arg-type]
    plain, inputs = make_norm(nn.BatchNorm2d), random(6, *SHAPES[nn.BatchNorm2d])
    context.mask = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0, 0.0])
    real = context.mask.bool()
    torch.testing.assert_close(masked(inputs)[real], plain(inputs[real]), **EXACT)


def test_a_batch_of_nothing_but_padding_moves_no_statistics() -> None:
    context = BatchContext(mask=torch.zeros(4))
    masked = MaskedBatchNorm(make_norm(nn.BatchNorm2d), context)  # type: ignore[arg-type]
    before = masked.running_mean.clone(), masked.running_var.clone()
    inputs = random(4, *SHAPES[nn.BatchNorm2d]).requires_grad_()
    outputs = masked(inputs)
    torch.where(torch.zeros(4, 1, 1, 1, dtype=torch.bool), outputs, 0.0).sum().backward()
    assert torch.equal(masked.running_mean, before[0])
    assert torch.equal(masked.running_var, before[1])
    assert outputs.isfinite().all()
    for tensor in (inputs, *masked.parameters()):
        assert (tensor.grad == 0).all()


def test_a_single_value_per_channel_is_finite() -> None:
    """torch refuses one; here the last batch of a client may be one sample, whose variance is then 0."""
    context = BatchContext(mask=torch.tensor([1.0, 0.0, 0.0]))
    masked = MaskedBatchNorm(make_norm(nn.BatchNorm1d), context)  # type: ignore[arg-type]
    mean, variance = masked.running_mean.clone(), masked.running_var.clone()
    inputs = random(3, 5).requires_grad_()
    outputs = masked(inputs)
    torch.testing.assert_close(outputs[0], masked.bias, **EXACT)
    torch.testing.assert_close(masked.running_mean, 0.9 * mean + 0.1 * inputs[0].detach(), **EXACT)
    torch.testing.assert_close(masked.running_var, 0.9 * variance, **EXACT)
    outputs[0].sum().backward()
    assert inputs.grad is not None
    assert inputs.grad.isfinite().all()


def sequential(*layers: nn.Module) -> Any:
    """A builder of the network ``flatten, 64 -> 16, layers, 16 -> classes``."""

    def build(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), *copy.deepcopy(layers), nn.Linear(16, num_classes))

    return build


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.BatchNorm1d(16, momentum=None), "momentum"),
        (nn.BatchNorm1d(16, track_running_stats=False), "track_running_stats"),
    ],
)
def test_batch_norm_that_cannot_be_averaged_is_refused(layer: nn.Module, words: str, pictures_data: DeviceData) -> None:
    lane = make_lane(pictures_data.dataset, model=sequential(layer))
    with pytest.raises(FedGAError, match=words):
        make_engine([lane], pictures_data).run_round()


class Functional(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return nn.functional.dropout(inputs, 0.5, self.training)


@pytest.mark.parametrize("slots", [1, 1000])
@pytest.mark.parametrize("layer", [nn.AlphaDropout(0.5), Functional()], ids=["AlphaDropout", "functional"])
def test_draws_from_the_global_generator_are_refused(layer: nn.Module, slots: int, pictures_data: DeviceData) -> None:
    """They would make the numbers of a run depend on what ran before it."""
    lane = make_lane(pictures_data.dataset, model=sequential(layer))
    with pytest.raises(FedGAError, match="random"):
        make_engine([lane], pictures_data, slots).run_round()


# --- dropout ---------------------------------------------------------------------------------------------------------


def dropout(probability: float = 0.3, *, whole: bool = False, layer: int = 0, key: int = 11) -> KeyedDropout:
    return KeyedDropout(probability, whole, layer, BatchContext(dropout_key=torch.tensor(key)))


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_dropout_drops_about_p_and_scales_the_rest(probability: float) -> None:
    inputs = torch.ones(400, 500)
    outputs = dropout(probability)(inputs)
    dropped = outputs == 0
    deviation = (probability * (1 - probability) / inputs.numel()) ** 0.5
    assert abs(dropped.double().mean().item() - probability) < 5 * deviation
    torch.testing.assert_close(outputs[~dropped], torch.full_like(outputs[~dropped], 1 / (1 - probability)))
    per_row, per_column = dropped.double().mean(1), dropped.double().mean(0)
    assert (per_row - probability).abs().max() < 6 * deviation * 400**0.5
    assert (per_column - probability).abs().max() < 6 * deviation * 500**0.5


def test_dropout_is_a_function_of_key_and_layer() -> None:
    inputs = torch.ones(20, 30)
    assert torch.equal(dropout()(inputs), dropout()(inputs))
    assert not torch.equal(dropout()(inputs), dropout(key=12)(inputs))
    assert not torch.equal(dropout()(inputs), dropout(layer=1)(inputs))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    dropout()(inputs)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("whole", [False, True])
def test_padding_rows_do_not_move_the_draw(whole: bool) -> None:
    inputs = torch.ones(8, 6, 3, 3)
    assert torch.equal(dropout(whole=whole)(inputs)[:5], dropout(whole=whole)(inputs[:5]))


def test_whole_channels_are_dropped() -> None:
    outputs = dropout(0.5, whole=True)(torch.ones(50, 20, 3, 4))
    per_channel = (outputs == 0).double().mean((2, 3))
    assert set(per_channel.unique().tolist()) == {0.0, 1.0}
    assert 0.4 < per_channel.mean() < 0.6


def test_dropout_in_evaluation_and_at_zero_is_the_identity() -> None:
    inputs = random(4, 5)
    assert torch.equal(dropout().eval()(inputs), inputs)
    assert torch.equal(dropout(0.0)(inputs), inputs)


def test_dropout_of_everything_is_zero_and_so_is_its_gradient() -> None:
    inputs = random(4, 5).requires_grad_()
    outputs = dropout(1.0)(inputs)
    outputs.sum().backward()
    assert (outputs == 0).all()
    assert (inputs.grad == 0).all()


def test_gradient_of_dropout_is_its_mask() -> None:
    inputs = random(4, 50).requires_grad_()
    outputs = dropout(0.5)(inputs)
    outputs.sum().backward()
    torch.testing.assert_close(inputs.grad, torch.where(outputs == 0, 0.0, 2.0).double())


# --- replacing layers ------------------------------------------------------------------------------------------------


def test_preparing_leaves_the_network_alone_and_replaces_every_layer() -> None:
    shared = nn.Dropout(0.2)
    network = nn.Sequential(
        nn.Linear(3, 4), shared, nn.Sequential(nn.BatchNorm1d(4), shared, nn.Dropout1d(0.1)), nn.Linear(4, 4), shared
    )
    prepared, _ = prepare_for_padding(network)
    kinds = [type(module) for module in network.modules()]
    assert KeyedDropout not in kinds
    assert MaskedBatchNorm not in kinds
    left = [module for module in prepared.modules() if isinstance(module, nn.Dropout | nn.Dropout1d | nn.BatchNorm1d)]
    assert left == []
    assert prepared.state_dict().keys() == network.state_dict().keys() - {"2.0.num_batches_tracked"}


def test_a_network_without_parameters_is_refused(pictures: Dataset) -> None:
    with pytest.raises(FedGAError, match="parameter"):
        make_engine([make_lane(pictures, model=lambda shape, classes: nn.Flatten())], DeviceData(pictures, CPU))


def test_integer_parameters_are_refused() -> None:
    network = nn.Linear(2, 2)
    network.bias = nn.Parameter(torch.zeros(2, dtype=torch.int64), requires_grad=False)
    with pytest.raises(FedGAError, match="floating point"):
        StackedModel(network)
