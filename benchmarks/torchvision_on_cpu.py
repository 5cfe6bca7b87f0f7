"""Lets `import torchvision` succeed beside a CPU build of torch, for peers that import it and use no operator of it.

PyPI's torchvision is compiled against CUDA: beside a CPU build its operators do not load, and the import stops where
two of them are described. Declaring the two, with no body, is enough.
"""

from __future__ import annotations

import sys

import torch

_DECLARED: list[torch.library.Library] = []  # a library that is collected takes its operators with it


def make_importable() -> None:
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _DECLARED.append(library)
