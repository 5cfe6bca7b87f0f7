"""Who trains in a round and on which samples in which order: index tensors, built on the device from counters."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedga.common import streams


def client_draws(seeds: list[int], round_number: int, num_clients: int, device: torch.device) -> Tensor:
    """One uniform number per run and client, ``[runs, clients]``: the same clients for every algorithm of a seed."""
    keys = torch.tensor([streams.key(seed, "clients", round_number) for seed in seeds], device=device)
    return streams.uniform(streams.fold(keys[:, None], torch.arange(num_clients, device=device)))


def client_keys(seeds: list[int], purpose: str, round_number: int, clients: Tensor) -> Tensor:
    """A key per chosen client, ``[runs, active]`` like ``clients``."""
    keys = torch.tensor([streams.key(seed, purpose, round_number) for seed in seeds], device=clients.device)
    return streams.fold(keys[:, None], clients)


@dataclass(frozen=True)
class BatchPlan:
    """The mini-batches of one round for a stack of clients."""

    positions: Tensor  # [clients, steps, batch]: places in the client's own list of samples
    mask: Tensor  # [clients, steps, batch] float: 1 for a sample, 0 for padding
    steps: Tensor  # [clients]: how many of the steps are the client's own; the rest is padding


def plan_batches(keys: Tensor, sizes: Tensor, *, epochs: int, batch_size: int, largest: int) -> BatchPlan:
    """Shuffle every client's samples once per epoch and cut them into batches; the last of an epoch may be smaller.

    ``keys`` and ``sizes`` are ``[clients]``; ``largest`` is ``sizes.max()`` or more.

    >>> plan = plan_batches(torch.tensor([1, 2]), torch.tensor([5, 2]), epochs=2, batch_size=4, largest=5)
    >>> plan.steps.tolist(), plan.mask.sum(-1).tolist()
    ([4, 2], [[4.0, 1.0, 4.0, 1.0], [2.0, 2.0, 0.0, 0.0]])
    """
    device = keys.device
    place = torch.arange(largest, device=device)
    epoch = torch.arange(epochs, device=device)
    draws = streams.fold(streams.fold(keys[:, None], epoch)[..., None], place)  # [clients, epochs, largest]
    draws = torch.where(place < sizes[:, None, None], draws, torch.iinfo(torch.int64).max)
    shuffled = draws.argsort(dim=-1)

    per_epoch = (sizes + batch_size - 1) // batch_size
    total = epochs * ((largest + batch_size - 1) // batch_size)
    step = torch.arange(total, device=device)
    in_epoch = step % per_epoch[:, None]  # [clients, steps]
    of_epoch = (step // per_epoch[:, None]).clamp(max=epochs - 1)
    place = in_epoch[..., None] * batch_size + torch.arange(batch_size, device=device)
    real = (place < sizes[:, None, None]) & (step < epochs * per_epoch[:, None])[..., None]
    flat = of_epoch[..., None] * largest + place.clamp(max=largest - 1)
    positions = shuffled.flatten(1).gather(1, flat.flatten(1)).view(flat.shape)
    return BatchPlan(torch.where(real, positions, 0), real.float(), epochs * per_epoch)
