"""Directions for heads that nobody trains."""

import torch
import torch.nn.functional as F
from torch import Tensor


def orthonormal_rows(classes: int, features: int) -> Tensor:
    """``[classes, features]``; a simplex frame where there are too few features for it."""
    if classes > features:
        return simplex_frame(classes, features)
    return torch.linalg.qr(_drawn(features, features))[0][:classes]


def simplex_frame(classes: int, features: int) -> Tensor:
    """Unit rows ``[classes, features]``, any two at the cosine ``-1/(classes - 1)``: as far apart as they can be.

    That takes ``features >= classes - 1``. Where there are fewer, the rows are random directions.

    >>> frame = simplex_frame(3, 5)
    >>> torch.allclose(frame @ frame.T, 1.5 * torch.eye(3, dtype=torch.float64) - 0.5)
    True
    """
    if classes - 1 > features:
        return F.normalize(_drawn(classes, features), dim=-1)
    _, axes = torch.linalg.eigh(torch.eye(classes, dtype=torch.float64) - 1 / classes)
    corners = axes[:, 1:]  # the first axis, of eigenvalue 0, is that of equal entries
    turned = corners @ torch.linalg.qr(_drawn(features, features))[0][: classes - 1]
    return F.normalize(turned, dim=-1)


def _drawn(rows: int, columns: int) -> Tensor:
    """Normal random numbers, the same every time."""
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
