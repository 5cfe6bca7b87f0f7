"""Why a plugin cannot be mapped over clients, and which of its lines is at fault."""

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch.overrides import TorchFunctionMode

from fedga.common.tracing import line_among, line_of

DRAWS = (
    "draws at random, so that no run could be repeated: leave the draw out, or draw with fedga.common.streams from the "
    "number of the round; a selection rule has choice.draws"
)

# What PyTorch says when it cannot map a function over clients, and what to do about it.
_CANNOT_MAP = {
    "calling .item()": "takes a number out of a tensor (.item(), int(), float()): compute with the tensor itself",
    "control flow": "branches on the value of a tensor (if, while, assert, and, or): use torch.where instead",
    "boolean mask": "indexes with a mask (x[mask]), whose size is unknown: multiply by the mask, or use torch.where",
    "dynamic shape": "makes a tensor whose size depends on values (nonzero, unique): use torch.where on whole tensors",
    "random operation": DRAWS,
    "doesn't match the broadcast shape": "writes into a tensor it made itself: write x = x + y instead of x += y",
    "is not possible because there exists": "writes into a tensor it made itself: use torch.where or F.one_hot instead",
    "data pointer": "turns a tensor into numbers of Python or NumPy (.tolist(), .numpy()): compute with torch alone",
    "one_hot": "calls one_hot without the number of classes: write F.one_hot(targets, logits.shape[-1])",
    "does not require grad": "calls torch.autograd itself: use torch.func.grad",
}


def why_not_mapped(error: Exception, files: Sequence[Path]) -> str:
    """The rest of a sentence, with the line of the user's files; empty where the error has another cause."""
    remedy = next((remedy for sign, remedy in _CANNOT_MAP.items() if sign in str(error)), "")
    return remedy and remedy + in_brackets(line_of(error, *files))


def in_brackets(line: str) -> str:
    return f" ({line})" if line else ""


class FirstChange(TorchFunctionMode):
    """While it is on, ``line`` becomes that of the files in which a call of torch first changed what ``look`` sees."""

    def __init__(self, look: Callable[[], Any], *files: Path) -> None:
        super().__init__()
        self.look, self.files, self.before, self.line = look, files, look(), ""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        if not self.line and self.look() != self.before:
            self.line = line_among(traceback.extract_stack(), self.files)
        return found
