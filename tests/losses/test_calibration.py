"""The loss of FedGA: its labels, its gradient, and every way of calling it."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, vmap

from fedga.errors import FedGAError
from fedga.losses.calibration import GALoss, batch_class_counts, binary_ga_loss, calibrated_labels, ga_loss
from fedga.losses.dense import DenseGALoss
from fedga.losses.multilabel import MultilabelGALoss
from fedga.measures.asymmetry import binary_error_asymmetry, error_asymmetry, ratio_of

VARIANTS = ["soft", "aligned", "clamped", "through"]
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
WORKED_COUNTS = [100, 0, 20, 5, 20]
WORKED_PROBS = [0.8, 0.1, 0.05, 0.01, 0.04]


def draw(seed: int, *shape: int, classes: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    """Logits [*shape, classes], targets [*shape] and counts [classes] in float64; all but the last may be 0."""
    g = torch.Generator().manual_seed(seed)
    counts = torch.randint(0, 200, (classes,), generator=g).double()
    counts[-1] += 1
    logits = 2 * torch.randn(*shape, classes, generator=g, dtype=torch.float64)
    return logits, torch.randint(0, classes, shape, generator=g), counts


problems = st.builds(
    lambda seed, shape, classes: draw(seed, *shape, classes=classes),
    st.integers(0, 2**31),
    st.lists(st.integers(1, 4), max_size=3),
    st.integers(1, 8),
)
factors = st.floats(0, 3)


def gradient(loss, logits: Tensor, *args, **options) -> Tensor:
    logits = logits.detach().clone().requires_grad_()
    return torch.autograd.grad(loss(logits, *args, reduction="sum", **options), logits)[0]


def ratios(targets: Tensor, counts: Tensor) -> Tensor:
    """w_i = N_i / N_y, written sample by sample, as slowly as the definition reads."""
    rows = []
    for y in targets.reshape(-1).tolist():
        n = counts.clone()
        n[y] = max(n[y].item(), 1)
        rows.append(n / n[y])
    return torch.stack(rows).reshape(*targets.shape, -1)


@pytest.mark.parametrize(
    ("target", "expected"),
    [(0, [1, 0.1, 0.04, 0.0095, 0.032]), (3, [-15.2, 0.1, -0.15, 1, -0.12])],
)
def test_worked_example(target, expected):
    p = torch.tensor(WORKED_PROBS, dtype=torch.float64, requires_grad=True)
    q = calibrated_labels(p, torch.tensor(target), WORKED_COUNTS)
    torch.testing.assert_close(q, torch.tensor(expected, dtype=torch.float64))
    assert not q.requires_grad


@given(problems, factors, factors)
@settings(max_examples=150, deadline=None)
def test_gradient_is_that_of_soft_label_cross_entropy(problem, strength, power):
    logits, targets, counts = problem
    logits.requires_grad_()
    log_p = logits.log_softmax(-1)
    w = ratios(targets, counts) ** power
    p = log_p.exp().detach()
    hot = F.one_hot(targets, p.shape[-1])
    q = torch.where(hot == 1, 1.0, strength * (1 - w) * p)
    torch.testing.assert_close(calibrated_labels(p, targets, counts, strength=strength, power=power), q)
    expected = torch.autograd.grad(-(q * log_p).sum(), logits)[0]
    got = gradient(ga_loss, logits, targets, counts, strength=strength, power=power)
    torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(got.sum(-1), torch.zeros(targets.shape, dtype=torch.float64), rtol=0, atol=1e-9)
    # Written out: (p_k - 1{k=y}) + λ p_k (w_k - w̄).
    formula = p - hot + strength * p * (w - (w * p).sum(-1, keepdim=True))
    torch.testing.assert_close(got, formula, rtol=1e-8, atol=1e-8)


@given(problems)
@settings(max_examples=60, deadline=None)
def test_gradient_is_that_of_the_scalar_loss_by_finite_differences(problem):
    logits, targets, counts = problem
    w = ratios(targets, counts)

    def scalar(z: Tensor) -> Tensor:
        log_p = z.log_softmax(-1)
        return (-log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1) + (w * log_p.exp()).sum(-1)).sum()

    h = 1e-5
    got = gradient(ga_loss, logits, targets, counts).reshape(-1)
    for k in range(logits.numel()):
        step = torch.zeros(logits.numel(), dtype=torch.float64)
        step[k] = h
        step = step.reshape(logits.shape)
        difference = (scalar(logits + step) - scalar(logits - step)) / (2 * h)
        torch.testing.assert_close(got[k], difference, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
@given(problem=problems, count=st.integers(1, 10**6), power=factors)
@settings(max_examples=20, deadline=None)
def test_equal_counts_or_no_strength_is_cross_entropy(variant, problem, count, power):
    logits, targets, counts = problem
    flat = logits.reshape(-1, logits.shape[-1])
    expected = F.cross_entropy(flat, targets.reshape(-1))
    slope = gradient(F.cross_entropy, flat, targets.reshape(-1)).reshape(logits.shape)
    for n, strength in [(torch.full_like(counts, count), 1.0), (counts, 0.0)]:
        options = {"strength": strength, "power": power, "variant": variant}
        torch.testing.assert_close(ga_loss(logits, targets, n, **options), expected)
        torch.testing.assert_close(gradient(ga_loss, logits, targets, n, **options), slope)


@given(problems, st.floats(0.01, 100))
@settings(max_examples=20, deadline=None)
def test_only_ratios_of_counts_matter(problem, scale):
    logits, targets, counts = problem
    counts = counts + 1
    torch.testing.assert_close(ga_loss(logits, targets, counts * scale), ga_loss(logits, targets, counts))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_target_that_was_never_counted_stays_finite(variant):
    logits, targets, _ = draw(0, 20)
    for counts in (torch.zeros(1, 6), torch.tensor([0, 0, 0, 50, 10, 3])):
        assert gradient(ga_loss, logits, targets, counts, variant=variant).isfinite().all()
        assert ga_loss(logits, targets, counts, variant=variant).isfinite()
    once, never = torch.tensor([9, 1, 4, 0, 0, 0]), torch.tensor([9, 0, 4, 0, 0, 0])
    ones = torch.ones_like(targets)
    torch.testing.assert_close(ga_loss(logits, ones, never), ga_loss(logits, ones, once))
    torch.testing.assert_close(
        calibrated_labels(logits.softmax(-1), ones, never), calibrated_labels(logits.softmax(-1), ones, once)
    )


def test_a_missing_class_is_spared():
    """The pull on a missing class is zero with `aligned`; with `soft` it is damped, here to p_0 of cross-entropy's."""
    logits, targets, _ = draw(1, 50)
    counts = torch.tensor([0, 30, 30, 30, 30, 30])
    targets = targets.clamp(min=1)
    assert gradient(ga_loss, logits, targets, counts, variant="aligned")[:, 0].abs().max() < 1e-12
    soft, plain = gradient(ga_loss, logits, targets, counts)[:, 0], gradient(F.cross_entropy, logits, targets)[:, 0]
    p = logits.softmax(-1)
    torch.testing.assert_close(soft, plain * p[:, 0])  # w is 1 on all classes held, so 1 - w̄ = p_0


def test_study_variants():
    logits, targets, counts = draw(2, 40)
    p = logits.softmax(-1)
    q = calibrated_labels(p, targets, counts)
    assert (q < 0).any()
    torch.testing.assert_close(gradient(ga_loss, logits, targets, counts, variant="aligned"), p - q)
    torch.testing.assert_close(
        ga_loss(logits, targets, counts, variant="aligned"), ga_loss(logits, targets, counts, variant="soft")
    )
    cut = q.clamp(min=0)
    torch.testing.assert_close(
        gradient(ga_loss, logits, targets, counts, variant="clamped"), cut.sum(-1, keepdim=True) * p - cut
    )

    def through(z: Tensor) -> Tensor:
        w = ratios(targets, counts)
        return -(z.softmax(-1) * (1 - w) + F.one_hot(targets, 6)).mul(z.log_softmax(-1)).sum()

    torch.testing.assert_close(gradient(ga_loss, logits, targets, counts, variant="through"), grad(through)(logits))


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_reductions_and_leading_shapes(reduction):
    logits, targets, counts = draw(3, 2, 3, 4)
    each = torch.stack(
        [ga_loss(z, y, counts) for z, y in zip(logits.reshape(-1, 6), targets.reshape(-1), strict=True)]
    ).reshape(2, 3, 4)
    expected = {"none": each, "sum": each.sum(), "mean": each.mean()}[reduction]
    torch.testing.assert_close(ga_loss(logits, targets, counts, reduction=reduction), expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("variant", VARIANTS)
def test_dtypes(device, dtype, variant):
    logits, targets, counts = (x.to(device) for x in draw(4, 32))
    logits = logits.to(dtype)
    exact = logits.double()
    loss = ga_loss(logits, targets, counts, variant=variant)
    assert loss.dtype == dtype
    assert loss.device == logits.device
    assert calibrated_labels(logits.softmax(-1), targets, counts).dtype == dtype
    # Half-precision logits are exact in float64, and all the work is done in float32: only the result is rounded.
    torch.testing.assert_close(loss, ga_loss(exact, targets, counts, variant=variant).to(dtype))
    torch.testing.assert_close(
        gradient(ga_loss, logits, targets, counts, variant=variant),
        gradient(ga_loss, exact, targets, counts, variant=variant).to(dtype),
    )
    assert binary_ga_loss(logits[:, 0], targets > 2, (100, 10)).dtype == dtype


@pytest.mark.parametrize("device", DEVICES)
def test_autocast_keeps_the_loss_in_float32_as_cross_entropy_does(device):
    x, targets, counts = (t.to(device) for t in draw(5, 16))
    layer = torch.nn.Linear(6, 6, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        logits = layer(x.float())
        assert logits.dtype == torch.bfloat16
        loss = ga_loss(logits, targets, counts)
        assert loss.dtype == F.cross_entropy(logits, targets).dtype == torch.float32
        assert binary_ga_loss(logits[:, 0], targets > 2, (9, 7)).dtype == torch.float32
    loss.backward()
    assert layer.weight.grad.isfinite().all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_clients_stacked_vmapped_and_looped_agree(variant):
    clients = 5
    logits, targets, _ = draw(6, clients, 7)
    counts = torch.randint(0, 50, (clients, 6), generator=torch.Generator().manual_seed(6))
    strength = torch.linspace(0, 2, clients, dtype=torch.float64)

    def loss(z, y, n, s):
        return ga_loss(z, y, n, strength=s, variant=variant)

    looped = torch.stack([loss(*one) for one in zip(logits, targets, counts, strength, strict=True)])
    torch.testing.assert_close(vmap(loss)(logits, targets, counts, strength), looped)
    stacked = ga_loss(
        logits, targets, counts[:, None], strength=strength[:, None, None], variant=variant, reduction="none"
    )
    torch.testing.assert_close(stacked.mean(-1), looped)

    slopes = torch.stack([grad(loss)(*one) for one in zip(logits, targets, counts, strength, strict=True)])
    torch.testing.assert_close(vmap(grad(loss))(logits, targets, counts, strength), slopes)
    shared = vmap(loss, in_dims=(0, 0, None, None))(logits, targets, counts[0], 1.0)
    torch.testing.assert_close(shared[0], loss(logits[0], targets[0], counts[0], 1.0))


def test_vmap_of_counts_and_binary():
    _, targets, _ = draw(7, 4, 9)
    logits = torch.randn(4, 9, dtype=torch.float64)
    torch.testing.assert_close(vmap(lambda y: batch_class_counts(y, 6))(targets), batch_class_counts(targets, 6))
    counts = torch.tensor([[10, 2], [3, 9], [0, 5], [5, 0]])
    looped = torch.stack(
        [binary_ga_loss(z, y > 2, n) for z, y, n in zip(logits, targets, counts, strict=True)],
    )
    torch.testing.assert_close(vmap(binary_ga_loss)(logits, targets > 2, counts), looped)
    stacked = binary_ga_loss(logits, targets > 2, counts[:, None], reduction="none")
    torch.testing.assert_close(stacked.mean(-1), looped)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_compiled_in_one_graph(device, variant):
    torch.compiler.reset()  # each variant and dtype is a graph of its own, and only eight are kept
    logits, targets, counts = (x.to(device) for x in draw(8, 12))
    compiled = torch.compile(ga_loss, fullgraph=True, backend="aot_eager")
    for dtype in (torch.float64, torch.bfloat16):
        z = logits.to(dtype)
        torch.testing.assert_close(
            gradient(compiled, z, targets, counts, variant=variant),
            gradient(ga_loss, z, targets, counts, variant=variant),
        )
    criterion = GALoss(variant=variant)
    torch.testing.assert_close(
        torch.compile(criterion, fullgraph=True, backend="aot_eager")(logits, targets), criterion(logits, targets)
    )


def test_compiled_vmap_of_grad():
    """What an engine that trains many clients at once does."""
    logits, targets, _ = draw(9, 3, 5)
    counts = torch.tensor([[4, 0, 1, 7, 0, 2], [1, 1, 1, 1, 1, 1], [0, 90, 3, 0, 0, 4]])
    step = vmap(grad(ga_loss))
    torch.testing.assert_close(
        torch.compile(step, fullgraph=True, backend="aot_eager")(logits, targets, counts), step(logits, targets, counts)
    )


@given(problems, st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_batch_class_counts(problem, seed):
    _, targets, counts = problem
    targets = torch.atleast_1d(targets)
    got = batch_class_counts(targets, len(counts))
    expected = torch.stack(
        [torch.bincount(row, minlength=len(counts)) for row in targets.reshape(-1, targets.shape[-1])]
    )
    assert torch.equal(got.reshape(expected.shape), expected.float())
    mask = torch.rand(targets.shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    padded = torch.where(mask, targets, -1)
    assert torch.equal(batch_class_counts(targets, len(counts), mask), batch_class_counts(padded, len(counts)))
    assert torch.equal(batch_class_counts(targets, len(counts), mask.float()), batch_class_counts(padded, len(counts)))


class TestModule:
    def test_client_counts(self):
        logits, targets, counts = draw(10, 8)
        criterion = GALoss(counts, strength=0.5, power=0.7, reduction="sum", variant="clamped")
        expected = ga_loss(logits, targets, counts, strength=0.5, power=0.7, reduction="sum", variant="clamped")
        torch.testing.assert_close(criterion(logits, targets), expected)

    @pytest.mark.parametrize("shape", [(12,), (3, 4)])
    def test_batch_counts(self, shape):
        logits, targets, _ = draw(11, *shape)
        counts = batch_class_counts(targets.reshape(-1), 6)
        torch.testing.assert_close(GALoss()(logits, targets), ga_loss(logits, targets, counts))

    def test_counts_move_with_the_module_and_leave_no_client(self):
        criterion = GALoss([70_000.0, 0.0, 3.0]).half()
        assert criterion.class_counts.tolist() == [70_000, 0, 3]  # float16 would hold inf
        assert GALoss([70_000, 0, 3]).to("meta").class_counts.device.type == "meta"
        assert not criterion.state_dict()  # which a client sends, and a server averages
        assert not list(criterion.parameters())

    @pytest.mark.parametrize("counts", [{"a": 3}, "many", ["a", "b"], [True, False], [[1, 2], [3]]])
    def test_what_is_no_list_of_counts(self, counts):
        with pytest.raises(
            FedGAError, match=r"class_counts must be .*numbers (of samples|in the order of the classes)"
        ):
            GALoss(counts)

    @pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float16, torch.bfloat16])
    def test_counts_of_narrow_dtypes(self, dtype):
        assert GALoss(torch.tensor([3, 1], dtype=dtype)).class_counts.tolist() == [3, 1]

    @pytest.mark.parametrize("counts", [[10**30, 1, 1], [10**400, 1], [1e30, 1.0], [[10**30, 1]]])
    def test_counts_beyond_any_client(self, counts):
        with pytest.raises(FedGAError, match=r"at most 10\*\*18"):
            GALoss(counts)

    @pytest.mark.parametrize("counts", [[0, 0, 0], torch.zeros(3)])
    def test_a_client_without_samples_has_nothing_to_align(self, counts):
        logits, targets, _ = draw(16, 4, classes=3)
        with pytest.raises(FedGAError, match="all 0"):
            GALoss(counts)
        with pytest.raises(FedGAError, match="all 0"):
            ga_loss(logits, targets, counts)
        stacked = ga_loss(logits[None], targets[None], torch.zeros(1, 1, 3))  # as an engine's clients are
        torch.testing.assert_close(vmap(ga_loss)(logits[None], targets[None], torch.zeros(1, 3))[0], stacked)
        assert ga_loss(logits[:0], targets[:0], counts, reduction="sum") == 0
        assert GALoss(reduction="sum")(logits[:0], targets[:0]) == 0  # none were counted, for none are there

    def test_maps_belong_to_the_dense_loss(self):
        with pytest.raises(FedGAError, match="use DenseGALoss"):
            GALoss([1, 2, 3])(torch.zeros(2, 3, 4, 5), torch.zeros(2, 4, 5, dtype=torch.long))

    def test_arrays_are_refused(self):
        with pytest.raises(FedGAError, match=r"targets must be a tensor, not a ndarray: use torch.as_tensor"):
            GALoss([1, 2])(torch.zeros(2, 2), np.zeros(2, dtype=int))

    def test_the_callers_tensor_is_copied(self):
        counts = torch.tensor([1, 2])
        criterion = GALoss(counts)
        counts.zero_()
        assert criterion.class_counts.tolist() == [1, 2]

    def test_fractions_are_counts_too(self):
        logits, targets, _ = draw(12, 8, classes=3)
        torch.testing.assert_close(GALoss([0.5, 0.25, 0.25])(logits, targets), GALoss([2, 1, 1])(logits, targets))

    def test_repr_says_what_it_does(self):
        assert repr(GALoss()) == (
            "GALoss(class_counts=per batch, strength=1.0, reduction='mean', power=1.0, variant='soft')"
        )

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"class_counts": [3, -1]}, r"not negative, but is \[3, -1\]"),
            ({"class_counts": [3, float("nan")]}, "finite"),
            ({"class_counts": [[3, 1]]}, r"one number per class, but has shape \[1, 2\]"),
            ({"class_counts": []}, "one number per class"),
            ({"reduction": "avg"}, "unknown reduction 'avg'"),
            ({"variant": "alined"}, "did you mean 'aligned'"),
            ({"strength": -1}, "strength must be a number from 0 up, but is -1"),
            ({"strength": float("nan")}, "strength must be a number from 0 up"),
            ({"power": "x"}, "power must be a number from 0 up, but is 'x'"),
            ({"power": float("inf")}, "power must be a number from 0 up"),
        ],
    )
    def test_bad_arguments(self, arguments, message):
        with pytest.raises(FedGAError, match=message):
            GALoss(**arguments)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("wrong", "message"), [(6, ": subtract 1 if .* 1; to"), (-100, ": to")])
def test_a_target_that_is_no_class(wrong, message, variant):
    logits, targets, counts = draw(17, 3, 8)
    targets[1, 5] = wrong
    message = rf"holds {wrong}, but the classes are 0 to 5{message} leave.*DenseGALoss\(.*ignore_index={wrong}"
    calls = (
        lambda: ga_loss(logits, targets, counts, variant=variant),
        lambda: GALoss(variant=variant)(logits, targets),
        lambda: vmap(lambda z, y: ga_loss(z, y, counts, variant=variant))(logits, targets),
        lambda: calibrated_labels(logits.softmax(-1), targets, counts),
    )
    for call in calls:
        with pytest.raises(FedGAError, match=message):
            call()
    flat, labels = logits.reshape(-1, 6), targets.reshape(-1)
    kept = labels != wrong
    left_out = DenseGALoss(counts, ignore_index=wrong)(flat, labels)  # what the sentence advises
    torch.testing.assert_close(left_out, ga_loss(flat[kept], labels[kept], counts))


@pytest.mark.parametrize(
    "loss",
    [
        lambda **factor: ga_loss(torch.zeros(4, 3), torch.zeros(4).long(), [1, 2, 3], **factor),
        lambda **factor: calibrated_labels(torch.ones(4, 3) / 3, torch.zeros(4).long(), [1, 2, 3], **factor),
        lambda **factor: binary_ga_loss(torch.zeros(4), torch.zeros(4), (1, 2), **factor),
    ],
)
def test_a_factor_below_zero(loss):
    with pytest.raises(FedGAError, match="strength must be a number from 0 up"):
        loss(strength=-1.0)


@pytest.mark.parametrize(
    ("logits", "targets", "counts", "message"),
    [
        (torch.zeros(4, 3), torch.zeros(4).long(), [1, 2], r"one entry per class, but is \[2\] and logits \[4, 3\]"),
        (torch.zeros(4, 3), torch.zeros(4).long(), torch.tensor(2), "one entry per class"),
        (torch.zeros(4, 3), torch.zeros(5).long(), [1, 2, 3], r"targets must be \[4\].*but is \[5\]"),
        (torch.zeros(4, 3), torch.zeros(4, 1).long(), [1, 2, 3], r"but is \[4, 1\]"),
        (torch.zeros(4, 3), torch.zeros(4), [1, 2, 3], "class indices"),
        (torch.zeros(4, 3), torch.zeros(4, 3), [1, 2, 3], "class indices"),
        (torch.zeros(4, 3), torch.zeros(4).bool(), [1, 2, 3], "class indices"),
        (torch.zeros(4, 3).long(), torch.zeros(4).long(), [1, 2, 3], "floating point"),
        (torch.tensor(0.0), torch.tensor(0), [1], "floating point"),
        (torch.zeros(2, 4, 3), torch.zeros(2, 4).long(), torch.ones(2, 3), "do not broadcast"),
        (torch.zeros(4, 3), torch.zeros(4).long(), torch.ones(1, 4, 3), "do not broadcast"),
    ],
)
def test_shapes_and_dtypes_are_checked(logits, targets, counts, message):
    with pytest.raises(FedGAError, match=message):
        ga_loss(logits, targets, counts)
    with pytest.raises(FedGAError, match=message.replace("logits", "probs")):
        calibrated_labels(logits, targets, counts)


def test_unknown_options_are_named():
    logits, targets, counts = draw(13, 4)
    with pytest.raises(FedGAError, match="unknown reduction 'average'"):
        ga_loss(logits, targets, counts, reduction="average")
    with pytest.raises(FedGAError, match="did you mean 'clamped'"):
        ga_loss(logits, targets, counts, variant="clamp")


class TestBinary:
    @given(st.integers(0, 2**31), st.integers(0, 1000), st.integers(0, 1000), factors)
    @settings(max_examples=40, deadline=None)
    def test_gradient_is_p_minus_q(self, seed, n_0, n_1, strength):
        z, targets, _ = draw(seed, 20, classes=2)
        z, y = 3 * z[:, 0], targets.double()
        p = z.sigmoid()
        q = torch.where(y == 1, 1.0, strength * (n_0 - n_1 if n_0 else 1 - n_1) / max(n_0, 1) * p)
        torch.testing.assert_close(gradient(binary_ga_loss, z, y, (n_0, n_1), strength=strength), p - q)
        value = binary_ga_loss(z, y, (n_0, n_1), strength=strength)
        torch.testing.assert_close(value, (-q * p.log() - (1 - q) * (1 - p).log()).mean(), rtol=1e-6, atol=1e-6)

    def test_it_is_the_two_class_labels_seen_from_class_one(self):
        z, targets, _ = draw(14, 30, classes=2)
        z[:, 0] = 0
        q = calibrated_labels(z.softmax(-1), targets, (40, 7))[:, 1]
        p = z[:, 1].sigmoid()
        torch.testing.assert_close(gradient(binary_ga_loss, z[:, 1], targets, (40, 7)), p - q)

    def test_equal_counts_or_no_strength_is_binary_cross_entropy(self):
        z, targets, _ = draw(15, 30, classes=2)
        expected = F.binary_cross_entropy_with_logits(z[:, 0], targets.double())
        torch.testing.assert_close(binary_ga_loss(z[:, 0], targets, (7, 7)), expected)
        torch.testing.assert_close(binary_ga_loss(z[:, 0], targets, (700, 7), strength=0.0), expected)

    @given(st.integers(0, 2**31), st.integers(0, 1000), st.integers(0, 1000), st.floats(0, 1))
    @settings(max_examples=40, deadline=None)
    def test_a_soft_label_is_part_positive_part_negative(self, seed, n_0, n_1, t):
        z, _, _ = draw(seed, 20, classes=1)
        z = z[:, 0]

        def at(label: float) -> tuple[Tensor, Tensor]:
            given = z, torch.full_like(z, label), (n_0, n_1)
            return binary_ga_loss(*given, reduction="none"), gradient(binary_ga_loss, *given)

        for soft, positive, negative in zip(at(t), at(1.0), at(0.0), strict=True):
            torch.testing.assert_close(soft, t * positive + (1 - t) * negative)

    @pytest.mark.parametrize("wrong", [-1.0, 2.0, float("nan")])
    def test_what_is_no_label(self, wrong):
        with pytest.raises(FedGAError, match=rf"from 0 to 1, but are from .*{wrong:g}"):
            binary_ga_loss(torch.zeros(2), torch.tensor([1.0, wrong]), (1, 2))

    def test_arrays_are_refused(self):
        with pytest.raises(FedGAError, match="targets must be a tensor"):
            binary_ga_loss(torch.zeros(2), np.zeros(2), (1, 2))

    def test_stable_at_extreme_logits(self):
        z = torch.tensor([-1e4, 1e4, -1e4, 1e4], requires_grad=True)
        loss = binary_ga_loss(z, torch.tensor([0, 0, 1, 1]), (10, 100), reduction="none")
        loss.sum().backward()
        assert loss.isfinite().all()
        torch.testing.assert_close(z.grad, torch.tensor([0.0, 10.0, -1.0, 0.0]))

    @pytest.mark.parametrize(
        ("logits", "targets", "counts"),
        [
            (torch.zeros(3), torch.zeros(4), (1, 2)),
            (torch.zeros(3).long(), torch.zeros(3), (1, 2)),
            (torch.zeros(3), torch.zeros(3), (1, 2, 3)),
            (torch.zeros(3), torch.zeros(3), torch.ones(2, 2)),
        ],
    )
    def test_bad_shapes(self, logits, targets, counts):
        with pytest.raises(FedGAError):
            binary_ga_loss(logits, targets, counts)


def descend(loss, x: Tensor, outputs: int, *, rate: float, steps: int = 20_000) -> Tensor:
    """Logits of a linear model with bias once full-batch gradient descent stands still."""
    x = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
    weight = torch.zeros(x.shape[1], outputs, dtype=x.dtype, requires_grad=True)
    for _ in range(steps):
        (slope,) = torch.autograd.grad(loss(x @ weight), weight)
        if slope.abs().max() < 1e-10:
            return (x @ weight).detach()
        with torch.no_grad():
            weight -= rate * slope
    raise AssertionError(f"no stationary point after {steps} steps: {slope.abs().max():.1e}")


class TestStationaryPoints:
    """Where the gradient vanishes, error asymmetry is what the paper's Eqs. (3) and (6) say."""

    def test_binary(self):
        g = torch.Generator().manual_seed(0)
        n_0, n_1 = 1000, 100
        y = torch.cat([torch.zeros(n_0), torch.ones(n_1)]).double()
        x = torch.randn(n_0 + n_1, 2, generator=g, dtype=torch.float64) + y[:, None]  # the classes overlap
        plain = descend(lambda z: F.binary_cross_entropy_with_logits(z[:, 0], y), x, 1, rate=4.0)[:, 0].sigmoid()
        aligned = descend(lambda z: binary_ga_loss(z[:, 0], y, (n_0, n_1)), x, 1, rate=10.0)[:, 0].sigmoid()
        assert binary_error_asymmetry(plain, y).item() == pytest.approx(n_0 / n_1, rel=1e-6)
        assert (n_1 / n_0 * binary_error_asymmetry(plain, y)).item() == pytest.approx(1, rel=1e-6)  # cumulative
        assert binary_error_asymmetry(aligned, y).item() == pytest.approx(1, rel=1e-6)

    def test_multi_class(self):
        g = torch.Generator().manual_seed(0)
        counts = torch.tensor([300, 100, 40, 20])
        y = torch.repeat_interleave(torch.arange(4), counts)
        centre = torch.tensor([[1.0, 0], [0, 1], [-1, 0], [0, -1]], dtype=torch.float64)
        x = centre[y] + torch.randn(len(y), 2, generator=g, dtype=torch.float64)

        def asymmetry(loss, rate: float) -> Tensor:
            return error_asymmetry(descend(loss, x, 4, rate=rate).softmax(-1), y)

        plain = asymmetry(lambda z: F.cross_entropy(z, y), 1.0)
        for i in range(4):
            others = counts[torch.arange(4) != i] / counts[i]
            assert others.min() <= plain[i] <= others.max()
        aligned = asymmetry(lambda z: ga_loss(z, y, counts, variant="aligned"), 0.5)
        torch.testing.assert_close(aligned, torch.ones(4, dtype=torch.float64), rtol=1e-6, atol=1e-6)
        soft = asymmetry(lambda z: ga_loss(z, y, counts), 0.5)
        assert 1 <= ratio_of(soft) < ratio_of(plain)


@pytest.mark.parametrize("criterion", [GALoss([3, 1]), DenseGALoss([3, 1]), MultilabelGALoss([[3, 1], [2, 2]])])
def test_counts_move_with_the_module_and_are_nobody_elses(criterion: torch.nn.Module) -> None:
    """They are no buffers: DistributedDataParallel gives every process those of the first."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), criterion)
    assert not list(model.buffers())
    assert set(model.state_dict()) == {"0.weight", "0.bias"}
    counts = criterion.class_counts.clone()
    assert copy.deepcopy(model).to("meta")[1].class_counts.is_meta
    assert torch.equal(criterion.class_counts, counts)


def _loss_of_one_process(rank: int, folder: str) -> None:
    torch.distributed.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=2)
    counts = [[90, 10], [1, 99]][rank]

    class Trained(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.criterion = torch.nn.BatchNorm1d(2), GALoss(counts)

        def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
            return self.criterion(self.layer(inputs), targets)

    model = torch.nn.parallel.DistributedDataParallel(Trained())
    for _ in range(2):  # buffers are handed out before every pass
        model(torch.randn(4, 2), torch.tensor([0, 1, 0, 1])).backward()
    torch.save(model.module.criterion.class_counts, f"{folder}/{rank}")
    torch.distributed.destroy_process_group()


@pytest.mark.long
def test_every_process_keeps_its_own_counts(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_loss_of_one_process, (str(tmp_path),), nprocs=2)
    assert [torch.load(tmp_path / name).tolist() for name in "01"] == [[90, 10], [1, 99]]
