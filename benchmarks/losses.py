"""What the losses cost beside torch's own, forward and backward: `python benchmarks/losses.py [--repeat 30]`.

The two of a pair take turns, so that both see the same machine, and the median of the ratios of neighbours is reported.
Memory is the peak above the inputs, in units of the logits, each measured in a process of its own on larger ones; it
includes the gradient that both must return.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from machine import describe, in_words
from torch import Tensor

import fedga

RESULT = Path(__file__).parent / "results" / "losses.md"
Loss = Callable[[Tensor, Tensor], Tensor]
LARGER = 8  # batches for memory, as a multiple of those for time


def samples(batch: int, classes: int) -> tuple[Tensor, Tensor, Loss, Loss]:
    logits, targets = torch.randn(batch, classes), torch.randint(0, classes, (batch,))
    return logits, targets, fedga.GALoss(torch.arange(classes)), F.cross_entropy


def maps(batch: int, classes: int, side: int) -> tuple[Tensor, Tensor, Loss, Loss]:
    logits, targets = torch.randn(batch, classes, side, side), torch.randint(0, classes, (batch, side, side))
    targets[torch.rand(targets.shape) < 0.1] = -100
    return logits, targets, fedga.DenseGALoss(torch.arange(classes)), F.cross_entropy


def label_sets(batch: int, classes: int) -> tuple[Tensor, Tensor, Loss, Loss]:
    logits, targets = torch.randn(batch, classes), torch.randint(0, 2, (batch, classes)).float()
    counts = torch.stack([torch.full((classes,), 900), torch.full((classes,), 100)], -1)
    return logits, targets, fedga.MultilabelGALoss(counts), F.binary_cross_entropy_with_logits


CASES: dict[str, Callable[[int], tuple[Tensor, Tensor, Loss, Loss]]] = {
    "GALoss, 64 × 10 (a batch of the paper)": lambda scale: samples(64 * scale, 10),
    "GALoss, 8192 × 100": lambda scale: samples(8192 * scale, 100),
    "DenseGALoss, 8 × 21 × 128 × 128": lambda scale: maps(8 * scale, 21, 128),
    "DenseGALoss, 4 × 4 × 256 × 256": lambda scale: maps(4 * scale, 4, 256),
    "MultilabelGALoss, 8192 × 100": lambda scale: label_sets(8192 * scale, 100),
}


def seconds(loss: Loss, logits: Tensor, targets: Tensor) -> float:
    logits = logits.detach().clone().requires_grad_()
    times = max(1, 200_000 // logits.numel())
    start = time.perf_counter()
    for _ in range(times):
        logits.grad = None
        loss(logits, targets).backward()
    return (time.perf_counter() - start) / times


def ratio(case: str, repeat: int) -> tuple[float, float]:
    """(median of ours over torch's, median seconds of torch's)."""
    logits, targets, ours, torchs = CASES[case](1)
    seconds(ours, logits, targets), seconds(torchs, logits, targets)
    pairs = [(seconds(ours, logits, targets), seconds(torchs, logits, targets)) for _ in range(repeat)]
    return statistics.median(a / b for a, b in pairs), statistics.median(b for _, b in pairs)


def peak(case: str, which: int) -> float:
    """Memory above the inputs in units of the logits, as Linux counts it."""
    logits, targets, *losses = CASES[case](LARGER)
    losses[which](logits[:1].clone().requires_grad_(), targets[:1]).backward()  # libraries are loaded
    logits.requires_grad_()
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    before = _kibibytes("VmRSS")
    losses[which](logits, targets).backward()
    return (_kibibytes("VmHWM") - before) * 1024 / (logits.numel() * 4)


def _kibibytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def peak_elsewhere(case: str, which: int) -> str:
    if CASES[case](1)[0].numel() < 10**5:
        return "–"  # lost in what a process needs anyway
    command = [sys.executable, __file__, "--peak", case, str(which)]
    return f"{float(subprocess.run(command, capture_output=True, text=True, check=True).stdout):.1f}"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--repeat", type=int, default=30)
    arguments.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if given.peak:
        print(peak(given.peak[0], int(given.peak[1])))
        return
    lines = [
        "# Losses beside torch's own, forward and backward",
        "",
        "| | × torch's time | ms, torch's | memory, ours | memory, torch's |",
        "|---|---:|---:|---:|---:|",
    ]
    for case in CASES:
        slower, torchs = ratio(case, given.repeat)
        lines.append(
            f"| {case} | {slower:.1f} | {1e3 * torchs:.2f} | {peak_elsewhere(case, 0)} | {peak_elsewhere(case, 1)} |"
        )
        print(lines[-1], flush=True)
    lines += [
        "",
        f"Median of {given.repeat} neighbours, one thread, float32. Memory is the peak above the inputs, in units of",
        f"the logits, gradient included. By `python benchmarks/losses.py`, torch {torch.__version__}, on",
        f"{in_words(describe())}.",
    ]
    RESULT.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
