"""One round of the paper's MNIST setting: the engine against a plain PyTorch loop, side by side.

100 clients of 600 samples, 10 active, 2 epochs, batch 64, MLP 784-128-10, SGD 0.1, clip 5. Every repetition of the
engine stands next to one of each loop, since the speed of a shared machine drifts within minutes.

    python benchmarks/round.py [--repeat 9] [--threads N] [--momentum 0.9]
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fedga.algorithms import make_algorithm
from fedga.data.federation import Dataset, Federation
from fedga.experiments.spec import RunSpec
from fedga.models import build_model
from fedga.simulation.device_data import DeviceData
from fedga.simulation.engine import Engine
from fedga.simulation.lanes import Lane

CLIENTS, SAMPLES, ACTIVE, EPOCHS, BATCH = 100, 600, 10, 2, 64
LR, CLIP = 0.1, 5.0


def made_up_mnist() -> Dataset:
    """MNIST's shape with learnable content: noise around one template per class."""
    generator = np.random.default_rng(0)
    templates = generator.integers(0, 256, (10, 1, 28, 28))

    def split(samples: int) -> tuple[np.ndarray, np.ndarray]:
        targets = generator.integers(0, 10, samples)
        noise = generator.integers(0, 256, (samples, 1, 28, 28))
        return (0.3 * templates[targets] + 0.7 * noise).astype(np.uint8), targets

    return Dataset("made up", *split(CLIENTS * SAMPLES), *split(10_000), tuple("0123456789"))


def engine_round(dataset: Dataset, momentum: float) -> tuple[Callable[[], object], Engine]:
    federation = Federation(dataset, np.arange(CLIENTS * SAMPLES), np.arange(CLIENTS + 1) * SAMPLES)
    spec = RunSpec(
        **{"dataset": "made up", "partition": "iid", "clients": CLIENTS, "active": ACTIVE, "rounds": 10_000},
        **{"local_epochs": EPOCHS, "batch_size": BATCH, "lr": LR, "momentum": momentum, "clip": CLIP},
        **{"algorithm": "fedavg", "evaluate_every": 10_000, "diagnose_every": 10_000},
    )
    lane = Lane(spec, federation, make_algorithm("fedavg"), build_model("mlp", (1, 28, 28), 10))
    engine = Engine([lane], DeviceData(dataset, torch.device("cpu")))
    return engine.run_round, engine


def plain_round(dataset: Dataset, momentum: float, loader: bool) -> tuple[Callable[[], None], nn.Module]:
    """What a user would write: a module, an optimiser, a loop."""
    inputs = torch.from_numpy(dataset.train_inputs).view(CLIENTS, SAMPLES, 1, 28, 28)
    targets = torch.from_numpy(dataset.train_targets).view(CLIENTS, SAMPLES)
    model = build_model("mlp", (1, 28, 28), 10)

    def batches(x: Tensor, y: Tensor) -> object:
        if loader:
            return DataLoader(TensorDataset(x, y), BATCH, shuffle=True)
        return ((x[part], y[part]) for part in torch.randperm(SAMPLES).split(BATCH))

    def train(client: int) -> nn.Module:
        local = copy.deepcopy(model)
        optimizer = torch.optim.SGD(local.parameters(), LR, momentum)
        x, y = inputs[client].float() / 255, targets[client]
        for _ in range(EPOCHS):
            for batch_x, batch_y in batches(x, y):  # type: ignore[attr-defined]
                optimizer.zero_grad()
                F.cross_entropy(local(batch_x), batch_y).backward()
                nn.utils.clip_grad_norm_(local.parameters(), CLIP)
                optimizer.step()
        return local

    @torch.no_grad()
    def average(locals_: list[nn.Module]) -> None:
        for parameter, *trained in zip(model.parameters(), *(each.parameters() for each in locals_), strict=True):
            parameter.copy_(torch.stack(trained).mean(0))

    return lambda: average([train(int(k)) for k in torch.randperm(CLIENTS)[:ACTIVE]]), model


def accuracy(model: nn.Module, dataset: Dataset) -> float:
    with torch.no_grad():
        logits = model(torch.from_numpy(dataset.test_inputs).float() / 255)
    return (logits.argmax(1) == torch.from_numpy(dataset.test_targets)).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--momentum", type=float, default=0.0, help="the paper's tables are reproduced by 0")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "round.json")
    options = parser.parse_args()
    dataset = made_up_mnist()
    torch.set_num_threads(options.threads)
    run_engine, engine = engine_round(dataset, options.momentum)
    sliced, sliced_model = plain_round(dataset, options.momentum, loader=False)
    loaded, loaded_model = plain_round(dataset, options.momentum, loader=True)

    contenders: dict[str, tuple[Callable[[], object], int]] = {"fedga engine": (run_engine, options.threads)}
    for threads in sorted({1, options.threads}):
        contenders[f"plain loop, sliced tensors, {threads} threads"] = (sliced, threads)
        contenders[f"plain loop, DataLoader, {threads} threads"] = (loaded, threads)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for repetition in range(options.repeat + 2):  # two to warm up
        for name, (run, threads) in contenders.items():
            torch.set_num_threads(threads)
            start = time.perf_counter()
            run()
            if repetition >= 2:
                seconds[name].append(time.perf_counter() - start)

    trained = copy.deepcopy(sliced_model)
    engine.model.unflatten(engine.stack.params[0], engine.stack.buffers[0], trained)
    reached = {"fedga engine": accuracy(trained, dataset)}
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    print(f"{'':44} s/round  spread  fedga is faster by  accuracy")
    for name, values in seconds.items():
        model = loaded_model if "DataLoader" in name else sliced_model
        reached.setdefault(name, accuracy(model, dataset))
        spread = (max(values) - min(values)) / medians[name]
        ratio = medians[name] / medians["fedga engine"]
        print(f"{name:44} {medians[name]:7.4f} {spread:7.0%} {ratio:18.2f}x {reached[name]:9.3f}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak resident memory of this process, all contenders and the data: {peak:.0f} MiB")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    machine = {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
    }
    report = {"machine": machine, "seconds": seconds, "median": medians, "accuracy": reached, "peak_mib": peak}
    options.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
