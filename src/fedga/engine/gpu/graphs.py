"""Local training as one CUDA graph: recorded once for a shape of work, then replayed round after round.

A round of small networks is thousands of short kernels, and starting them one by one from Python takes longer than
running them. The recording reads and writes fixed tensors, so every round its inputs are copied into place.
"""

import gc
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedga.engine.device_data import DeviceData
from fedga.engine.local import LocalResult, Slots, train_locally
from fedga.engine.stack.stacked import StackedModel


class GraphCache:
    """`train_locally`, from a recording where there is one. The first round of a shape runs plainly and warms up."""

    def __init__(self) -> None:
        # By signature: the tensors that a recording reads, the recording, and the tensors it writes; None before it.
        self._recordings: dict[Any, tuple[Slots, torch.cuda.CUDAGraph, LocalResult] | None] = {}
        self._pool: Any = None

    def train(
        self, model: StackedModel, data: DeviceData, slots: Slots, optimizer: str, momentum: float
    ) -> LocalResult:
        """The result lies in tensors that the next call overwrites."""
        key = _signature(slots)
        if key not in self._recordings:
            self._recordings[key] = None
            return train_locally(model, data, slots, optimizer, momentum)
        recording = self._recordings[key]
        if recording is None:
            own, graph = _clone(slots), torch.cuda.CUDAGraph()
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            torch.cuda.synchronize(data.device)
            gc.collect()
            gc.disable()  # what it frees on the device would end the recording
            try:
                with torch.cuda.graph(graph, pool=self._pool):
                    result = train_locally(model, data, own, optimizer, momentum)
            finally:
                gc.enable()
            recording = self._recordings[key] = own, graph, result
        own, graph, result = recording
        for place, value in zip(_tensors(own), _tensors(slots), strict=True):
            place.copy_(value)
        graph.replay()
        return result


def _signature(slots: Slots) -> Any:
    """What a recording depends on besides the values in its tensors."""
    segments = tuple((part.algorithm, part.slots.start, part.slots.stop) for part in slots.segments)
    shapes = tuple((tensor.shape, tensor.dtype) for tensor in _tensors(slots))
    absent = [part is None for part in (slots.weight_decay, slots.clip, slots.centralize)]
    return segments, shapes, tuple(absent), slots.augmentation


def _tensors(value: Any) -> Iterator[Tensor]:
    """All tensors inside a value, in a fixed order."""
    inner: Iterable[Any] = value if isinstance(value, list | tuple) else ()
    if isinstance(value, Tensor):
        yield value
    elif is_dataclass(value):
        inner = (getattr(value, each.name) for each in fields(value))
    elif isinstance(value, dict):
        inner = (value[name] for name in sorted(value))
    for each in inner:
        yield from _tensors(each)


def _clone(value: Any) -> Any:
    """The same value with tensors of its own."""
    if isinstance(value, Tensor):
        return value.clone()
    if is_dataclass(value) and not isinstance(value, type) and any(True for _ in _tensors(value)):
        return replace(value, **{each.name: _clone(getattr(value, each.name)) for each in fields(value)})
    if isinstance(value, dict):
        return {name: _clone(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_clone(inner) for inner in value)
    return value
