"""Samples on the device: once, as they are stored (uint8 for pictures), however many runs use them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fedga.common import streams
from fedga.data.federation import Dataset, Federation
from fedga.engine.augment import PaddedPictures
from fedga.engine.gpu.layers import runs_kernels
from fedga.errors import FedGAError
from fedga.spec.augmentation import Augmentation

UNCHANGED = Augmentation()
RESIDENT_SHARE = 0.2  # of the free memory, for what clients keep between rounds


@dataclass(frozen=True)
class InputScaling:
    """The affine map from stored values to a network's inputs: ``x * scale + shift`` per channel (or feature)."""

    scale: Tensor  # [..., channels]
    shift: Tensor  # [..., channels]

    @classmethod
    def of(cls, dataset: Dataset, standardize: bool, dtype: torch.dtype = torch.float32) -> Self:
        """Pictures go to [0, 1], or, standardised, every channel to mean 0 and deviation 1 over the training split."""
        inputs = dataset.train_inputs
        channels = inputs.shape[1]
        base = 1.0 / dataset.input_scale if inputs.dtype == np.uint8 else 1.0
        if not standardize:
            return cls(torch.full((channels,), base, dtype=dtype), torch.zeros(channels, dtype=dtype))
        mean, deviation = _channel_statistics(dataset)
        scale, shift = torch.from_numpy(1.0 / deviation), torch.from_numpy(-mean / deviation)
        return cls(scale.to(dtype), shift.to(dtype))

    def apply(self, inputs: Tensor) -> Tensor:
        """Stored ``[..., samples, channels, *pixels]`` as floats; leading axes are those of ``scale``."""
        lead = self.scale.shape[:-1]
        shape = (*lead, 1, self.scale.shape[-1], *[1] * (inputs.dim() - len(lead) - 2))
        return inputs.to(self.scale.dtype, copy=True).mul_(self.scale.view(shape)).add_(self.shift.view(shape))

    def __getitem__(self, which: slice | Tensor | None) -> Self:
        return type(self)(self.scale[which], self.shift[which])

    def to(self, device: torch.device, dtype: torch.dtype | None = None) -> Self:
        return type(self)(self.scale.to(device, dtype), self.shift.to(device, dtype))


@lru_cache(maxsize=8)
def _channel_statistics(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation (1 where it is 0) per channel; of pictures from counts of their values, not a float copy."""
    inputs = dataset.train_inputs
    if inputs.dtype == np.uint8:
        values = np.arange(256.0)
        channels = range(inputs.shape[1])
        counts = np.stack([np.bincount(inputs[:, channel].reshape(-1), minlength=256) for channel in channels])
        mean = counts @ values / counts.sum(1)
        deviation = np.sqrt((counts * (values - mean[:, None]) ** 2).sum(1) / counts.sum(1))
    else:
        axes = (0, *range(2, inputs.ndim))
        mean, deviation = inputs.mean(axes, dtype=np.float64), inputs.std(axes, dtype=np.float64)
    return mean, np.where(deviation == 0, 1.0, deviation)


class DeviceData:
    """A data set's arrays as tensors on one device."""

    def __init__(self, dataset: Dataset, device: torch.device, dtype: torch.dtype | None = None) -> None:
        """``dtype`` is that of the networks' inputs, else float32."""

        def tensor(array: np.ndarray) -> Tensor:
            return torch.from_numpy(np.require(array, requirements=["C", "W"])).to(device)

        self.dataset, self.device, self._dtype = dataset, device, dtype or torch.float32
        self.train_inputs, self.train_targets = tensor(dataset.train_inputs), tensor(dataset.train_targets).long()
        self.test_inputs, self.test_targets = tensor(dataset.test_inputs), tensor(dataset.test_targets).long()
        self._padded: PaddedPictures | None = None

    def pixels(self, standardize: bool) -> InputScaling:
        """How stored samples become a network's inputs."""
        return InputScaling.of(self.dataset, standardize, self._dtype).to(self.device)

    def scored_on(self, places: Tensor | None) -> tuple[Tensor, Tensor]:
        """Stored inputs and targets that models are scored on: at ``places`` of the training split, else the test's."""
        if places is None:
            return self.test_inputs, self.test_targets
        return self.gather(places), self.train_targets[places]

    def gather(self, places: Tensor) -> Tensor:
        """Stored training inputs at ``places``, of any shape; whole rows, which is ten times faster than indexing."""
        rows = self.train_inputs.flatten(1).index_select(0, places.flatten())
        return rows.view(*places.shape, *self.train_inputs.shape[1:])

    def batches(
        self, places: Tensor, scaling: InputScaling, moves: Tensor | None = None, augmentation: Augmentation = UNCHANGED
    ) -> Tensor:
        """Training inputs at ``places [copies, samples]`` as a network takes them; ``scaling`` has a row per copy.

        ``moves``, shaped like places, says how each picture is changed (`fedga.engine.augment`).
        """
        if runs_kernels(scaling.scale):
            from fedga.engine.gpu.kernels import samples

            shift = augmentation.shift if moves is not None else 0
            return samples.batches(self.train_inputs, places, scaling.scale, scaling.shift, moves, shift)
        if moves is None:
            return scaling.apply(self.gather(places))
        if self._padded is None or self._padded.augmentation != augmentation:
            self._padded = PaddedPictures(self.train_inputs, augmentation)
        return scaling.apply(self._padded.gather(places, moves))

    def has_room_for(self, size: int) -> bool:
        """Whether ``size`` more bytes may stay on the device for the whole run."""
        if self.device.type == "cpu":
            return True
        return size < RESIDENT_SHARE * torch.cuda.mem_get_info(self.device)[0]


class FederationTable:
    """Several federations of one data set, to be looked up by (federation, client) on the device."""

    def __init__(
        self, federations: Sequence[Federation], device: torch.device, dtype: torch.dtype = torch.float32
    ) -> None:
        """``dtype`` is that of class counts."""
        self.device = device
        unique = list({id(federation): federation for federation in federations}.values())
        order = {id(federation): position for position, federation in enumerate(unique)}
        self.of_lane = torch.tensor([order[id(federation)] for federation in federations], device=device)
        bases = np.cumsum([0, *(len(federation.indices) for federation in unique)])
        indices = np.concatenate([f.indices for f in unique]).astype(np.int64, copy=False)
        self.indices = torch.from_numpy(indices).to(device)
        starts = np.stack([f.offsets[:-1] + base for f, base in zip(unique, bases, strict=False)])
        self.starts = torch.from_numpy(starts).to(device)  # [federations, clients]
        self.sizes = torch.from_numpy(np.stack([f.sizes for f in unique])).to(device)
        self.class_counts = torch.from_numpy(np.stack([f.class_counts for f in unique])).to(device, dtype)
        self.largest = int(max(f.sizes.max() for f in unique))

    def samples(self, lanes: Tensor, clients: Tensor, positions: Tensor) -> Tensor:
        """Places in the training split of samples ``positions [slots, ...]`` of the slots' clients."""
        starts = self.starts[self.of_lane[lanes], clients]
        return self.indices[starts.view(-1, *[1] * (positions.dim() - 1)) + positions]

    def everyone(self, lanes: Tensor) -> tuple[Tensor, Tensor]:
        """All samples that clients hold in each lane, padded to one length: places, and their owners (-1: padding)."""
        which = self.of_lane[lanes]
        sizes = self.sizes[which]  # [lanes, clients]
        ends = sizes.cumsum(1)
        position = torch.arange(int(ends[:, -1].max()), device=self.device).expand(len(lanes), -1).contiguous()
        owners = torch.searchsorted(ends, position, right=True)
        real = position < ends[:, -1:]
        places = self.indices[torch.where(real, self.starts[which][:, :1] + position, 0)]
        return places, torch.where(real, owners, -1)

    def client_means(self, lanes: Tensor, values: Tensor, owners: Tensor) -> Tensor:
        """Mean of per-sample values over every client's samples, ``[lanes, clients]``; summed in one fixed order."""
        sizes = self.sizes[self.of_lane[lanes]]
        running = torch.where(owners >= 0, values, 0.0).double().cumsum(1)
        totals = running.gather(1, sizes.cumsum(1) - 1).diff(dim=1, prepend=running.new_zeros(len(lanes), 1))
        return (totals / sizes).to(values.dtype)


def auxiliary_samples(dataset: Dataset, seed: int, per_class: int, held_out: np.ndarray | None = None) -> np.ndarray:
    """Samples of every class that the server holds, for those who need some: places, ``[classes, per_class]``.

    None of them is ``held_out`` of training.
    """
    generator = streams.numpy_generator(seed, "auxiliary")
    free = np.ones(len(dataset.train_targets), dtype=bool)
    if held_out is not None:
        free[held_out] = False
    by_class = [np.flatnonzero(free & (dataset.train_targets == label)) for label in range(dataset.num_classes)]
    empty = [name for name, places in zip(dataset.class_names, by_class, strict=True) if not len(places)]
    if empty:
        raise FedGAError(
            f"the training split of {dataset.name} has no sample of class {', '.join(empty)}, and this algorithm or "
            "rule needs samples of every class on the server: choose another one"
        )
    return np.stack([generator.choice(places, per_class, replace=len(places) < per_class) for places in by_class])
