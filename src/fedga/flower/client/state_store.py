"""What a client keeps between rounds (`Algorithm.client_state`), on its own disk, a file per round.

An answer may be late or lost: the server's message says which round of this client counted last, and that file is used.
"""

import re
from pathlib import Path

from torch import Tensor

from fedga.algorithms.base import Tensors
from fedga.common.files import write_whole
from fedga.common.sealed import DamagedError, seal, unseal
from fedga.errors import FedGAError

_NAME = re.compile(r"round-(\d{6})\.safetensors")


class ClientStateStore:
    def __init__(self, folder: Path, run_id: str, client: int) -> None:
        self.folder = folder / run_id / f"client-{client}"

    def read(self, round_number: int) -> dict[str, Tensor]:
        """What the client kept after that round; version 0.1 wrote it without a digest."""
        path, cure = self._path(round_number), "or start the run over in a new folder"
        try:
            return unseal(path).tensors
        except FileNotFoundError:
            kept = f"what was kept here after round {round_number}"
            raise FedGAError(f"{kept} is not in {self.folder} any more: bring it back, {cure}") from None
        except DamagedError as error:
            raise FedGAError(f"{error}: bring {path.name} back from a copy, {cure}") from None
        except OSError as error:
            raise FedGAError(f"{path} cannot be read ({error.strerror}): bring it back, {cure}") from error

    def write(self, round_number: int, tensors: Tensors, counted: int) -> None:
        """Keep ``tensors`` after a round, beside those after the last ``counted`` one; others are of no more use."""
        content = seal({name: tensor.cpu() for name, tensor in tensors.items()}, {})
        write_whole(self._path(round_number), content)
        for path in self.folder.iterdir():
            match = _NAME.fullmatch(path.name)
            if match and int(match[1]) not in (counted, round_number):
                path.unlink(missing_ok=True)

    def _path(self, round_number: int) -> Path:
        return self.folder / f"round-{round_number:06d}.safetensors"
