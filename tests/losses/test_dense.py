"""The loss over pixels equals the loss over samples on those that are not ignored, in torch's layout."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, vmap

from fedga.errors import FedGAError
from fedga.losses.calibration import GALoss, batch_class_counts, ga_loss
from fedga.losses.dense import DenseGALoss, dense_ga_loss

CLASSES = 5
IGNORED = 255
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def draw(seed: int, *shape: int, ignored: float = 0.3) -> tuple[Tensor, Tensor, Tensor]:
    """Logits [batch, classes, ...] in float64, targets [batch, ...], counts [classes] of which one is 0 at times."""
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(shape[0], CLASSES, *shape[1:], generator=g, dtype=torch.float64)
    targets = torch.randint(0, CLASSES, shape, generator=g)
    targets[torch.rand(shape, generator=g) < ignored] = IGNORED
    return logits, targets, torch.randint(-2, 20, (CLASSES,), generator=g).clamp(min=0)


problems = st.builds(
    lambda seed, shape: draw(seed, *shape), st.integers(0, 2**31), st.lists(st.integers(1, 4), min_size=1, max_size=4)
)


def gradient(loss, logits: Tensor, *args, **options) -> Tensor:
    logits = logits.detach().clone().requires_grad_()
    return torch.autograd.grad(loss(logits, *args, **options), logits)[0]


def on_samples(logits: Tensor, targets: Tensor, counts: Tensor, **options) -> Tensor:
    """The same by `ga_loss`, on the pixels that are kept."""
    kept = targets != IGNORED
    return ga_loss(logits.movedim(1, -1)[kept], targets[kept], counts, **options)


@given(problems, st.floats(0, 2), st.sampled_from([0.0, 0.5, 1.0, 1.7]))
@settings(max_examples=80, deadline=None)
def test_it_is_the_loss_on_the_pixels_that_are_kept(problem, strength, power):
    logits, targets, counts = problem
    options = {"strength": strength, "power": power, "reduction": "sum"}
    dense = {**options, "ignore_index": IGNORED}
    torch.testing.assert_close(
        dense_ga_loss(logits, targets, counts, **dense), on_samples(logits, targets, counts, **options)
    )
    torch.testing.assert_close(
        gradient(dense_ga_loss, logits, targets, counts, **dense),
        gradient(on_samples, logits, targets, counts, **options),
    )
    each = dense_ga_loss(logits, targets, counts, **{**dense, "reduction": "none"})
    assert each.shape == targets.shape
    assert (each[targets == IGNORED] == 0).all()
    if (targets != IGNORED).any():
        mean = dense_ga_loss(logits, targets, counts, **{**dense, "reduction": "mean"})
        torch.testing.assert_close(mean, each[targets != IGNORED].mean())


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@given(problem=problems)
@settings(max_examples=20, deadline=None)
def test_equal_counts_are_torchs_cross_entropy(problem, reduction):
    logits, targets, _ = problem
    targets.reshape(-1)[0] = 0  # where every pixel is ignored the two differ on purpose
    options = {"ignore_index": IGNORED, "reduction": reduction}
    expected = F.cross_entropy(logits, targets, **options)
    torch.testing.assert_close(dense_ga_loss(logits, targets, [3] * CLASSES, **options), expected)
    torch.testing.assert_close(dense_ga_loss(logits, targets, [1, 2, 3, 4, 0], strength=0.0, **options), expected)


def test_one_sample_without_a_batch():
    logits = torch.randn(CLASSES)
    counts = [3, 1, 0, 2, 9]
    got = dense_ga_loss(logits, torch.tensor(1), counts)
    torch.testing.assert_close(got, ga_loss(logits, torch.tensor(1), counts))
    torch.testing.assert_close(DenseGALoss()(logits, torch.tensor(1)), GALoss()(logits, torch.tensor(1)))


def test_ignored_pixels_have_no_gradient_even_where_they_are_nan():
    logits, targets, counts = draw(0, 3, 4, 5)
    ignored = targets == IGNORED
    expected = gradient(dense_ga_loss, logits, targets, counts, ignore_index=IGNORED)
    logits.movedim(1, -1)[ignored] = math.nan
    got = gradient(dense_ga_loss, logits, targets, counts, ignore_index=IGNORED)
    assert torch.equal(got, expected)
    assert (got.movedim(1, -1)[ignored] == 0).all()


def test_without_an_index_to_ignore_every_pixel_counts():
    logits, targets, counts = draw(1, 2, 6, ignored=0)
    got = dense_ga_loss(logits, targets, counts, ignore_index=None)
    torch.testing.assert_close(got, on_samples(logits, targets, counts))
    torch.testing.assert_close(DenseGALoss(counts, ignore_index=None)(logits, targets), got)
    torch.testing.assert_close(DenseGALoss(ignore_index=None)(logits, targets), DenseGALoss()(logits, targets))
    targets[0, 0] = -100
    with pytest.raises(FedGAError, match="targets holds -100, but the classes are 0 to 4"):
        dense_ga_loss(logits, targets, counts, ignore_index=None)


@pytest.mark.parametrize("wrong", [IGNORED, -1, CLASSES])
@pytest.mark.parametrize("counted", [True, False])
def test_a_target_that_is_no_class_is_told(wrong, counted):
    logits, targets, counts = draw(1, 2, 3, 4, ignored=0)
    targets[1, 2, 3] = wrong
    with pytest.raises(FedGAError, match=f"targets holds {wrong}, .*0 to 4.*ignore_index={wrong}"):
        DenseGALoss(counts if counted else None)(logits, targets)


def test_a_valid_class_may_be_ignored_too():
    logits, targets, counts = draw(1, 2, 6, ignored=0)
    got = dense_ga_loss(logits, targets, counts, ignore_index=0)
    torch.testing.assert_close(got, dense_ga_loss(logits, torch.where(targets == 0, -100, targets), counts))


@pytest.mark.parametrize("shape", [(2, 3, 3), (0, 3, 3)])
def test_nothing_to_learn_from_is_zero(shape):
    logits = torch.randn(shape[0], CLASSES, *shape[1:], requires_grad=True)
    loss = dense_ga_loss(logits, torch.full(shape, -100), [1, 2, 3, 4, 5])
    loss.backward()
    assert loss == 0
    assert (logits.grad == 0).all()


def test_layouts_of_memory_do_not_matter():
    logits, targets, counts = draw(2, 2, 4, 6)
    expected = gradient(dense_ga_loss, logits, targets, counts, ignore_index=IGNORED)
    last = logits.to(memory_format=torch.channels_last)
    torch.testing.assert_close(gradient(dense_ga_loss, last, targets, counts, ignore_index=IGNORED), expected)
    turned = logits.transpose(2, 3).contiguous().transpose(2, 3)
    torch.testing.assert_close(gradient(dense_ga_loss, turned, targets, counts, ignore_index=IGNORED), expected)


def test_first_and_second_derivative_by_finite_differences():
    logits, targets, counts = draw(3, 2, 3)
    counts[0] = 0

    def loss(z: Tensor) -> Tensor:
        return dense_ga_loss(z, targets, counts, ignore_index=IGNORED, strength=0.7, power=0.8)

    logits.requires_grad_()
    assert torch.autograd.gradcheck(loss, logits)
    assert torch.autograd.gradgradcheck(loss, logits)


def test_clients_vmapped_and_looped_agree():
    drawn = [draw(seed, 2, 3, 4) for seed in range(4)]
    logits, targets, counts = (torch.stack(parts) for parts in zip(*drawn, strict=True))

    def loss(z: Tensor, y: Tensor, n: Tensor) -> Tensor:
        return dense_ga_loss(z, y, n, ignore_index=IGNORED)

    torch.testing.assert_close(vmap(loss)(logits, targets, counts), torch.stack([loss(*one) for one in drawn]))
    slopes = torch.stack([gradient(loss, *one) for one in drawn])
    torch.testing.assert_close(vmap(grad(loss))(logits, targets, counts), slopes)
    shared = vmap(grad(loss), in_dims=(None, None, 0))(logits[0], targets[0], counts)
    torch.testing.assert_close(shared[0], slopes[0])


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # the compiler does it itself
def test_compiled_in_one_graph():
    torch.compiler.reset()
    logits, targets, counts = draw(4, 2, 3, 4)
    compiled = torch.compile(dense_ga_loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(
        gradient(compiled, logits, targets, counts, ignore_index=IGNORED),
        gradient(dense_ga_loss, logits, targets, counts, ignore_index=IGNORED),
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_is_worked_on_in_float32(dtype, device):
    logits, targets, counts = (x.to(device) for x in draw(5, 2, 5, 6))
    logits = logits.to(dtype)
    loss = dense_ga_loss(logits, targets, counts, ignore_index=IGNORED)
    assert loss.dtype == dtype
    torch.testing.assert_close(loss, dense_ga_loss(logits.double(), targets, counts, ignore_index=IGNORED).to(dtype))
    slope = gradient(dense_ga_loss, logits, targets, counts, ignore_index=IGNORED)
    exact = gradient(dense_ga_loss, logits.double(), targets, counts, ignore_index=IGNORED)
    torch.testing.assert_close(slope, exact.to(dtype))


def test_autocast_keeps_the_loss_in_float32():
    x, targets, counts = draw(6, 2, 5, 6)
    layer = torch.nn.Conv2d(CLASSES, CLASSES, 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = layer(x.float())
        loss = dense_ga_loss(logits, targets, counts, ignore_index=IGNORED)
        assert logits.dtype == torch.bfloat16
        assert loss.dtype == torch.float32
        loss.backward()
    torch.testing.assert_close(loss, on_samples(logits.float(), targets, counts))
    assert layer.weight.grad.isfinite().all()


class TestModule:
    def test_given_counts(self):
        logits, targets, counts = draw(7, 2, 5, 6)
        criterion = DenseGALoss(counts, ignore_index=IGNORED, strength=0.5, power=0.7, reduction="sum")
        expected = on_samples(logits, targets, counts, strength=0.5, power=0.7, reduction="sum")
        torch.testing.assert_close(criterion(logits, targets), expected)

    @pytest.mark.parametrize("ignore_index", [IGNORED, 2])
    def test_pixels_of_a_call_are_counted_without_the_ignored(self, ignore_index):
        logits, targets, _ = draw(8, 2, 5, 6, ignored=0.5 if ignore_index == IGNORED else 0)
        counts = batch_class_counts(targets[targets != ignore_index], CLASSES)
        expected = dense_ga_loss(logits, targets, counts, ignore_index=ignore_index)
        torch.testing.assert_close(DenseGALoss(ignore_index=ignore_index)(logits, targets), expected)

    def test_counts_move_with_the_module_and_leave_no_client(self):
        criterion = DenseGALoss([70_000, 0, 3]).half()
        assert criterion.class_counts.tolist() == [70_000, 0, 3]
        assert not criterion.state_dict()
        assert "[70000, 0, 3], ignore_index=-100" in repr(criterion)
        assert "per batch" in repr(DenseGALoss())

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"class_counts": [3, -1]}, "not negative"),
            ({"class_counts": [[1, 2], [3, 4]]}, r"one number per class, but has shape \[2, 2\]"),
            ({"class_counts": []}, r"one number per class, but has shape \[0\]"),
            ({"class_counts": [0, 0]}, "all 0, which leaves nothing to align"),
            ({"reduction": "avg"}, "unknown reduction 'avg'"),
            ({"strength": -1}, "strength must be a number from 0 up, but is -1"),
            ({"power": "x"}, "power must be a number from 0 up, but is 'x'"),
        ],
    )
    def test_bad_arguments(self, arguments, message):
        with pytest.raises(FedGAError, match=message):
            DenseGALoss(**arguments)


@pytest.mark.parametrize(
    ("logits", "targets", "counts", "message"),
    [
        (torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 4).long(), [1, 2], "each of the 3 classes, but has shape"),
        (torch.zeros(2, 3, 4, 4), torch.zeros(2, 4).long(), [1, 2, 3], r"must be \[2, 4, 4\].*is \[2, 4\]"),
        (torch.zeros(2, 3, 4, 4), torch.zeros(2, 3, 4, 4).long(), [1, 2, 3], r"must be \[2, 4, 4\]"),
        (torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 4), [1, 2, 3], "class indices"),
        (torch.zeros(2, 3).long(), torch.zeros(2).long(), [1, 2, 3], "floating point"),
        (torch.tensor(0.0), torch.tensor(0), [1], "floating point"),
        (torch.zeros(2, 3), torch.zeros(2).long(), [1, -2, 3], "finite and not negative"),
        (torch.zeros(2, 3).numpy(), torch.zeros(2).long(), [1, 2, 3], "logits must be a tensor, not"),
        (torch.zeros(2, 3), torch.zeros(2).long(), {"a": 1}, "numbers in the order of the classes, not a dict"),
    ],
)
def test_shapes_and_dtypes_are_checked(logits, targets, counts, message):
    with pytest.raises(FedGAError, match=message):
        dense_ga_loss(logits, targets, counts)
