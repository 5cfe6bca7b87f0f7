"""Does the engine on this device equal the plain loop? Behind `benchmarks/gpu.py --check`.

Every algorithm, network and local optimiser, with clients of unequal size (one is smaller than a batch), runs four
rounds in the engine: on a GPU the first runs plainly, the second records a CUDA graph, the others replay it. The same
run in `fedga.engine.reference`, one client after another on the CPU in float64, says what the result should be.

- In float64 the two agree to 1e-9 (Adam, which divides by gradients near zero, to 1e-6): a difference is an error.
- In float32, where kernels of our own run, training multiplies rounding, and by how much depends on network and
  optimiser: no fixed tolerance means anything. So the plain loop says what is due. It is run in float32 too, and the
  engine may be four times as far from the float64 result as that, plus 64 roundings of the largest value.
- ReLU and max pooling have kinks. A value within rounding of one falls to either side, and a run that crosses is
  suddenly a thousand times further away; in ResNet-20, with its 10^5 values a step, that happens in one run of five.
  So before a float32 difference counts as an error, the plain loop is also run from starting weights that are moved at
  random by 1, 4, 16, 64 and at last 256 roundings (3e-5 of their size), and what these change is what is due. The line
  says by how many roundings. Most cases need none (on a CPU, 1 of 96 of the smaller networks), and where more than
  three in ten of a smaller network's do, that is an error too: small systematic ones are found by it.
- TF32 keeps 13 bits fewer than float32, so that 2^13 times as much is allowed: it finds gross errors only.

Then the runs of all algorithms are lanes of one engine, in one stack and in chunks of two clients, and each must equal
itself alone by the same measure.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from fedga.algorithms import ALGORITHMS
from fedga.engine.device_data import DeviceData
from fedga.engine.reference import Reference
from fedga.engine.stack.lanes import Lane, LaneState, in_engine_order, stacking_key
from fedga.spec.settings import RunSpec
from tests.engine.runs import TELLING, make_dataset, make_engine, make_federation, make_lane, reference_state

ROUNDS = 4
SIZES = (21, 13, 4, 9)  # with batches of 8: three, two, one and two steps, the last ones of 5, 5, 4 and 1 samples
MOVED = 1e-3  # what training has to change, so that agreement says something
EXACT, EXACT_ADAM = 1e-9, 1e-6
TIMES_PLAIN, ROUNDINGS = 4, 64
NUDGES = (1, 4, 16, 64, 256)  # roundings
TF32_LOSES = 2**13
# The share of float32 runs that may need a nudge; an engine that rounds too coarsely would need it in nearly all.
MOST_AT_KINKS = {"mlp": 0.3, "lenet": 0.3, "dropout": 0.3, "resnet20": 0.6}
PRECISIONS = ("float64", "float32")
HAS_PRECISION = any(each.name == "precision" for each in fields(RunSpec))

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "adam": {"optimizer": "adam"},
    "weight decay": {"weight_decay": 0.1},
    "axes": {
        "augment": "mirror,shift:2",
        "centralize": True,
        "stragglers": 0.5,
        "availability": "0.6",
        "select": "in-turn",
        "momentum": 0.5,
    },
}


class Dropping(nn.Module):
    """Both kinds of dropout, and batch statistics. No bias stands before them: its gradient would be rounding alone."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(input_shape[0], 4, 3, bias=False)
        self.norm, self.channel_dropout = nn.BatchNorm2d(4), nn.Dropout2d(0.25)
        self.hidden, self.dropout, self.output = nn.Linear(4 * 36, 16), nn.Dropout(0.5), nn.Linear(16, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        features = self.channel_dropout(self.norm(self.convolution(inputs)).relu())
        return self.output(self.dropout(self.hidden(features.flatten(1)).relu()))


@dataclass(frozen=True)
class Network:
    """A network on small pictures, and rates at which four rounds move it clearly."""

    model: Any
    shape: tuple[int, ...]
    lr: float
    adam_lr: float


NETWORKS = {
    "mlp": Network("mlp", (1, 8, 8), 0.05, 0.01),
    "lenet": Network("lenet", (3, 16, 16), 0.25, 0.01),
    "resnet20": Network("resnet20", (3, 8, 8), 0.01, 0.001),
    "dropout": Network(Dropping, (1, 8, 8), 0.05, 0.01),
}


@dataclass(frozen=True)
class Case:
    """One run by names alone, which other processes can make for themselves."""

    network: str
    algorithm: str
    optimizer: str

    def __str__(self) -> str:
        return f"{self.network} {self.algorithm} {self.optimizer}"

    def lane(self, dtype: torch.dtype, precision: str = "float32") -> Lane:
        """In any dtype it starts from the same weights, which float32 can hold."""
        network, settings = NETWORKS[self.network], dict(OPTIMIZERS[self.optimizer])
        settings["lr"] = network.adam_lr if self.optimizer == "adam" else network.lr
        settings |= {"local_epochs": 1, "rounds": 1000, "diagnose_every": 0, "evaluate_every": 1000}
        if HAS_PRECISION:
            settings["precision"] = precision
        dataset = make_dataset(network.shape, samples=80)
        federation = make_federation(dataset, SIZES)
        with default_dtype(torch.float32):
            lane = make_lane(
                dataset, federation, network.model, TELLING[self.algorithm], server_average=0.3, **settings
            )
        return replace(lane, model=lane.model.to(dtype))


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def plain_loop(case: Case, dtype: torch.dtype, roundings: int = 0) -> dict[str, Any]:
    """The reference loop's last state as numpy arrays, since tensors go between processes by ways that may be shut."""
    torch.set_num_threads(1)  # its tensors are small: a second thread only costs
    with default_dtype(dtype):
        lane = case.lane(dtype)
        generator = torch.Generator().manual_seed(roundings)
        for parameter in lane.model.parameters():
            direction = torch.randint(0, 2, parameter.shape, generator=generator) * 2 - 1
            parameter.data *= 1 + direction.to(dtype) * roundings * torch.finfo(dtype).eps
        data = DeviceData(lane.federation.dataset, torch.device("cpu"), dtype)
        reference = Reference(lane, data)
        for _ in range(ROUNDS):
            reference.run_round()
        names = make_engine([lane], data)  # only names the tensors
        return {name: tensor.numpy() for name, tensor in reference_state(reference, names).items()}


def engine_states(
    lanes: Sequence[Lane], device: torch.device, dtype: torch.dtype, slots: int = 1000
) -> list[LaneState]:
    with default_dtype(dtype):
        data = DeviceData(lanes[0].federation.dataset, device, dtype)
        engine = make_engine(lanes, data, slots=slots)
        for _ in range(ROUNDS):
            engine.run_round()
        return engine.stack.states()


def distance(one: Tensor, other: Tensor) -> float:
    return (one.double() - other.double()).abs().max().item() if one.numel() else 0.0


def distances(one: LaneState, other: LaneState) -> dict[str, float]:
    return {name: distance(one[name], other[name]) for name in other}


@dataclass(frozen=True)
class Verdict:
    """The tensor of a run's state that came nearest to what is allowed, or went furthest beyond it."""

    precision: str
    tensor: str
    difference: float
    allowed: float
    nudged: int = 0  # roundings by which the plain loop was moved to learn what is allowed

    @property
    def good(self) -> bool:
        return self.difference <= self.allowed  # False for NaN

    def __str__(self) -> str:
        nudged = f", nudged by {self.nudged}" if self.nudged else ""
        return f"{self.precision} {self.difference:.1e} of {self.allowed:.1e} allowed ({self.tensor}{nudged})"


class Truth:
    """The plain loop's result in float64, and how far from it float32 may be."""

    def __init__(self, case: Case, pool: ProcessPoolExecutor) -> None:
        self.case, self._pool = case, pool
        self._loops = {dtype: self._loop(dtype) for dtype in (torch.float64, torch.float32)}
        self._nudges: dict[int, Future[dict[str, Any]]] | None = None

    def _loop(self, dtype: torch.dtype, roundings: int = 0) -> Future[dict[str, Any]]:
        return self._pool.submit(plain_loop, self.case, dtype, roundings)

    def arrive(self) -> None:
        """Wait for the plain loops."""
        self.state = _tensors(self._loops[torch.float64])
        self.start = nn.utils.parameters_to_vector(self.case.lane(torch.float32).model.parameters()).detach()
        self._rounding = {0: distances(_tensors(self._loops[torch.float32]), self.state)}

    def judge(self, found: LaneState, precision: str, expected: LaneState | None = None) -> Verdict:
        """``found`` against the plain loop, or against another run that should be the same."""
        expected = expected or self.state
        if found.keys() != expected.keys():
            return Verdict(precision, "other tensors", float("nan"), 0.0)
        if not distance(found["params"], self.start) > MOVED:
            return Verdict(precision, "params did not move", float("nan"), 0.0)
        apart = distances(found, expected)
        verdict = self._compare(apart, precision, 0)
        for roundings in () if precision == "float64" else NUDGES:
            if verdict.good:
                break
            verdict = self._compare(apart, precision, roundings)
        return verdict

    def _compare(self, apart: dict[str, float], precision: str, nudged: int) -> Verdict:
        allowed = self._allowed(precision, nudged)
        verdicts = [Verdict(precision, name, apart[name], allowed[name], nudged) for name in apart]
        return max(verdicts, key=lambda each: (not each.good, each.difference / (each.allowed or 1.0)))

    def _allowed(self, precision: str, nudged: int) -> dict[str, float]:
        if precision == "float64":
            return dict.fromkeys(self.state, EXACT_ADAM if self.case.optimizer == "adam" else EXACT)
        factor = TF32_LOSES if precision == "tf32" else 1
        once = torch.finfo(torch.float32).eps
        largest = {name: distance(value, torch.zeros_like(value)) for name, value in self.state.items()}
        due = self._due(nudged)
        return {name: factor * (TIMES_PLAIN * due[name] + ROUNDINGS * once * largest[name]) for name in due}

    def _due(self, nudged: int) -> dict[str, float]:
        """How far plain float32 loops are from the truth, those included that start up to ``nudged`` roundings away."""
        if nudged and self._nudges is None:  # all at once: they run side by side
            self._nudges = {roundings: self._loop(torch.float32, roundings) for roundings in NUDGES}
        for roundings, loop in (self._nudges or {}).items():
            if roundings <= nudged and roundings not in self._rounding:
                self._rounding[roundings] = distances(_tensors(loop), self.state)
        known = [apart for roundings, apart in self._rounding.items() if roundings <= nudged]
        return {name: max(apart[name] for apart in known) for name in self.state}


def _tensors(loop: Future[dict[str, Any]]) -> LaneState:
    return {name: torch.from_numpy(array) for name, array in loop.result().items()}


@dataclass
class Tally:
    """What was compared, and how it went."""

    started: float = field(default_factory=time.perf_counter)
    failures: list[str] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    def line(self, name: str, verdicts: Sequence[Verdict]) -> None:
        self.verdicts += verdicts
        good = all(verdict.good for verdict in verdicts)
        self.failures += [] if good else [name]
        shown = "  ".join(f"{verdict!s:56}" for verdict in verdicts)
        print(f"{'ok  ' if good else 'FAIL'} {self.seconds:5.1f} s  {name:34} {shown}".rstrip(), flush=True)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def conclude(self, device: torch.device, replays: int) -> int:
        """Say how it went; the exit status."""
        nudged = sum(verdict.nudged > 0 for verdict in self.verdicts)
        in_float32 = sum(verdict.precision == "float32" for verdict in self.verdicts)
        where = (
            f"{len(self.verdicts)} comparisons on {device} in {self.seconds:.0f} s, {replays} replays of CUDA graphs; "
            f"{nudged} of {in_float32} in float32 lie beyond rounding, at a kink of the network"
        )
        if self.failures:
            print(f"\nThe engine DIFFERS from the plain loop in {len(self.failures)} cases ({where}):")
            print("\n".join(f"  {name}" for name in self.failures))
            return 1
        print(f"\nThe engine equals the plain loop in every case ({where}).")
        return 0


class Replays:
    """Counts replays of CUDA graphs, so that a check that never came to them does not pass for one that did."""

    def __init__(self) -> None:
        self.count = 0
        self._original = torch.cuda.CUDAGraph.replay

    def __enter__(self) -> Replays:
        def counted(graph: torch.cuda.CUDAGraph) -> None:
            self.count += 1
            self._original(graph)

        torch.cuda.CUDAGraph.replay = counted  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        torch.cuda.CUDAGraph.replay = self._original  # type: ignore[method-assign]


def check_alone(truth: Truth, device: torch.device, tally: Tally) -> dict[str, LaneState]:
    """One run against the plain loop; its last states by precision."""
    truth.arrive()
    states = {}
    for precision in PRECISIONS:
        dtype = getattr(torch, precision)
        (states[precision],) = engine_states([truth.case.lane(dtype)], device, dtype)
    tally.line(str(truth.case), [truth.judge(state, precision) for precision, state in states.items()])
    return states


def check_tf32(truth: Truth, device: torch.device, tally: Tally) -> None:
    (state,) = engine_states([truth.case.lane(torch.float32, "tf32")], device, torch.float32)
    tally.line(f"{truth.case} in tf32", [truth.judge(state, "tf32")])


def check_lanes(
    truths: Sequence[Truth], alone: dict[Case, dict[str, LaneState]], device: torch.device, tally: Tally
) -> None:
    """Runs of several algorithms in one engine, against each alone."""
    for slots, how in ((1000, "in one stack"), (2, "in chunks of 2")):
        together: dict[tuple[Case, str], LaneState] = {}
        for precision in PRECISIONS:
            dtype = getattr(torch, precision)
            lanes = {truth.case: truth.case.lane(dtype) for truth in truths}
            case_of = {id(lane): case for case, lane in lanes.items()}
            alike: dict[object, list[Lane]] = {}
            for lane in lanes.values():  # an algorithm that freezes parameters has an engine of its own
                alike.setdefault(stacking_key(lane)[0][2], []).append(lane)
            for some in alike.values():
                ordered = in_engine_order(some)
                for lane, state in zip(ordered, engine_states(ordered, device, dtype, slots), strict=True):
                    together[case_of[id(lane)], precision] = state
        for truth in truths:
            case = truth.case
            verdicts = [truth.judge(together[case, each], each, alone[case][each]) for each in PRECISIONS]
            tally.line(f"{case.network} {case.algorithm} {how}", verdicts)


def check_network(truths: Sequence[Truth], device: torch.device, tally: Tally) -> None:
    alone = {truth.case: check_alone(truth, device, tally) for truth in truths}
    in_float32 = [verdict for verdict in tally.verdicts[-2 * len(truths) :] if verdict.precision == "float32"]
    beyond = sum(verdict.nudged > 0 for verdict in in_float32)
    network = truths[0].case.network
    if beyond > MOST_AT_KINKS[network] * len(in_float32):
        tally.failures.append(f"{network}: {beyond} of {len(in_float32)} runs in float32 are beyond rounding, too many")
    plain = [truth for truth in truths if truth.case.optimizer == "plain"]
    if HAS_PRECISION and device.type == "cuda":
        for truth in plain:
            check_tf32(truth, device, tally)
    check_lanes(plain, alone, device, tally)


def check(device: torch.device, models: Sequence[str], quick: bool) -> int:
    """The exit status."""
    optimizers = ["plain", "axes"] if quick else list(OPTIMIZERS)
    algorithms = ["fedavg", "fedga", "scaffold", "fednh"] if quick else list(ALGORITHMS)
    networks = [*models, "dropout"]
    tally = Tally()
    workers = max(1, min(8, (os.cpu_count() or 2) // 2))
    # Spawned, not forked: a fork of a process that uses CUDA is broken.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawn) as pool, Replays() as replays:
        for network in networks:
            cases = [Case(network, *names) for names in itertools.product(algorithms, optimizers)]
            check_network([Truth(case, pool) for case in cases], device, tally)
    if device.type == "cuda" and not replays.count:
        tally.failures.append("no CUDA graph was ever replayed")
    return tally.conclude(device, replays.count)
