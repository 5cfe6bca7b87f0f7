"""Pictures mirrored and moved while clients train: draws by counter, the same on every engine.

A change is one number per picture, ``((dy + s) (2s + 1) + dx + s) 2 + mirrored`` for moves of up to ``s`` pixels: what
the gather from stored pictures needs to turn into indices.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fedga.common import streams
from fedga.spec.augmentation import Augmentation

_HALF = (1 << 31) - 1


def draw_moves(keys: Tensor, shape: Sequence[int], augmentation: Augmentation) -> Tensor:
    """How every picture of every step is changed, ``[clients, *shape]`` of steps and batch, from a key per client."""
    words = keys
    for length in shape:
        words = streams.fold(words[..., None], torch.arange(length, device=keys.device))
    return move_of(words, augmentation)


def move_of(words: Tensor, augmentation: Augmentation) -> Tensor:
    """A change from 64 random bits: the lowest mirrors, 31 above move down or up, 31 above those right or left."""
    span = 2 * augmentation.shift + 1
    down, right = ((words >> 1) & _HALF) % span, ((words >> 32) & _HALF) % span
    mirrored = (words & 1) if augmentation.mirror else torch.zeros_like(words)
    return (down * span + right) * 2 + mirrored


class PaddedPictures:
    """Stored pictures with a border of zeros, and mirrored copies beside them: every change is a window of these."""

    def __init__(self, pictures: Tensor, augmentation: Augmentation) -> None:
        """``pictures [samples, channels, height, width]``."""
        shift = augmentation.shift
        self.augmentation, self.shape = augmentation, pictures.shape[1:]
        padded = F.pad(pictures, (shift,) * 4)
        _, _, of_row, _ = padded.stride()
        # The window that lies further up shows the picture further down; mirrored pictures begin behind all others.
        up, left = torch.meshgrid(*[torch.arange(2 * shift, -1, -1, device=pictures.device)] * 2, indexing="ij")
        windows = torch.stack([up * of_row + left, up * of_row + left.flip(1) + padded.numel()], dim=-1)
        self.windows = windows.flatten()  # where the window of every change begins, counted from that of its picture
        if augmentation.mirror:
            padded = torch.cat([padded, padded.flip(-1)])
        self.strides = padded.stride()
        # All that lies between the first and the last pixel of a window: one run of memory is copied many times
        # faster than its rows. There is one such run from every place on.
        length = 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides[1:], strict=True))
        self.runs = padded.view(-1).as_strided((padded.numel() - length + 1, length), (1, 1))

    def gather(self, places: Tensor, moves: Tensor) -> Tensor:
        """The pictures at ``places``, changed, in places' shape."""
        runs = self.runs.index_select(0, (places * self.strides[0] + self.windows[moves]).flatten())
        found = runs.as_strided((len(runs), *self.shape), (runs.stride(0), *self.strides[1:]))
        return found.view(*places.shape, *self.shape)
