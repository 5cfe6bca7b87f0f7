"""The torchmetrics give what the functions give, however the samples come: in batches, merged, or over processes."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedga.errors import FedGAError
from fedga.measures.asymmetry import class_accuracy, ea_ratio, error_asymmetry, forgetting

pytest.importorskip("torchmetrics")
import torch.multiprocessing as mp
from torchmetrics import ClasswiseWrapper, MetricCollection
from torchmetrics.classification import MulticlassAccuracy

import fedga.measures.torchmetrics
from fedga.measures.torchmetrics import ClassForgetting, EARatio, ErrorAsymmetry

CLASSES = 5
COUNTS = [40, 0, 7, 90, 1]
NAN = math.nan


def draw(seed: int, samples: int = 60, classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    """Probabilities [samples, classes] in float64 and targets [samples], often without some of the classes."""
    g = torch.Generator().manual_seed(seed)
    probs = (3 * torch.randn(samples, classes, generator=g, dtype=torch.float64)).softmax(-1)
    held = torch.randint(0, classes, (classes,), generator=g)
    return probs, held[torch.randint(0, classes, (samples,), generator=g)]


def pieces(seed: int, samples: int) -> list[slice]:
    g = torch.Generator().manual_seed(seed)
    cuts = sorted({0, samples, *torch.randint(0, samples + 1, (4,), generator=g).tolist()})
    return [slice(start, end) for start, end in pairwise(cuts)]


def same(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got.double(), expected.double(), equal_nan=True, rtol=1e-6, atol=1e-6)


@pytest.fixture(autouse=True)
def _figures_are_closed() -> Iterator[None]:
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@given(st.integers(0, 2**31), st.integers(1, 60))
@settings(max_examples=50, deadline=None)
def test_batches_give_what_the_functions_give_for_all_samples(seed, samples):
    probs, targets = draw(seed, samples)
    metrics = ErrorAsymmetry(CLASSES), EARatio(CLASSES)
    for piece in pieces(seed, samples):
        for metric in metrics:
            metric.update(probs[piece], targets[piece])
    same(metrics[0].compute(), error_asymmetry(probs, targets))
    same(metrics[1].compute(), ea_ratio(probs, targets))
    for metric in metrics:
        metric.reset()
        metric.update(probs[:1], targets[:1])
    same(metrics[0].compute(), error_asymmetry(probs[:1], targets[:1]))


@given(st.integers(0, 2**31), st.integers(1, 60), st.booleans())
@settings(max_examples=50, deadline=None)
def test_forgetting_is_that_of_all_samples(seed, samples, in_turn):
    before, targets = draw(seed, samples)
    after, _ = draw(seed + 1, samples)
    metric = ClassForgetting(COUNTS)
    parts = pieces(seed, samples)
    if in_turn:
        for piece in parts:
            metric.update(before=before[piece], target=targets[piece])
        for piece in reversed(parts):
            metric.update(after=after[piece].argmax(1), target=targets[piece])
    else:
        for piece in parts:
            metric.update(before[piece], after[piece], targets[piece])
    accuracies = [class_accuracy(probs.argmax(1), targets, CLASSES) for probs in (before, after)]
    expected = forgetting(*accuracies, torch.tensor(COUNTS))
    got = metric.compute()
    for name in ("per_class", "frequent", "rare", "missing"):
        same(got[name], getattr(expected, name))


def test_probabilities_a_little_above_one_miss_nothing():
    probs, targets = torch.tensor([[1.005, 0.0], [0.5, 0.5]]), torch.tensor([0, 1])
    assert ErrorAsymmetry(2)(probs, targets).tolist() == [0, math.inf]
    assert EARatio(2)(probs, targets) == math.inf


@pytest.mark.parametrize("given", [Tensor.tolist, Tensor.numpy, lambda x: x.flip(0).numpy()[::-1]])
def test_arrays_and_lists_are_what_tensors_are(given):
    probs, targets = draw(0)
    before = probs.argmax(1)
    for metric, batch in (
        (ErrorAsymmetry(CLASSES), (probs, targets)),
        (EARatio(CLASSES), (probs, targets)),
        (ClassForgetting(COUNTS), (before, probs.flip(1), targets)),
    ):
        expected, got = metric(*batch), metric(*map(given, batch))
        torch.testing.assert_close(got, expected, equal_nan=True, rtol=0, atol=0)


def test_logits_are_told_not_guessed():
    probs, targets = draw(0)
    metric = ErrorAsymmetry(CLASSES, from_logits=True)
    same(metric(probs.log() + 3, targets), error_asymmetry(probs, targets))
    same(metric(probs, targets), error_asymmetry(probs.softmax(-1), targets))  # they lie between 0 and 1, and yet


@pytest.mark.parametrize("ignore_index", [255, -1, 2])
def test_maps_and_ignored_pixels(ignore_index):
    probs, targets = draw(1, 120)
    maps = probs.reshape(2, 6, 10, CLASSES).movedim(-1, 1)
    labels = targets.reshape(2, 6, 10).clone()
    if ignore_index != 2:
        labels[:, 1:4] = ignore_index
    kept = labels.reshape(-1) != ignore_index
    metric = ErrorAsymmetry(CLASSES, ignore_index=ignore_index)
    same(metric(maps, labels), error_asymmetry(probs[kept], targets[kept]))
    maps = torch.where((labels == ignore_index).unsqueeze(1), NAN, maps)
    same(metric(maps, labels), error_asymmetry(probs[kept], targets[kept]))
    lost = ClassForgetting(COUNTS, ignore_index=ignore_index)(maps, maps.flip(1), labels)["per_class"]
    labels, predicted = targets[kept], probs[kept].argmax(1)
    same(lost, class_accuracy(predicted, labels, CLASSES) - class_accuracy(4 - predicted, labels, CLASSES))


def test_forward_gives_the_batch_and_keeps_the_whole():
    probs, targets = draw(2)
    metric = EARatio(CLASSES)
    same(metric(probs[:20], targets[:20]), ea_ratio(probs[:20], targets[:20]))
    same(metric(probs[20:], targets[20:]), ea_ratio(probs[20:], targets[20:]))
    same(metric.compute(), ea_ratio(probs, targets))


def test_merged_saved_pickled_and_cloned():
    probs, targets = draw(3)
    half = ErrorAsymmetry(CLASSES), ErrorAsymmetry(CLASSES)
    half[0].update(probs[:25], targets[:25])
    half[1].update(probs[25:], targets[25:])
    half[0].merge_state(half[1])
    expected = error_asymmetry(probs, targets)
    same(half[0].compute(), expected)
    same(pickle.loads(pickle.dumps(half[0])).compute(), expected)
    same(half[0].clone().compute(), expected)
    half[0].persistent(True)
    restored = ErrorAsymmetry(CLASSES)
    restored.persistent(True)
    restored.load_state_dict(half[0].state_dict())
    restored.update(probs[:0], targets[:0])
    same(restored.compute(), expected)
    lost = ClassForgetting(COUNTS)
    lost.update(probs, probs.flip(1), targets)
    assert torch.equal(pickle.loads(pickle.dumps(lost)).class_counts, torch.tensor(COUNTS))


def test_a_collection_updates_the_shared_sums_once():
    probs, targets = draw(4)
    metrics = MetricCollection([ErrorAsymmetry(CLASSES), EARatio(CLASSES), MulticlassAccuracy(CLASSES)])
    for piece in pieces(4, 60):
        metrics.update(probs[piece], targets[piece])
    got = metrics.compute()
    same(got["ErrorAsymmetry"], error_asymmetry(probs, targets))
    same(got["EARatio"], ea_ratio(probs, targets))
    assert sorted(map(sorted, metrics.compute_groups.values())) == [
        ["EARatio", "ErrorAsymmetry"],
        ["MulticlassAccuracy"],
    ]
    named = ClasswiseWrapper(ErrorAsymmetry(CLASSES), labels=list("abcde"), prefix="ea_")
    same(named(probs, targets)["ea_c"], error_asymmetry(probs, targets)[2])


def test_moving_and_casting_leave_the_sums_exact(monkeypatch):
    model = torch.nn.ModuleList([torch.nn.Linear(1, 1), ErrorAsymmetry(CLASSES)])
    for cast in (torch.bfloat16, torch.float16, torch.float32):
        assert model.to(cast)[1].prediction_sums.dtype == torch.float64
        assert model[0].weight.dtype == cast
    assert model.half()[1].prediction_sums.dtype == torch.float64
    assert model.to("meta", torch.float16)[1].prediction_sums.device.type == "meta"
    assert ErrorAsymmetry(CLASSES).set_dtype(torch.float32).prediction_sums.dtype == torch.float32
    monkeypatch.setattr(fedga.measures.torchmetrics, "NO_FLOAT64", {"meta"})
    moved = ErrorAsymmetry(CLASSES).to("meta")
    assert moved.prediction_sums.dtype == torch.float32
    assert moved.samples.dtype == torch.int64


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_is_added_up_in_float64(dtype):
    """5,000 samples of a class: a sum in half precision would stop growing at 2,048 or 256."""
    probs, targets = draw(5, 5000, 2)
    metric = ErrorAsymmetry(2)
    for piece in range(0, 5000, 100):
        metric.update(probs[piece : piece + 100].to(dtype), targets[piece : piece + 100])
    same(metric.compute(), error_asymmetry(probs.to(dtype).double(), targets))


def test_gradients_are_not_kept():
    probs, targets = draw(6)
    metric = EARatio(CLASSES)
    metric.update(probs.requires_grad_(), targets)
    assert not metric.prediction_sums.requires_grad


class TestPlots:
    def test_a_bar_for_every_class_from_one(self):
        metric = ErrorAsymmetry(4, class_names=["cat", "dog", "emu", "fox"])
        figure, axes = metric.plot(torch.tensor([0.5, 4.0, NAN, math.inf]))
        assert figure is axes.figure
        assert axes.get_yscale() == "log"
        assert [bar.get_y() for bar in axes.patches] == [1] * 4
        tops = [bar.get_y() + bar.get_height() for bar in axes.patches]
        assert tops[:3] == [0.5, 4.0, 1.0]
        assert tops[3] == axes.get_ylim()[1]
        assert [label.get_text() for label in axes.get_xticklabels()] == ["cat", "dog", "emu", "fox"]
        assert [text.get_text() for text in axes.texts] == ["0.5", "4", "no EA", "∞"]

    def test_the_computed_value_is_drawn_into_the_given_axes(self):
        from matplotlib.figure import Figure

        probs, targets = draw(7)
        metric = ErrorAsymmetry(CLASSES)
        metric.update(probs, targets)
        axes = Figure().subplots()
        assert metric.plot(ax=axes) == (axes.figure, axes)
        heights = [bar.get_height() + 1 for bar in axes.patches]
        same(torch.tensor(heights), error_asymmetry(probs, targets).nan_to_num(1))

    def test_many_values_are_lines_over_steps(self):
        probs, targets = draw(8)
        metric, ratio, lost = ErrorAsymmetry(CLASSES), EARatio(CLASSES), ClassForgetting(COUNTS)
        assert len(metric.plot([metric(probs, targets)] * 3)[1].lines) == CLASSES
        assert len(ratio.plot([ratio(probs, targets)] * 3)[1].lines) == 1
        assert len(ratio.plot()[1].lines) == 1
        assert len(lost.plot([lost(probs, probs.flip(1), targets)] * 3)[1].lines) == 3

    def test_forgetting_goes_from_the_most_samples_to_none(self):
        metric = ClassForgetting([5, 0, 90], class_names=["a", "b", "c"])
        targets = torch.tensor([0, 0, 1, 1, 2, 2])
        metric.update(torch.tensor([0, 0, 1, 1, 2, 0]), torch.tensor([0, 1, 0, 0, 2, 2]), targets)
        _, axes = metric.plot()
        assert [label.get_text() for label in axes.get_xticklabels()] == ["c\n90", "a\n5", "b\n0"]
        assert [bar.get_height() for bar in axes.patches] == [-50, 50, 100]
        assert {"frequent: -50.0", "rare: 50.0", "missing: 100.0"} <= {text.get_text() for text in axes.texts}

    def test_a_hundred_classes_are_drawn_without_words_on_them(self):
        _, axes = ErrorAsymmetry(100).plot(torch.linspace(0.1, 10, 100))
        assert len(axes.patches) == 100
        assert not axes.texts
        assert len(axes.get_xticklabels()) <= 50


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ErrorAsymmetry(2).update(torch.tensor([[3.0, -1.0]]), torch.tensor([0])), "from_logits=True"),
        (lambda: ErrorAsymmetry(2).update(torch.tensor([[0.9, 0.9]]), torch.tensor([0])), r"sum to 1.*\[0.9, 0.9\]"),
        (lambda: ErrorAsymmetry(2).update(torch.tensor([[NAN, 1.0]]), torch.tensor([0])), "probabilities"),
        (lambda: ErrorAsymmetry(2).update(torch.eye(2), torch.tensor([0, 7])), "holds 7.*0 to 1.*ignore_index=7"),
        (lambda: ErrorAsymmetry(2).update(torch.eye(2), torch.tensor([0.0, 1])), "class indices"),
        (lambda: ErrorAsymmetry(3).update(torch.eye(2), torch.tensor([0, 1])), r"\[N, 3, ...\]"),
        (lambda: ErrorAsymmetry(2).update(torch.eye(2), torch.tensor([0])), r"target must be \[2\]"),
        (lambda: ErrorAsymmetry(3).update(torch.eye(3), torch.tensor([1, 2, 3])), "holds 3.*count from 0.*subtract 1$"),
        (lambda: ClassForgetting([4, 2]).update(torch.eye(2), None, torch.tensor([1, 2])), "holds 2.*subtract 1$"),
        (lambda: ErrorAsymmetry(3).update(torch.eye(3), torch.tensor([0, 1, 3])), "to 2: pass ignore_index=3"),
        (lambda: ErrorAsymmetry(3).update(torch.eye(3), torch.tensor([1, 3, 4])), "to 2: pass ignore_index=3"),
        (lambda: ErrorAsymmetry(2).update([["a", "b"]], [0]), "preds must be a tensor, or an array or list of numbers"),
        (lambda: ErrorAsymmetry(2).update([[1.0], [0.5, 0.5]], [0, 1]), "preds must be a tensor.*not a list"),
        (lambda: ErrorAsymmetry(2).update(torch.eye(2), {0: 1}), "target must be a tensor.*not a dict"),
        (lambda: ClassForgetting([1, 2]).update("ab", target=[0, 1]), "before must be a tensor.*not a str"),
        (lambda: ErrorAsymmetry(0), "^num_classes must be a whole number of at least 1, not 0$"),
        (lambda: EARatio(3.0), "^num_classes must be a whole number of at least 1, not 3.0$"),
        (lambda: EARatio(True), "^num_classes must be a whole number of at least 1, not True$"),
        (lambda: ErrorAsymmetry("3"), "^num_classes must be a whole number of at least 1, not '3'$"),
        (lambda: ClassForgetting([]), "one number per class"),
        (lambda: ClassForgetting(3.0), "one number per class"),
        (lambda: ErrorAsymmetry(2, class_names=["a"]), "1 names, but there are 2 classes"),
        (lambda: ClassForgetting([[1, 2]]), "one number per class"),
        (lambda: ClassForgetting([1, 2]).update(target=torch.tensor([0])), "before or after"),
        (lambda: ClassForgetting([1, 2]).update(torch.eye(3), torch.eye(3), torch.zeros(3).long()), r"\[N, 2, ...\]"),
    ],
)
def test_errors(call, message):
    with pytest.raises(FedGAError, match=message):
        call()


def test_forgetting_on_different_samples_is_refused():
    metric = ClassForgetting([1, 2])
    metric.update(before=torch.eye(2), target=torch.tensor([0, 1]))
    assert metric.compute()["per_class"].isnan().all()
    metric.update(after=torch.eye(2), target=torch.tensor([0, 0]))
    with pytest.raises(FedGAError, match=r"same samples.*\[1, 1\].*\[2, 0\]"):
        metric.compute()


def _one_process(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=2)
    probs, targets = draw(9)
    first = (targets != targets[0]) & (torch.arange(60) < 30)  # this process lacks a class that the other has
    mine = first if rank == 0 else ~first
    metrics = ErrorAsymmetry(CLASSES), EARatio(CLASSES), ClassForgetting(COUNTS)
    for piece in mine.nonzero().reshape(-1).split(4 if rank == 0 else 20):  # unequal batches, and not as many
        metrics[0].update(probs[piece], targets[piece])
        metrics[1].update(probs[piece], targets[piece])
        metrics[2].update(probs[piece], probs[piece].flip(1), targets[piece])
    ea, ratio, lost = (metric.compute() for metric in metrics)
    torch.save((ea, ratio, lost), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def test_two_processes_reduce_to_what_one_gives(tmp_path):
    mp.spawn(_one_process, (str(tmp_path),), nprocs=2)
    probs, targets = draw(9)
    lost = ClassForgetting(COUNTS)(probs, probs.flip(1), targets)
    for rank in range(2):
        ea, ratio, lost_there = torch.load(tmp_path / f"{rank}.pt")
        same(ea, error_asymmetry(probs, targets))
        same(ratio, ea_ratio(probs, targets))
        for name, value in lost.items():
            same(lost_there[name], value)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning", "ignore:.*num_workers:UserWarning")  # Lightning's own
def test_under_lightning(tmp_path):
    lightning = pytest.importorskip("lightning")

    class Net(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(CLASSES, CLASSES)
            self.ratio = EARatio(CLASSES, from_logits=True)
            self.each = ClasswiseWrapper(ErrorAsymmetry(CLASSES, from_logits=True), prefix="ea_")

        def training_step(self, batch: list[Tensor]) -> Tensor:
            logits = self.layer(batch[0])
            self.ratio(logits, batch[1])
            self.log("ratio", self.ratio, on_step=False, on_epoch=True)
            self.each.update(logits, batch[1])
            return torch.nn.functional.cross_entropy(logits, batch[1])

        def on_train_epoch_end(self) -> None:
            self.log_dict(self.each.compute())
            self.each.reset()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.0)

    probs, targets = draw(10)
    inputs = probs.float()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, targets), batch_size=16)
    net = Net()
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(net, loader)
    expected = net.layer(inputs).softmax(-1).detach()
    same(trainer.callback_metrics["ratio"], ea_ratio(expected, targets))
    same(trainer.callback_metrics["ea_3"], error_asymmetry(expected, targets)[3])


def test_without_torchmetrics_one_sentence_says_what_to_install():
    code = (
        "import sys; sys.modules['torchmetrics'] = None\n"
        "import fedga\n"
        "from fedga import *\n"
        "try: fedga.EARatio\n"
        "except fedga.FedGAError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("not installed: pip install 'fedga[metrics]'")
