"""One evaluation of a model on a CPU, beside PyTorch's own ways to do it and, on request, another version of fedga.

    .venv/bin/python benchmarks/evaluation.py --models lenet,resnet20
    git worktree add ../old COMMIT && .venv/bin/python benchmarks/evaluation.py --old ../old/src

PyTorch's own: the module in evaluation mode under `inference_mode` on all cores, in the layout and batch size named,
from the same stored uint8 pictures, with the same scores taken. They take turns; what is reported is the median over
turns of their time over fedga's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve()
SHAPE, CLASSES = (3, 32, 32), 10
SAMPLES = {"lenet": 10_000, "resnet20": 2_000}
WAYS = tuple(f"torch {way}" for way in ("nchw 100", "nchw 1000", *(f"channels-last {n}" for n in (64, 100, 128))))


def serve(model: str, way: str) -> None:
    """Evaluate whenever a line comes in, and answer with the seconds and the number of hits."""
    import numpy as np

    from fedga.data.federation import Dataset
    from fedga.models import build_model

    generator = np.random.default_rng(0)
    inputs = generator.integers(0, 256, (SAMPLES[model], *SHAPE), dtype=np.uint8)
    targets = generator.integers(0, CLASSES, len(inputs))
    names = tuple(map(str, range(CLASSES)))
    dataset = Dataset("made", inputs[:100], targets[:100], inputs, targets, names, fingerprint="made")
    network = build_model(model, SHAPE, CLASSES, seed=0)
    run = by_fedga(network, dataset) if way == "fedga" else by_torch(network, dataset, way)
    for _ in sys.stdin:
        began = time.perf_counter()
        hits = run()
        print(json.dumps([time.perf_counter() - began, hits]), flush=True)


def by_fedga(network, dataset) -> Callable[[], int]:  # type: ignore[no-untyped-def]
    import torch

    from fedga.engine.device_data import DeviceData
    from fedga.engine.evaluation.evaluate import evaluate
    from fedga.engine.stack.budget import MemoryBudget
    from fedga.engine.stack.stacked import StackedModel
    from fedga.engine.stack.workers import Workers

    cpu, stacked = torch.device("cpu"), StackedModel(network)
    data, workers = DeviceData(dataset, cpu), Workers(stacked, cpu)
    params, buffers = stacked.flatten(network)
    budget = MemoryBudget.for_model(stacked, cpu, SHAPE, 64)
    models = params[None], buffers[None]
    return lambda: int(evaluate(workers, *models, data, data.pixels(False), budget).confusion.diagonal(0, 1, 2).sum())


def by_torch(network, dataset, way: str) -> Callable[[], int]:  # type: ignore[no-untyped-def]
    import torch
    import torch.nn.functional as F

    _, layout, size = way.split()
    memory = torch.channels_last if layout == "channels-last" else torch.contiguous_format
    network = network.eval().to(memory_format=memory)
    pictures, labels = torch.from_numpy(dataset.test_inputs), torch.from_numpy(dataset.test_targets)

    @torch.inference_mode()
    def run() -> int:
        hits, loss = 0, 0.0
        for some, targets in zip(pictures.split(int(size)), labels.split(int(size)), strict=True):
            logits = network((some.float() / 255).contiguous(memory_format=memory))
            loss += float(F.cross_entropy(logits, targets, reduction="sum"))
            hits += int((logits.argmax(-1) == targets).sum())
        return hits

    return run


class Contender:
    def __init__(self, model: str, way: str, source: Path) -> None:
        command = [sys.executable, str(HERE), "--serve", model, "--way", way]
        environment = {**os.environ, "PYTHONPATH": str(source.resolve())}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, env=environment, text=True, **pipes)  # type: ignore[call-overload]

    def ask(self) -> tuple[float, int]:
        self.process.stdin.write("again\n")
        self.process.stdin.flush()
        seconds, hits = json.loads(self.process.stdout.readline())
        return seconds, hits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="lenet,resnet20")
    parser.add_argument("--old", type=Path, help="the src folder of another version, 0.2 or later")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve, given.way)
        return
    new = HERE.parent.parent / "src"
    for model in given.models.split(","):
        contenders = {way: Contender(model, way, new) for way in ("fedga", *WAYS)}
        if given.old:
            contenders["fedga, old"] = Contender(model, "fedga", given.old)
        answers = [[each.ask() for each in contenders.values()] for _ in range(3)]  # warm
        assert len({hits for _, hits in answers[0]}) == 1, "they disagree on the predictions"
        rows = []
        for turn in range(given.turns):
            order = list(contenders) if turn % 2 else list(contenders)[::-1]
            rows.append({way: contenders[way].ask()[0] for way in order})
        for way in contenders:
            middle = statistics.median(row[way] for row in rows) / SAMPLES[model] * 1e6
            ratio = statistics.median(row[way] / row["fedga"] for row in rows)
            print(f"{model:9} {way:24} {middle:8.1f} µs a sample  {ratio:6.2f} × fedga", flush=True)
        for each in contenders.values():
            each.process.stdin.close()
            each.process.wait()


if __name__ == "__main__":
    main()
