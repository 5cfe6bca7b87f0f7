"""Two versions of fedga against each other: the same rounds, in turns, in two processes.

    git worktree add ../old 0.1 && python benchmarks/versions.py --old ../old/src
    PYTHONPATH=src python benchmarks/versions.py --old ../old/src --device cuda --pairs 20

Each process builds the same lanes and waits; the two train a few rounds in turns, so that the drift of a machine hits
both alike. What is reported is the median over pairs of new over old.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve()
# Model, samples and shape of a client, lanes on a CPU and on a GPU, rounds between two looks at the clock.
CASES = {
    "mlp": (600, (1, 28, 28), 1, 150, 4),
    "lenet": (500, (3, 32, 32), 1, 150, 1),
    "resnet20": (100, (3, 32, 32), 1, 10, 1),
}
# What the field's axes cost, of the newer version alone.
AXES: dict[str, dict[str, object]] = {
    "plain": {},
    "shift:4": {"augment": "shift:4"},
    "mirror,shift:4": {"augment": "mirror,shift:4"},
    "centralize": {"centralize": True},
}


def serve(case: str, device: str, settings: dict[str, object]) -> None:
    """Train as many rounds as every line of the input says, and answer with the seconds."""
    import numpy as np
    import torch

    from fedga.algorithms import make_algorithm
    from fedga.data.federation import Dataset, Federation
    from fedga.models import build_model

    try:
        from fedga.engine.device_data import DeviceData
        from fedga.engine.engine import Engine
        from fedga.engine.stack.lanes import Lane
        from fedga.spec.settings import RunSpec
    except ImportError:  # version 0.1
        from fedga.experiments.spec import RunSpec
        from fedga.simulation.device_data import DeviceData
        from fedga.simulation.engine import Engine
        from fedga.simulation.lanes import Lane

    samples, shape, on_cpu, on_gpu, _ = CASES[case]
    generator = np.random.default_rng(0)
    clients = 100
    inputs = generator.integers(0, 256, (samples * clients, *shape), dtype=np.uint8)
    targets = generator.integers(0, 10, len(inputs))
    dataset = Dataset("made", inputs, targets, inputs[:1000], targets[:1000], tuple("0123456789"), fingerprint="made")
    federation = Federation(dataset, np.arange(len(inputs)), np.arange(clients + 1) * samples)
    lanes = []
    for seed in range(on_cpu if device == "cpu" else on_gpu):
        spec = RunSpec(
            dataset="made", partition="iid", clients=clients, model=case, algorithm="fedga", rounds=10**6,
            evaluate_every=10**6, diagnose_every=0, seed=seed, **settings,
        )  # fmt: skip
        lanes.append(Lane(spec, federation, make_algorithm("fedga"), build_model(case, shape, 10, seed=seed)))
    engine = Engine(lanes, DeviceData(dataset, torch.device(device)))
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    for line in sys.stdin:
        began = time.perf_counter()
        for _ in range(int(line)):
            engine.run_round()
        wait()
        print(time.perf_counter() - began, flush=True)


class Contender:
    def __init__(self, source: Path, case: str, device: str, settings: dict[str, object]) -> None:
        command = [sys.executable, str(HERE), "--serve", case, "--device", device, "--settings", json.dumps(settings)]
        environment = {**os.environ, "PYTHONPATH": str(source.resolve())}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, env=environment, text=True, **pipes)  # type: ignore[call-overload]

    def seconds(self, rounds: int) -> float:
        self.process.stdin.write(f"{rounds}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def stop(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def compare(name: str, contenders: list[Contender], rounds: int, pairs: int) -> list[float]:
    """Ratios to the first contender, the median over pairs; the order turns from pair to pair."""
    for each in contenders:
        for _ in range(3):  # the first rounds warm up, record and compile
            each.seconds(rounds)
    rows = []
    for pair in range(pairs):
        order = contenders if pair % 2 else contenders[::-1]
        found = {id(each): each.seconds(rounds) for each in order}
        rows.append([found[id(each)] for each in contenders])
    ratios = [statistics.median(row[at] / row[0] for row in rows) for at in range(1, len(contenders))]
    base = statistics.median(row[0] for row in rows) / rounds * 1e3
    print(f"{name:24} {base:9.2f} ms a round; ratios {' '.join(f'{ratio:.3f}' for ratio in ratios)}", flush=True)
    for each in contenders:
        each.stop()
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, help="the src folder of the version to compare with")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--models", default="mlp,lenet")
    parser.add_argument("--axes", action="store_true", help="what augmentation and centralisation cost instead")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--settings", default="{}", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve, given.device, json.loads(given.settings))
        return
    new = HERE.parent.parent / "src"
    for case in given.models.split(","):
        rounds = CASES[case][-1] * (3 if given.device == "cuda" else 1)
        if given.axes:
            contenders = [Contender(new, case, given.device, settings) for settings in AXES.values()]
            compare(f"{case}: {', '.join(AXES)}", contenders, rounds, given.pairs)
        elif given.old is None:
            parser.error("give --old, the src folder of another version, or --axes")
        else:
            contenders = [Contender(source, case, given.device, {}) for source in (given.old, new)]
            compare(f"{case}: old, new", contenders, rounds, given.pairs)


if __name__ == "__main__":
    main()
