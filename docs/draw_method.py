"""Draws the pictures of docs/method.md with the package's own functions: `python docs/draw_method.py [FOLDER]`.

Every number in them is computed here: by autograd, by a classifier trained to its stationary point on scikit-learn's
digits, and by a federated run on the same digits. The same call draws the same bytes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedga import calibrated_labels, error_asymmetry, ga_loss, simulate
from fedga.data import load_dataset, make_federation
from fedga.drawing.canvas import PanelSize, compose
from fedga.drawing.style import GAINED, GRID, LOST, MUTED, SMALL, TEXT, algorithm_color, drawing, save, shade
from fedga.measures.asymmetry import errors_from_means, mean_predictions
from fedga.report.figures.clients import before_after_algorithms

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COUNTS = (100, 0, 20, 5, 20)  # samples of each class at the client of the page
PREDICTION = (0.8, 0.1, 0.05, 0.01, 0.04)
PLAIN, ALIGNED = algorithm_color("fedavg"), algorithm_color("fedga")
Loss = Callable[[Tensor, Tensor], Tensor]


def sample_losses(logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Loss of each sample, [samples], under plain cross-entropy and under gradient alignment."""
    return {
        "cross-entropy": F.cross_entropy(logits, targets, reduction="none"),
        "gradient alignment": ga_loss(logits, targets, COUNTS, reduction="none"),
    }


def logit_steps(logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Where a step of descent moves the logits of each sample, [samples, classes]: minus the gradient."""
    logits = logits.detach().requires_grad_()
    return {
        name: -torch.autograd.grad(loss.sum(), logits, retain_graph=True)[0]
        for name, loss in sample_losses(logits, targets).items()
    }


def pushes() -> dict[str, tuple[Tensor, Tensor]]:
    """All samples of the client on each class's logit, (by its own samples, by the others'), at equal predictions."""
    targets = torch.arange(len(COUNTS)).repeat_interleave(torch.tensor(COUNTS))
    own = F.one_hot(targets, len(COUNTS)).bool()
    steps = logit_steps(torch.zeros(len(targets), len(COUNTS), dtype=torch.float64), targets)
    return {
        name: (step.masked_fill(~own, 0.0).sum(0), step.masked_fill(own, 0.0).sum(0)) for name, step in steps.items()
    }


def draw_pushes() -> Figure:
    classes = np.arange(len(COUNTS))
    with drawing():
        figure, axes = compose(
            1,
            2,
            PanelSize(3.7, 2.6, left=0.75, bottom=0.62),
            title="Who pushes a logit up, and who pushes it down",
            caption="The sum of a client's gradients on each logit while the model still predicts every class alike. "
            "Nobody pulls up the class that the client lacks.",
        )
        for at, (name, (own, others)) in zip(axes, pushes().items(), strict=True):
            at.bar(classes - 0.28, own.numpy(), 0.26, color=GAINED, label="its own samples")
            at.bar(classes, others.numpy(), 0.26, color=LOST, label="the other classes' samples")
            _numbered_bars(at, classes + 0.28, own + others, 0.26, TEXT, "together", "{:+.0f}")
            at.axhline(0, color=MUTED, linewidth=0.8)
            at.set_title(name)
            at.set_ylim(-65, 95)
            _name_classes(at)
        axes[0].set_ylabel("push on the logit")
        axes[0].legend(fontsize=SMALL, loc="upper right", borderaxespad=0)
    return figure


def worked_example() -> dict[int, tuple[Tensor, dict[str, Tensor]]]:
    """Of a frequent and of a rare sample with the same prediction: calibrated labels and steps of the logits."""
    prediction = torch.tensor(PREDICTION, dtype=torch.float64)
    found = {}
    for target in (0, 3):
        steps = logit_steps(prediction.log()[None], torch.tensor([target]))
        labels = calibrated_labels(prediction, torch.tensor(target), COUNTS)
        found[target] = (labels, {name: step[0] for name, step in steps.items()})
    return found


def draw_labels() -> Figure:
    classes = np.arange(len(COUNTS))
    with drawing():
        figure, axes = compose(
            2,
            2,
            PanelSize(3.8, 1.9, left=0.75, bottom=0.55, top=0.34),
            title="The same prediction on a frequent and on a rare sample",
            caption="Axes are linear up to ±0.1 and logarithmic beyond. A step moves the logits against the gradient.",
        )
        for column, (target, (labels, steps)) in enumerate(worked_example().items()):
            above, below = axes[column], axes[2 + column]
            above.bar(classes - 0.2, PREDICTION, 0.38, color=GRID, label="prediction p")
            _numbered_bars(above, classes + 0.2, labels, 0.38, ALIGNED, "calibrated label q", "{:.4g}")
            kind = "frequent" if target == 0 else "rare"
            above.set_title(f"{kind}: a sample of class {target}, N = {COUNTS[target]}")
            (plain, plain_step), (aligned, aligned_step) = steps.items()
            below.bar(classes - 0.2, plain_step.numpy(), 0.38, color=PLAIN, label=plain)
            _numbered_bars(below, classes + 0.2, aligned_step, 0.38, ALIGNED, aligned, "{:.2g}")
            for at in (above, below):
                at.set_yscale("symlog", linthresh=0.1, linscale=0.6)
                at.set(ylim=(-120, 20), yticks=(-10, -1, -0.1, 0.1, 1, 10))
                at.set_yticklabels(("−10", "−1", "−.1", ".1", "1", "10"))
                at.axhline(0, color=MUTED, linewidth=0.8)
                _name_classes(at)
        axes[0].set_ylabel("label")
        axes[2].set_ylabel("step of the logit")
        for at in (axes[0], axes[2]):
            at.legend(fontsize=SMALL, loc="lower right", borderaxespad=0)
    return figure


def client_samples() -> tuple[Tensor, Tensor]:
    """Digits 0 to 4, as many of each as the client of the page holds: [samples, 64] and [samples]."""
    digits = load_dataset("digits")
    targets = torch.as_tensor(digits.train_targets).long()
    rows = torch.cat([torch.where(targets == digit)[0][:count] for digit, count in enumerate(COUNTS)])
    return torch.as_tensor(digits.train_inputs)[rows].reshape(-1, 64).double() / 16, targets[rows]


def stationary_predictions(inputs: Tensor, targets: Tensor, loss: Loss) -> Tensor:
    """Softmax regression trained until its gradient vanishes: [samples, classes].

    Only the weights decay. The biases do not, so that their gradient is that of the loss, and it is zero.
    """
    weights = torch.zeros(inputs.shape[1], len(COUNTS), dtype=torch.float64, requires_grad=True)
    biases = torch.zeros(len(COUNTS), dtype=torch.float64, requires_grad=True)
    options: dict[str, Any] = {"tolerance_grad": 1e-9, "tolerance_change": 1e-14, "line_search_fn": "strong_wolfe"}
    optimizer = torch.optim.LBFGS([weights, biases], max_iter=1000, **options)

    def closure() -> Tensor:
        optimizer.zero_grad()
        total = loss(inputs @ weights + biases, targets) + 3e-4 * weights.square().sum()
        total.backward()
        return total

    optimizer.step(closure)
    return (inputs @ weights + biases).softmax(-1).detach()


def trained_losses() -> dict[str, Loss]:
    def aligned(strength: float) -> Loss:
        return lambda logits, targets: ga_loss(logits, targets, COUNTS, strength=strength)

    return {"cross-entropy": F.cross_entropy, "alignment, λ = ½": aligned(0.5), "alignment, λ = 1": aligned(1.0)}


def bounds(held: Sequence[int]) -> list[tuple[float, float]]:
    """Least and largest N_j / N_i over the other classes j, for each class i of those held."""
    return [(min(ratios), max(ratios)) for i in held for ratios in [[COUNTS[j] / COUNTS[i] for j in held if j != i]]]


def draw_asymmetry() -> Figure:
    inputs, targets = client_samples()
    held = [place for place, count in enumerate(COUNTS) if count]
    rows = np.arange(len(held))
    predicted = {name: stationary_predictions(inputs, targets, loss) for name, loss in trained_losses().items()}
    with drawing():
        figure, axes = compose(
            1,
            2,
            [PanelSize(3.1, 2.5, left=0.75, bottom=0.62), PanelSize(3.9, 2.5, left=0.75, bottom=0.62)],
            title="Error asymmetry of a model trained to its end on one skewed client",
            caption="Softmax regression on digits 0 to 4, at a stationary point; errors on the training samples. "
            "Class 1 has no samples there, and so no error asymmetry.",
        )
        missed, false_alarm = errors_from_means(mean_predictions(predicted["cross-entropy"], targets))
        axes[0].bar(rows - 0.2, 100 * missed[held].numpy(), 0.38, color=shade(PLAIN, -0.3), label="missed")
        axes[0].bar(rows + 0.2, 100 * false_alarm[held].numpy(), 0.38, color=shade(PLAIN, 0.5), label="false alarm")
        axes[0].set_title("cross-entropy: its two errors")
        axes[0].set_ylabel("mean error, %")
        axes[0].legend(fontsize=SMALL, loc="upper left", borderaxespad=0)
        for row, (low, high) in enumerate(bounds(held)):
            axes[1].bar(
                row, high - low, 0.7, bottom=low, color=GRID, label="bounds of cross-entropy" if row == 0 else None
            )
        styles = [("o", PLAIN), ("D", shade(ALIGNED, 0.45)), ("*", ALIGNED)]
        for (name, probabilities), (marker, color) in zip(predicted.items(), styles, strict=True):
            size = 11 if marker == "*" else 8
            asymmetry = error_asymmetry(probabilities, targets)[held].numpy()
            axes[1].plot(rows, asymmetry, marker, color=color, ms=size, mec="white", mew=0.7, label=name)
        axes[1].axhline(1, color=TEXT, linewidth=0.8)
        axes[1].set_yscale("log")
        axes[1].set(ylim=(0.03, 300), yticks=(0.1, 1, 10), yticklabels=("0.1", "1", "10"))
        axes[1].set_title("missed over false alarm")
        axes[1].set_ylabel("error asymmetry")
        axes[1].legend(
            fontsize=SMALL, loc="upper center", ncols=2, borderaxespad=0, handletextpad=0.4, columnspacing=1.0
        )
        for at in axes:
            _name_classes(at, held)
    return figure


def draw_forgetting() -> Figure:
    digits = load_dataset("digits")
    federation = make_federation(digits, clients=20, seed=0, alpha=0.1)
    seen = {}
    for algorithm in ("fedavg", "fedga"):
        rounds: list[Any] = []
        settings: dict[str, Any] = {"rounds": 40, "active": 5, "batch_size": 16, "diagnose_every": 40}
        simulate(federation, "mlp", algorithm, on_round=rounds.append, **settings)
        seen[algorithm] = rounds[-1].clients
    return before_after_algorithms(seen, digits.class_names)


def _name_classes(axes: Axes, classes: Sequence[int] = range(len(COUNTS))) -> None:
    axes.set_xticks(range(len(classes)), [f"{name}\nN = {COUNTS[name]}" for name in classes])
    axes.tick_params(axis="x", length=0, labelcolor=TEXT)
    axes.grid(axis="x", visible=False)


def _numbered_bars(
    axes: Axes, places: np.ndarray, heights: Tensor, width: float, color: str, label: str, form: str
) -> None:
    axes.bar(places, heights.numpy(), width, color=color, label=label)
    for place, height in zip(places.tolist(), heights.tolist(), strict=True):
        offset = (0, 2) if height > 0 else (0, -10)
        text = re.sub(r"^(\W?)0\.", r"\1.", form.format(height)).replace("-", "−")
        axes.annotate(text, (place, height), offset, textcoords="offset points", ha="center", size=0.85 * SMALL)


PICTURES: dict[str, Callable[[], Figure]] = {
    "method-forgetting": draw_forgetting,
    "method-pushes": draw_pushes,
    "method-asymmetry": draw_asymmetry,
    "method-labels": draw_labels,
}


def main(folder: str | Path) -> list[Path]:
    torch.set_num_threads(1)  # the problems are so small that threads would only wait for each other
    return [path for name, draw in PICTURES.items() for path in save(draw(), Path(folder) / name, ("png",))]


if __name__ == "__main__":
    print(*main(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).with_name("pictures")), sep="\n")
