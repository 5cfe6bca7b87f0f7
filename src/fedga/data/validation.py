"""Samples of every client that are kept from training, to choose methods and settings by: ``validate``."""

import numpy as np

from fedga.data.federation import Federation
from fedga.errors import FedGAError


def hold_out(federation: Federation, share: float, seed: int) -> Federation:
    """The federation without ``share`` of every client's samples, which it keeps as `Federation.held_out`.

    Which ones depends on the seed and on a sample's place in its client's list alone. A client whose share is no whole
    number gives the next one as often as makes the share right in the mean; everybody keeps a sample to train on.
    """
    if not share:
        return federation
    import torch  # here, since fedga.data stays light

    from fedga.common import streams

    sizes, count = torch.from_numpy(federation.sizes), federation.num_clients
    of_client = streams.fold(torch.tensor(streams.key(seed, "validate")), torch.arange(count))
    rounding = streams.uniform(streams.fold(of_client, torch.tensor(-1)))
    wanted = torch.minimum((share * sizes + rounding).long(), sizes - 1).numpy()
    if not wanted.any():
        few = f"--validate {share:g} holds out none of the {len(federation.indices):,} samples of {count:,} clients"
        raise FedGAError(f"{few}: give a larger share, or fewer clients")
    owners = np.repeat(np.arange(count), federation.sizes)
    starts = np.repeat(federation.offsets[:-1], federation.sizes)
    places = torch.from_numpy(np.arange(len(owners)) - starts)
    draws = streams.fold(of_client[torch.from_numpy(owners)], places).numpy()
    held = np.zeros(len(owners), dtype=bool)
    held[np.lexsort((draws, owners))] = np.arange(len(owners)) - starts < wanted[owners]
    offsets = np.concatenate([[0], np.cumsum(federation.sizes - wanted)])
    return Federation(federation.dataset, federation.indices[~held], offsets, federation.indices[held])
