"""Reading what the other side sends: it is compared with the declaration before any of it is decoded.

Only names, types, shapes and lengths as declared are made into numbers, by their place alone: nothing received is ever
unpickled, and nothing larger than declared is allocated.
"""

import hashlib
import io
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.common.constant import SType
from torch import Tensor, nn

from fedga.algorithms.base import Algorithm, Sent, uses_features
from fedga.engine.stack.lanes import Own
from fedga.engine.stack.stacked import StackedModel
from fedga.errors import FedGAError, quoted
from fedga.flower import wire

SCORES = ("accuracy", "loss")
MOST_SAMPLES = 10**12  # at one byte each a terabyte: no client trains on more in a round
LARGEST_WEIGHT = 1e12  # what training leads there has diverged; summed over a layer it is no float32 any more
_LONGEST_HEADER = 1024  # of an array in numpy's format; ours have 118 bytes


@dataclass(frozen=True)
class Declared:
    """An array as it must come."""

    shape: tuple[int, ...]
    types: frozenset[np.dtype]
    needed: bool = True


@dataclass(frozen=True)
class Declaration:
    """What a client may send in a run, and what it is sent."""

    model: Mapping[str, Declared]
    report: Mapping[str, Declared]
    survey: Mapping[str, Declared]
    loss: Mapping[str, Declared]  # of the received model, where a rule of selection asks
    received: Mapping[str, Declared]  # from the server
    final: Mapping[str, Declared]  # after the last round
    unsent: Mapping[str, Tensor]  # parameters and buffers that never travel, as they were at first
    frozen: str  # a digest of the parameters that stand still; empty where there are none
    others: bool = False  # whether clients are other people's ClientApps, which send metrics of their own beside ours

    @property
    def most_bytes(self) -> int:
        """Of all arrays in a reply, with their headers."""
        asked = (self.model, self.report, self.survey, self.loss, self.final)
        arrays = [array for part in asked for array in part.values()]
        return sum(8 * math.prod(array.shape) + _LONGEST_HEADER for array in arrays)


def declare(
    network: nn.Module, algorithm: Algorithm, num_classes: int, device: torch.device, *, others: bool = False
) -> tuple[StackedModel, Declaration]:
    """The network of a run as the engine stacks it, and what of it and of the algorithm's messages travels."""
    model = StackedModel(network).to(device)
    if uses_features(algorithm):
        model.keep_features()
    sizes = {"classes": num_classes, "parameters": model.params.total, "features": model.params.features or 0}
    types, state = _types(torch.float32, model.dtype), network.state_dict()
    all_tensors = dict(network.named_buffers()) | state

    def beside(sent: Sequence[Sent]) -> dict[str, Declared]:
        return {one.name: Declared(one.shape(sizes), types) for one in sent}

    # Other people's clients answer with a state_dict, which lacks some constants.
    lacking = model.buffers.shapes.keys() - state.keys() if others else set()
    unsent = {name: all_tensors[name] for name in _unsent_names(model, algorithm) | lacking}
    declaration = Declaration(
        model=_declared_model(model, state, unsent),
        report=beside([sent for sent in algorithm.uploads if sent.name != "survey"]),
        survey=beside([sent for sent in algorithm.uploads if sent.name == "survey"]),
        loss=beside([Sent("loss", "1")]),
        received=beside(algorithm.downloads),
        final=beside(algorithm.final_uploads),
        unsent=unsent,
        frozen=_digest({name: unsent[name] for name in model.stands_still}),
        others=others,
    )
    return model, declaration


def _unsent_names(model: StackedModel, algorithm: Algorithm) -> frozenset[str]:
    """Parameters that stand still or stay at a client, and buffers that stay with them."""
    own = Own.of(algorithm, model)
    if own is None:
        return model.stands_still
    places = ((model.params, own.params), (model.buffers, own.buffers))
    stays = [name for layout, at in places for name, part in layout.slices().items() if bool((at == part.start).any())]
    return model.stands_still | set(stays)


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32] if tensors else ""


def _declared_model(model: StackedModel, state: Mapping[str, Tensor], unsent: Collection[str]) -> dict[str, Declared]:
    """Parameters and buffers, which must come, and constants such as counters, which may."""
    needed = {
        name: Declared(tuple(shape), _types(model.dtype, state[name].dtype if name in state else model.dtype))
        for name, shape in (model.params.shapes | model.buffers.shapes).items()
        if name not in unsent
    }
    constants = {
        name: Declared(tuple(tensor.shape), _types(tensor.dtype), needed=False)
        for name, tensor in state.items()
        if name not in needed
    }
    return needed | constants


def declared_pixels(channels: int) -> dict[str, Declared]:
    """How a server says that samples become inputs."""
    return dict.fromkeys(("scale", "shift"), Declared((channels,), _types(torch.float32, torch.float64)))


def _types(*types: torch.dtype) -> frozenset[np.dtype]:
    try:
        return frozenset(torch.empty(0, dtype=kind).numpy().dtype for kind in types)
    except TypeError:
        names = ", ".join(sorted({str(kind) for kind in types}))
        raise FedGAError(f"the model holds {names}, which Flower cannot carry: make the model one of float32") from None


# --- arrays ----------------------------------------------------------------------------------------------------------


def read_arrays(content: RecordDict, name: str, declared: Mapping[str, Declared]) -> dict[str, Tensor]:
    """The arrays of a record, all of which are as declared; those that need not come are not decoded."""
    record = content.array_records.get(name, ArrayRecord())
    extra = [key for key in record if key not in declared]
    if extra:
        raise FedGAError(f"its record {name} holds {_some(extra)}, which nobody declared: use the same model")
    missing = [key for key, each in declared.items() if each.needed and key not in record]
    if missing:
        raise FedGAError(f"its record {name} has no entry for {_some(missing)}: use the same model and algorithm")
    numbers = {key: _numbers(key, array, declared[key]) for key, array in record.items()}  # all before any is copied
    return {key: torch.from_numpy(found.copy(order="C")) for key, found in numbers.items() if declared[key].needed}


def _numbers(name: str, array: Array, declared: Declared) -> np.ndarray:
    """The numbers in an array's bytes, where they lie; refuses what is not as declared, outside and in its header."""
    name, wanted = quoted(name), " or ".join(sorted(map(str, declared.types)))
    if array.stype != SType.NUMPY:
        raise FedGAError(f"{name} comes as {quoted(array.stype)}, not in numpy's format: send {SType.NUMPY}")
    if array.dtype not in {str(kind) for kind in declared.types}:
        raise FedGAError(f"{name} is of type {quoted(array.dtype)}, where {wanted} is declared: send that")
    shape, by_column, kind, offset = _header(name, array.data[:_LONGEST_HEADER])
    if kind not in declared.types or str(kind) != array.dtype:
        raise FedGAError(f"the bytes of {name} are of type {quoted(kind)}, where {wanted} is declared")
    for found in (tuple(array.shape), shape):
        if found != declared.shape:
            raise FedGAError(f"{name} has shape {quoted(found)}, but {declared.shape} here: use the same model")
    length, expected = len(array.data) - offset, math.prod(declared.shape) * kind.itemsize
    if length != expected:
        raise FedGAError(f"{name} has {length:,} bytes of numbers, where {expected:,} are declared")
    return np.frombuffer(array.data, kind, offset=offset).reshape(declared.shape, order="F" if by_column else "C")


def _header(name: str, beginning: bytes) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    """Shape, order and type that an array's own header says, and how long it is."""
    stream = io.BytesIO(beginning)
    formats = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        read = formats[np.lib.format.read_magic(stream)]
        shape, by_column, kind = read(stream, max_header_size=_LONGEST_HEADER)
    except Exception as error:  # numpy parses a literal: whatever it raises there, these bytes are no array
        raise FedGAError(f"{name} is not an array in numpy's format ({type(error).__name__})") from None
    return tuple(shape), bool(by_column), kind, stream.tell()


def vectors(model: StackedModel, named: Mapping[str, Tensor], unsent: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """A model by name as parameter and buffer vector; what is not sent is given by ``unsent``."""
    named = {**unsent, **named}
    for name, shape in (model.params.shapes | model.buffers.shapes).items():
        if name not in named or named[name].shape != shape:
            found = f"shape {tuple(named[name].shape)}" if name in named else "no entry"
            raise FedGAError(f"{found} for {name}, which has shape {tuple(shape)} here: use the same model")
    return model.params.flatten(named).to(model.dtype), model.buffers.flatten(named).to(model.dtype)


# --- messages of a client --------------------------------------------------------------------------------------------


Read = TypeVar("Read")


def attempt(reply: Message, read: Callable[[Message], Read]) -> Read:
    """What a reply says; whatever goes wrong in reading it is the fault of who sent it, in one sentence."""
    try:
        if reply.has_error():
            raise FedGAError(wire.reason(reply))
        return read(reply)
    except FedGAError:
        raise
    except Exception as error:  # not foreseen: a reply that gets through the checks and cannot be read all the same
        raise FedGAError(f"its reply cannot be read ({type(error).__name__}: {quoted(error, 200)})") from error


@dataclass(frozen=True)
class Reply:
    """A client's answer to a round of training."""

    params: Tensor  # [parameters]
    buffers: Tensor  # [buffers]
    examples: float
    report: dict[str, Tensor]

    @property
    def is_finite(self) -> bool:
        """Whether a mean with this model is one; weights beyond all bounds are on their way to infinity."""
        return bool((self.params.abs() <= LARGEST_WEIGHT).all() and self.buffers.isfinite().all())

    @property
    def reports_finite(self) -> bool:
        return all(bool(tensor.isfinite().all()) for tensor in self.report.values())


def read_training(
    model: StackedModel, declaration: Declaration, unsent: Mapping[str, Tensor], message: Message
) -> Reply:
    """``unsent`` are the parts of the model that do not travel, as the server has them: `inspect` sees those."""
    content = _checked_content(message, declaration, arrays=(wire.ARRAYS, wire.REPORT), metrics=(wire.EXAMPLES,))
    params, buffers = vectors(model, read_arrays(content, wire.ARRAYS, declaration.model), unsent)
    report = read_arrays(content, wire.REPORT, declaration.report)
    row = wire.metrics_of(message)
    examples = read_weight(row) if declaration.others else _count(row, least=1)
    return Reply(params, buffers, examples, {name: each.to(model.dtype) for name, each in report.items()})


def read_report(declared: Mapping[str, Declared], declaration: Declaration, message: Message) -> dict[str, Tensor]:
    """An answer to a survey, or after the last round."""
    content = _checked_content(message, declaration, arrays=(wire.REPORT,))
    found = read_arrays(content, wire.REPORT, declared)
    return {name: tensor.to(torch.get_default_dtype()) for name, tensor in found.items()}


def read_scores(declaration: Declaration, message: Message) -> tuple[int, dict[str, float]]:
    """How many samples a client holds out, perhaps none, and what the model does on them."""
    _checked_content(message, declaration, metrics=(wire.EXAMPLES, *SCORES))
    row = wire.metrics_of(message)
    examples = _count(row, least=0)
    if not examples:
        return 0, {}
    values = {name: _number(row, name) for name in SCORES}
    if not 0 <= values["accuracy"] <= 1:
        raise FedGAError(f"its accuracy is {values['accuracy']:g}, where a share from 0 to 1 belongs")
    if not 0 <= values["loss"] < math.inf:
        raise FedGAError(f"its loss is {values['loss']:g}, where a finite number from 0 on belongs")
    return examples, values


def read_metrics(message: Message) -> tuple[float, MetricRecord]:
    """What a client of somebody else's reports, and how much that counts: not at all where it holds out no samples."""
    row = wire.metrics_of(message) if message.has_content() else MetricRecord()
    return (0.0 if row.get(wire.EXAMPLES) == 0 else read_weight(row)), row


def read_weight(row: MetricRecord) -> float:
    """How much a client of somebody else's counts: Flower takes any number as its samples, we any that can be one."""
    weight = _number(row, wire.EXAMPLES)
    if not 0 < weight <= MOST_SAMPLES:
        raise FedGAError(f"it counts {weight:g} samples, where a number above 0 and up to {MOST_SAMPLES:.0e} belongs")
    return weight


def mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """Weighted; with shares, since a sum of finite numbers need not be one."""
    total = math.fsum(weights)
    return math.fsum(weight / total * value for value, weight in zip(values, weights, strict=True))


def _checked_content(
    message: Message, declaration: Declaration, arrays: Collection[str] = (), metrics: Collection[str] = ()
) -> RecordDict:
    """The content of a message, nothing in it beyond what is declared; metrics of other people's apps are their own."""
    if not message.has_content():
        raise FedGAError("it is a message without content")
    content = message.content
    extra = [name for name in content.array_records if name not in arrays]
    if not declaration.others:
        extra += [name for name in content.metric_records if not metrics or name != wire.METRICS]
        extra += [*content.config_records, *(name for name in wire.metrics_of(message) if name not in metrics)]
    if extra:
        raise FedGAError(f"it sends {_some(extra)}, which nobody declared: use the same version of fedga everywhere")
    return content


def _count(row: MetricRecord, least: int) -> int:
    number = _number(row, wire.EXAMPLES)
    if not least <= number <= MOST_SAMPLES or number != int(number):
        raise FedGAError(f"it counts {number:g} samples: whole numbers from {least} to {MOST_SAMPLES:.0e} are allowed")
    return int(number)


def _number(row: MetricRecord, name: str) -> float:
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise FedGAError(f"it has no number {name}")
    return float(value)


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(quoted(name, 40) for name in names[:3])
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")
