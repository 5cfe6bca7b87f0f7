"""What a client keeps between rounds (`Algorithm.client_state`), on its own disk.

A file per round. The server says with every message which was the last round of this client that it counted, since an
answer may come too late, or be lost with a server that was killed; the client goes on from the file of that round.
"""

from __future__ import annotations

import re
from pathlib import Path

from torch import Tensor

from fedga.common.files import write_whole
from fedga.common.sealed import DamagedError, seal, unseal
from fedga.errors import FedGAError

_NAME = re.compile(r"round-(\d{6})\.safetensors")


class ClientStateStore:
    """The files of one client of one run."""

    def __init__(self, folder: Path, run_id: str, client: int) -> None:
        self.folder = folder / run_id / f"client-{client}"

    def read(self, round_number: int) -> dict[str, Tensor]:
        """What the client kept after that round; version 0.1 wrote it without a digest."""
        path = self._path(round_number)
        try:
            return unseal(path).tensors
        except FileNotFoundError:
            raise FedGAError(
                f"what was kept here after round {round_number} is not in {self.folder} any more, and the run cannot "
                "go on as it began: bring it back, or start the run over in a new folder"
            ) from None
        except DamagedError as error:
            raise FedGAError(
                f"{error}: bring {path.name} back from a copy, or start the run over in a new folder"
            ) from None
        except OSError as error:
            raise FedGAError(
                f"{path} cannot be read ({error.strerror}): bring it back, or start the run over in a new folder"
            ) from error

    def write(self, round_number: int, tensors: dict[str, Tensor], counted: int) -> None:
        """Keep ``tensors`` after a round, beside those after the last ``counted`` one; others are of no more use."""
        content = seal({name: tensor.cpu() for name, tensor in tensors.items()}, {})
        write_whole(self._path(round_number), content)
        for path in self.folder.iterdir():
            match = _NAME.fullmatch(path.name)
            if match and int(match[1]) not in (counted, round_number):
                path.unlink(missing_ok=True)

    def _path(self, round_number: int) -> Path:
        return self.folder / f"round-{round_number:06d}.safetensors"
