"""One sigmoid per class: every column is the binary loss with its own counts, and unknown labels count for nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, vmap

from fedga.errors import FedGAError
from fedga.losses.calibration import binary_ga_loss
from fedga.losses.multilabel import (
    MultilabelGALoss,
    multilabel_class_counts,
    multilabel_error_asymmetry,
    multilabel_ga_loss,
)
from fedga.measures.asymmetry import binary_error_asymmetry

NAN = math.nan


def draw(seed: int, *shape: int, classes: int = 4, unknown: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    """Logits and targets [*shape, classes] in float64, and counts [classes, 2] of some client."""
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(*shape, classes, generator=g, dtype=torch.float64)
    targets = torch.randint(0, 2, (*shape, classes), generator=g).double()
    targets[torch.rand(targets.shape, generator=g) < unknown] = NAN
    return logits, targets, torch.randint(0, 100, (classes, 2), generator=g)


def gradient(loss, logits: Tensor, *args, **options) -> Tensor:
    logits = logits.detach().clone().requires_grad_()
    return torch.autograd.grad(loss(logits, *args, **options), logits)[0]


@given(st.integers(0, 2**31), st.floats(0, 2), st.booleans())
@settings(max_examples=60, deadline=None)
def test_every_column_is_the_binary_loss(seed, strength, symmetric):
    """Of the label, or, where most samples have it, of its absence."""
    logits, targets, counts = draw(seed, 9)
    options = {"strength": strength, "symmetric": symmetric}
    got = multilabel_ga_loss(logits, targets, counts, **options, reduction="none")
    slope = gradient(multilabel_ga_loss, logits, targets, counts, **options, reduction="sum")
    for i in range(4):
        turned = symmetric and counts[i, 1] > counts[i, 0]
        sign = -1 if turned else 1
        label = 1 - targets[:, i] if turned else targets[:, i]
        column = sign * logits[:, i], label, counts[i].flip(0) if turned else counts[i]
        torch.testing.assert_close(got[:, i], binary_ga_loss(*column, strength=strength, reduction="none"))
        expected = sign * gradient(binary_ga_loss, *column, strength=strength, reduction="sum")
        torch.testing.assert_close(slope[:, i], expected)
    torch.testing.assert_close(multilabel_ga_loss(logits, targets, counts, **options), got.mean())


def test_the_gradient_is_the_papers():
    logits, targets, counts = draw(0, 30)
    p, (n_0, n_1) = logits.sigmoid(), counts.double().unbind(-1)
    expected = torch.where(targets > 0, p - 1, n_1 / n_0.clamp(min=1) * p)
    got = gradient(multilabel_ga_loss, logits, targets, counts, reduction="sum", symmetric=False)
    torch.testing.assert_close(got, expected)
    # Symmetric: the same, scaled down where the label is common, so that no sample weighs more than 1.
    got = gradient(multilabel_ga_loss, logits, targets, counts, reduction="sum")
    torch.testing.assert_close(got, expected * (n_0 / n_1.clamp(min=1)).clamp(max=1))


@pytest.mark.parametrize(
    ("everywhere", "symmetric", "left_alone"), [(0, True, True), (1, True, True), (1, False, False)]
)
def test_a_label_that_all_or_none_of_the_samples_have_is_left_alone(everywhere, symmetric, left_alone):
    logits, targets, _ = draw(1, 30)
    targets[:, 2] = everywhere
    counts = multilabel_class_counts(targets)
    slope = gradient(multilabel_ga_loss, logits, targets, counts, symmetric=symmetric)
    assert (slope[:, 2] == 0).all() == left_alone
    assert (slope[:, 0] != 0).all()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_equal_counts_or_no_strength_is_binary_cross_entropy(reduction):
    logits, targets, counts = draw(2, 3, 5)
    expected = F.binary_cross_entropy_with_logits(logits, targets, reduction=reduction)
    for n, strength in [(torch.full_like(counts, 7), 1.0), (counts, 0.0)]:
        got = multilabel_ga_loss(logits, targets, n, strength=strength, reduction=reduction)
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("marker", [NAN, -1.0])
def test_unknown_labels_count_for_nothing(marker):
    logits, targets, counts = draw(3, 40, unknown=0.4)
    known = ~targets.isnan()
    targets[~known] = marker
    each = multilabel_ga_loss(logits.where(known, 0), targets.where(known, 0), counts, reduction="none")
    logits[~known] = NAN
    got = multilabel_ga_loss(logits, targets, counts, reduction="none")
    torch.testing.assert_close(got, torch.where(known, each, 0.0))
    torch.testing.assert_close(multilabel_ga_loss(logits, targets, counts), each[known].mean())
    slope = gradient(multilabel_ga_loss, logits, targets, counts)
    assert (slope[~known] == 0).all()
    assert (slope[known] != 0).any()


def test_nothing_known_is_zero():
    logits, _, counts = draw(4, 5)
    nothing = torch.full((5, 4), -1)
    assert multilabel_ga_loss(logits, nothing, counts) == 0
    assert (gradient(multilabel_ga_loss, logits, nothing, counts) == 0).all()


@given(st.integers(0, 2**31), st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_soft_label_is_part_there_and_part_not(seed, symmetric):
    logits, targets, counts = draw(seed, 9, unknown=0.2)
    soft = torch.where(targets.isnan(), targets, draw(seed + 1, 9)[0].sigmoid())

    def at(t: Tensor) -> tuple[Tensor, Tensor]:
        options = {"symmetric": symmetric}
        slope = gradient(multilabel_ga_loss, logits, t, counts, reduction="sum", **options)
        return multilabel_ga_loss(logits, t, counts, reduction="none", **options), slope

    there, not_there = (torch.where(targets.isnan(), targets, label) for label in (1.0, 0.0))
    for got, one, other in zip(at(soft), at(there), at(not_there), strict=True):
        torch.testing.assert_close(got, torch.where(targets.isnan(), 0.0, soft * one + (1 - soft) * other))
    known = ~targets.isnan()
    plain = F.binary_cross_entropy_with_logits(logits[known], soft[known])
    torch.testing.assert_close(multilabel_ga_loss(logits, soft, torch.full_like(counts, 7)), plain)
    sums = torch.stack([(1 - soft).nansum(0), soft.nansum(0)], -1)
    torch.testing.assert_close(
        MultilabelGALoss()(logits, soft), multilabel_ga_loss(logits, soft, sums), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("kind", [np.asarray, Tensor.tolist])
def test_arrays_and_lists_are_measured_too(kind):
    logits, targets, _ = draw(9, 12)
    probs = logits.sigmoid()
    assert torch.equal(multilabel_class_counts(kind(targets)), multilabel_class_counts(targets))
    got = multilabel_error_asymmetry(kind(probs), kind(targets)).double()
    torch.testing.assert_close(got, multilabel_error_asymmetry(probs, targets), rtol=1e-5, atol=1e-5)


def test_counts_are_their_definition():
    _, targets, _ = draw(5, 3, 20, unknown=0.3)
    counts = multilabel_class_counts(targets)
    rows = targets.reshape(-1, 4).tolist()
    assert counts.tolist() == [[sum(row[i] == y for row in rows) for y in (0, 1)] for i in range(4)]
    assert torch.equal(multilabel_class_counts(targets.nan_to_num(-1).long()), counts)


@given(st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_error_asymmetry_is_that_of_every_column(seed):
    logits, targets, _ = draw(seed, 8, unknown=0.4)
    probs = logits.sigmoid()
    probs[targets.isnan()] = NAN
    ea = multilabel_error_asymmetry(probs, targets)
    for i in range(4):
        known = ~targets[:, i].isnan()
        expected = binary_error_asymmetry(probs[known, i], targets[known, i])
        torch.testing.assert_close(ea[i], expected, equal_nan=True)


def test_clients_vmapped_and_looped_agree():
    logits, targets, _ = draw(6, 3, 7, unknown=0.2)
    counts = torch.stack([multilabel_class_counts(one) for one in targets])
    looped = torch.stack([multilabel_ga_loss(*one) for one in zip(logits, targets, counts, strict=True)])
    torch.testing.assert_close(vmap(multilabel_ga_loss)(logits, targets, counts), looped)
    torch.testing.assert_close(vmap(multilabel_class_counts)(targets), counts)
    measured = torch.stack([multilabel_error_asymmetry(*one) for one in zip(logits.sigmoid(), targets, strict=True)])
    torch.testing.assert_close(vmap(multilabel_error_asymmetry)(logits.sigmoid(), targets), measured, equal_nan=True)
    slopes = torch.stack([grad(multilabel_ga_loss)(*one) for one in zip(logits, targets, counts, strict=True)])
    torch.testing.assert_close(vmap(grad(multilabel_ga_loss))(logits, targets, counts), slopes)
    compiled = torch.compile(multilabel_ga_loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(logits[0], targets[0], counts[0]), looped[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_is_worked_on_in_float32(dtype):
    logits, targets, counts = draw(7, 20, unknown=0.2)
    logits = logits.to(dtype)
    loss = multilabel_ga_loss(logits, targets, counts)
    assert loss.dtype == dtype
    torch.testing.assert_close(loss, multilabel_ga_loss(logits.double(), targets, counts).to(dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert multilabel_ga_loss(logits, targets, counts).dtype == torch.float32


class TestModule:
    def test_given_and_counted(self):
        logits, targets, counts = draw(8, 12, unknown=0.2)
        options = {"strength": 0.5, "reduction": "sum", "symmetric": False}
        criterion = MultilabelGALoss(counts, **options)
        expected = multilabel_ga_loss(logits, targets, counts, **options)
        torch.testing.assert_close(criterion(logits, targets), expected)
        own = multilabel_ga_loss(logits, targets, multilabel_class_counts(targets))
        torch.testing.assert_close(MultilabelGALoss()(logits, targets), own)

    def test_counts_move_with_the_module_and_leave_no_client(self):
        criterion = MultilabelGALoss([[70_000.0, 3.0]]).half()
        assert criterion.class_counts.tolist() == [[70_000, 3]]
        assert not criterion.state_dict()
        assert "[[70000, 3]]" in repr(criterion)
        assert "per batch" in repr(MultilabelGALoss())

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"class_counts": [3, 1]}, r"\[classes, 2\].*multilabel_class_counts"),
            ({"class_counts": [[3, -1]]}, "not negative"),
            ({"reduction": "avg"}, "unknown reduction 'avg'"),
            ({"strength": -1}, "strength must be a number from 0 up, but is -1"),
        ],
    )
    def test_bad_arguments(self, arguments, message):
        with pytest.raises(FedGAError, match=message):
            MultilabelGALoss(**arguments)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: multilabel_ga_loss(torch.zeros(3, 2), torch.zeros(3), [[1, 1]] * 2), r"targets \[3\]"),
        (lambda: multilabel_ga_loss(torch.zeros(3, 2).long(), torch.zeros(3, 2), [[1, 1]] * 2), "floating-point"),
        (lambda: multilabel_ga_loss(torch.zeros(3, 2), torch.zeros(3, 2), [1, 1]), r"must be \[2, 2\]"),
        (lambda: multilabel_ga_loss(torch.zeros(3, 2), torch.zeros(3, 2), [[1, 1]] * 3), r"has shape \[3, 2\]"),
        (lambda: multilabel_error_asymmetry(torch.zeros(3), torch.zeros(3)), r"\[samples, classes\]"),
        (lambda: multilabel_ga_loss(torch.zeros(1, 2), torch.tensor([[NAN, 2.0]]), [[1, 1]] * 2), "but one is 2"),
        (lambda: multilabel_ga_loss(np.zeros((3, 2)), torch.zeros(3, 2), [[1, 1]] * 2), "logits must be a tensor"),
        (lambda: multilabel_class_counts(torch.tensor([[-1, 0.3]])), "but one is 0.3: count them before"),
        (lambda: multilabel_class_counts(torch.tensor([[0, 2]])), "but one is 2"),
        (lambda: multilabel_class_counts(1), "a single number"),
        (lambda: multilabel_error_asymmetry([[-3.0, 0.5]], [[1, 0]]), "but one is -3: apply sigmoid to logits"),
        (lambda: multilabel_error_asymmetry([[0.5, 4.0]], [[1, 0]]), "but one is 4: apply sigmoid to logits"),
        (lambda: multilabel_error_asymmetry([[0.5, NAN]], [[1, 0]]), "look where NaN comes from"),
    ],
)
def test_errors(call, message):
    with pytest.raises(FedGAError, match=message):
        call()


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("part", [0.05, 0.9])
def test_training_ends_at_asymmetry_one_for_rare_and_for_common_labels(part, symmetric):
    """Plain binary cross-entropy ends at N_0 / N_1. Calibrating one side mends either direction."""
    g = torch.Generator().manual_seed(0)
    targets = (torch.rand(600, 1, generator=g) < part).double()
    inputs = torch.cat([targets + torch.randn(600, 1, generator=g), torch.ones(600, 1)], 1).double()
    counts = multilabel_class_counts(targets)
    n_0, n_1 = counts[0].tolist()

    def trained(loss) -> Tensor:
        weight = torch.zeros(2, 1, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.LBFGS([weight], max_iter=500, tolerance_grad=1e-12, tolerance_change=0)

        def closure() -> Tensor:
            weight.grad = torch.autograd.grad(loss(inputs @ weight), weight)[0]
            return weight.grad.norm()  # labels depend on p, so the loss itself need not fall on the way

        optimizer.step(closure)
        return multilabel_error_asymmetry((inputs @ weight).sigmoid().detach(), targets)

    plain = trained(lambda z: F.binary_cross_entropy_with_logits(z, targets))
    aligned = trained(lambda z: multilabel_ga_loss(z, targets, counts, symmetric=symmetric))
    assert plain.item() == pytest.approx(n_0 / n_1, rel=1e-5)
    assert aligned.item() == pytest.approx(1, rel=1e-5)


def test_clients_with_one_side_only_do_not_tilt_the_federation():
    """Two sites where all have the label, two where none has, one of 90 % and one of 10 %: nothing is tilted here."""
    g = torch.Generator().manual_seed(0)

    def samples(number: int, share: float) -> tuple[Tensor, Tensor]:
        labels = (torch.rand(number, 1, generator=g) < share).double()
        signal = 1.5 * labels + torch.randn(number, 1, generator=g, dtype=torch.float64)
        return torch.cat([signal, torch.ones(number, 1, dtype=torch.float64)], 1), labels

    clients = [samples(200, share) for share in (1, 1, 0, 0, 0.9, 0.1)]
    inputs, labels = samples(2000, 0.5)

    def asymmetry(symmetric: bool) -> float:
        weight = torch.zeros(2, 1, dtype=torch.float64)
        for _ in range(40):
            trained = []
            for x, y in clients:
                local, criterion = weight, MultilabelGALoss(multilabel_class_counts(y), symmetric=symmetric)
                for _ in range(10):
                    local = local - 0.3 * gradient(lambda w, x=x, y=y, loss=criterion: loss(x @ w, y), local)
                trained.append(local)
            weight = torch.stack(trained).mean(0)
        return abs(multilabel_error_asymmetry((inputs @ weight).sigmoid(), labels).log().item())

    assert asymmetry(True) < asymmetry(False) / 2
