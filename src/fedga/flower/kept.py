"""What a client keeps between rounds (`Algorithm.client_state`), on its own disk.

A file per round, of which two are left: a server that was killed asks for its last round again, and a client that
answers twice must start both times from the same place.
"""

from __future__ import annotations

import re
from pathlib import Path

from torch import Tensor

from fedga.errors import FedGAError
from fedga.files import write_whole

_NAME = re.compile(r"round-(\d{6})\.safetensors")


class Kept:
    """The files of one client of one run."""

    def __init__(self, folder: Path, run_id: str, client: int) -> None:
        self.folder = folder / run_id / f"client-{client}"

    def before(self, round_number: int) -> dict[str, Tensor] | None:
        """What the client kept when this round began; None before its first one."""
        earlier = [number for number in self._rounds() if number < round_number]
        if not earlier:
            return None
        from safetensors import SafetensorError
        from safetensors.torch import load

        path = self._path(max(earlier))
        try:
            return load(path.read_bytes())
        except (SafetensorError, OSError) as error:
            raise FedGAError(
                f"{path} cannot be read ({error}): delete the folder {self.folder.parent} and start the run over"
            ) from error

    def after(self, round_number: int, tensors: dict[str, Tensor]) -> None:
        """Keep ``tensors`` for the next round, and what this one began from."""
        from safetensors.torch import save

        content = save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()})
        write_whole(self._path(round_number), content)
        rounds = self._rounds()
        began_from = max((number for number in rounds if number < round_number), default=0)
        for number in rounds:
            if number < began_from or number > round_number:  # of no use any more, or undone by a killed server
                self._path(number).unlink(missing_ok=True)

    def _path(self, round_number: int) -> Path:
        return self.folder / f"round-{round_number:06d}.safetensors"

    def _rounds(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        found = (_NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted(int(match[1]) for match in found if match)
