"""The whole battery for an algorithm of one's own: its hooks, and that it trains alike wherever it can train."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedga.algorithms import Algorithm, make_algorithm
from fedga.algorithms.checking.battery import check_hooks
from fedga.algorithms.checking.hooks import Hooks
from fedga.data.federation import Dataset, Federation
from fedga.engine.device_data import DeviceData
from fedga.engine.engine import Engine
from fedga.engine.reference import Reference
from fedga.engine.stack.lanes import Lane, LaneState, in_engine_order, stacking_key
from fedga.errors import FedGAError
from fedga.models import build_model
from fedga.spec.settings import TrainingSettings
from fedga.study.prepare import fitting_model

ROUNDS, CLASSES, BATCH_SIZE = 3, 4, 8
SIZES = (31, 5, 17, 9, 22, 12)  # of the clients; the last batches have 7, 5, 1, 1, 6 and 4 samples
SIZES_FOR_MODELS = (31, 5, 18, 10, 22, 12)  # none of 1: torch.nn.BatchNorm1d refuses it in the plain loop
TOLERANCE = 1e-9  # in float64, where two ways to compute one number differ by some 1e-16
_CPU = torch.device("cpu")


def check_algorithm(algorithm: str | Algorithm | type[Algorithm]) -> list[str]:
    """Find the usual mistakes of an algorithm; each is a `FedGAError` whose sentence says what to do.

    It is given by name, as a class, or as an object with options. Its hooks are checked one by one, and then it trains
    a small federation: on the engine, in the plain loop, resumed, beside other runs, and on Flower, where that is
    installed. In all of them it must get the same model. What was checked is returned, a sentence each.

    >>> check_algorithm("fedprox")[0]
    'one loss per sample, that padding does not change and that PyTorch maps over clients'
    """
    made = make_algorithm(algorithm)
    name = algorithm if isinstance(algorithm, str) else type(made).__name__
    check_hooks(made, name)
    done = [
        "one loss per sample, that padding does not change and that PyTorch maps over clients",
        "what it sends, and what a client keeps, is what it declares",
    ]
    with _float64():
        trial = _Trial(made, f"algorithm {name}", make_federation(make_dataset(), SIZES))
        done += trial.train_everywhere()
        return [*done, "note: it trains exactly as fedavg does"] if trial.is_fedavg() else done


def check_model(model: str | type[nn.Module], input_shape: tuple[int, ...] = (1, 8, 8)) -> list[str]:
    """Find the usual mistakes of a network, given by name or as a class, as `check_algorithm` does.

    >>> check_model("mlp")[0]
    'the engine gives the model of the plain loop'
    """
    name = model if isinstance(model, str) else f"{model.__module__}:{model.__qualname__}"
    fitting_model(name, input_shape, CLASSES)
    with _float64():
        federation = make_federation(make_dataset(input_shape, CLASSES), SIZES_FOR_MODELS)
        return _Trial(make_algorithm("fedavg"), f"model {name}", federation, name).train_everywhere()


class _Trial:
    """Small runs of one algorithm and one network, the one that is checked and the other one of ours."""

    def __init__(self, algorithm: Algorithm, name: str, federation: Federation, model: str = "mlp") -> None:
        self.name = name
        self.data, dataset = DeviceData(federation.dataset, _CPU, torch.float64), federation.dataset
        # One network for all: runs from Python are stacked where they share it.
        self.network = build_model(model, dataset.input_shape, dataset.num_classes, seed=0)
        self.lane = self._lane(algorithm, federation, self.network)
        plain = self._lane(make_algorithm("fedavg"), federation, self.network)
        self.beside = [self._lane(algorithm, federation, self.lane.model, seed=1), plain]

    def train_everywhere(self) -> list[str]:
        """In every way there is, each of which must give the same; a sentence for each."""
        engine = self._try("the engine", lambda: self._trained([self.lane]))
        (end,) = engine.stack.states()
        return [self._plain(engine), self._resumed(end), self._among_others(end), self._on_flower(end)]

    def is_fedavg(self) -> bool:
        plain = self._lane(make_algorithm("fedavg"), self.lane.federation, self.network)
        one, other = (self._trained([lane]).stack.params for lane in (self.lane, plain))
        return torch.equal(one, other)

    def _plain(self, engine: Engine) -> str:
        reference = Reference(self.lane, self.data)
        for _ in range(ROUNDS):
            self._try("the plain loop", reference.run_round)
        (state,) = engine.stack.states()
        self._same(state, reference_state(reference, engine), "in the plain loop")
        return "the engine gives the model of the plain loop"

    def _resumed(self, end: LaneState) -> str:
        half = self._trained([self.lane], rounds=1).stack.states()
        resumed = self._trained([self.lane], rounds=ROUNDS - 1, round_number=1, states=half)
        self._same(resumed.stack.states()[0], end, "when it is stopped and goes on")
        return "a run that was stopped goes on as if it had not been"

    def _among_others(self, end: LaneState) -> str:
        same = [lane for lane in self.beside if stacking_key(lane) == stacking_key(self.lane)]
        if not same:
            return "it trains alone: runs whose clients train in groups are not stacked"
        lanes = in_engine_order([*same, self.lane])
        together = self._trained(lanes)
        self._same(together.stack.states()[lanes.index(self.lane)], end, "beside other runs")
        return "other runs beside it change nothing"

    def _on_flower(self, end: LaneState) -> str:
        if find_spec("flwr") is None:
            return "not checked: Flower, which is not installed (pip install 'fedga[flower]')"
        from fedga.flower.in_process import run_in_process

        with tempfile.TemporaryDirectory(prefix="fedga-") as folder:
            found = self._try("Flower", lambda: run_in_process(self.lane, self.data, ROUNDS, Path(folder)))
        self._same({"params": found}, {"params": end["params"]}, "on Flower")
        return "Flower's messages give the same model"

    def _lane(self, algorithm: Algorithm, federation: Federation, network: nn.Module, seed: int = 0) -> Lane:
        seldom: dict[str, Any] = {"evaluate_every": 100, "diagnose_every": 0}
        spec = TrainingSettings(active=3, rounds=ROUNDS, batch_size=BATCH_SIZE, seed=seed, **seldom)
        return Lane(spec, federation, algorithm, network)

    def _trained(self, lanes: Sequence[Lane], rounds: int = ROUNDS, **more: Any) -> Engine:
        engine = Engine(lanes, self.data, **more)
        for _ in range(rounds):
            engine.run_round()
        return engine

    def _same(self, found: LaneState, expected: LaneState, where: str) -> None:
        for key, value in expected.items():
            named = f"{self.name}: {key.partition('.')[2] or key}"
            if not (found[key].isfinite().all() and value.isfinite().all()):
                cure = "look for a division by 0, or the root or logarithm of 0, in the loss, the penalty or correct"
                raise FedGAError(f"{named} is not finite any more {where}: {cure}")
            if not torch.allclose(found[key], value, rtol=0, atol=TOLERANCE):
                raise FedGAError(
                    f"{named} comes out differently {where}: let every function depend on its arguments alone, and "
                    "keep what is needed later where fedga keeps it (server_state, client_state, buffers)"
                )

    def _try(self, where: str, action: Callable[[], Any]) -> Any:
        return Hooks(self.lane.algorithm, self.name, {}).call(f"training on {where}", action)


@contextmanager
def _float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def make_dataset(shape: tuple[int, ...] = (1, 8, 8), classes: int = 4, samples: int = 160, seed: int = 0) -> Dataset:
    """Noisy pictures around one template per class: learnable, but not at once."""
    generator = np.random.default_rng(seed)
    templates = generator.integers(0, 256, (classes, *shape))
    targets = generator.permutation(np.arange(samples) % classes)
    noisy = templates[targets] * 0.5 + generator.integers(0, 128, (samples, *shape))
    inputs = noisy.clip(0, 255).astype(np.uint8)
    cut = samples * 3 // 4
    names = tuple(str(label) for label in range(classes))
    return Dataset("made", inputs[:cut], targets[:cut], inputs[cut:], targets[cut:], names, fingerprint="made")


def make_federation(dataset: Dataset, sizes: Sequence[int], seed: int | None = None) -> Federation:
    """Clients of the given sizes: most of them without some class, or, with a seed, drawn at random."""
    order = np.argsort(dataset.train_targets, kind="stable")
    if seed is not None:
        order = np.random.default_rng(seed).permutation(order)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return Federation(dataset, order[: offsets[-1]], offsets)


def reference_state(reference: Reference, engine: Engine) -> LaneState:
    """Everything a plain run carries from round to round, under the names the engine gives it."""
    params, buffers = engine.model.flatten(reference.model)
    state = {"params": params, "buffers": buffers}
    state |= {f"server_{name}": value for name, value in reference.optimizer_state.items()}
    state |= {f"select.{name}": value for name, value in reference.select_state.items()}
    if reference.spec.server_average:
        state["averaged_params"], state["averaged_buffers"] = engine.model.flatten(reference.averaged)
    state |= {f"server.{name}": value for name, value in reference.state.items()}
    for name in reference.kept[0]:
        state[f"client.{name}"] = torch.stack([kept[name] for _, kept in sorted(reference.kept.items())])
    return {name: value.detach() for name, value in state.items()}
