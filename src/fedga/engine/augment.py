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
    """Stored pictures with a border of zeros, from which a moved picture is cut as a window."""

    def __init__(self, pictures: Tensor, shift: int) -> None:
        """``pictures [samples, channels, height, width]``."""
        self.shift = shift
        height, width = pictures.shape[-2:]
        padded = F.pad(pictures, (shift,) * 4)
        # [samples, channels, place down, place right, height, width]: views of one tensor
        self.windows = padded.unfold(2, height, 1).unfold(3, width, 1)

    def gather(self, places: Tensor, moves: Tensor) -> Tensor:
        """The pictures at ``places``, changed, in places' shape."""
        span = 2 * self.shift + 1
        flat, codes = places.flatten(), moves.flatten()
        down, right = codes // 2 // span, codes // 2 % span
        # The window that lies further up shows the picture further down.
        found = self.windows[flat, :, 2 * self.shift - down, 2 * self.shift - right]
        mirrored = (codes % 2 > 0).view(-1, 1, 1, 1)
        found = torch.where(mirrored, found.flip(-1), found)
        return found.view(*places.shape, *found.shape[1:])
