"""Who trains in a round and on which samples in which order: index tensors, built on the device from counters."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedga.common import streams


def client_draws(seeds: list[int], round_number: int, num_clients: int, device: torch.device) -> Tensor:
    """One uniform number per run and client, ``[runs, clients]``: the same clients for every algorithm of a seed."""
    return streams.uniform(client_keys(seeds, "clients", round_number, torch.arange(num_clients, device=device)))


def client_keys(seeds: list[int], purpose: str, round_number: int, clients: Tensor) -> Tensor:
    """A key per chosen client, ``[runs, active]`` like ``clients``."""
    keys = torch.tensor([streams.key(seed, purpose, round_number) for seed in seeds], device=clients.device)
    return streams.fold(keys[:, None], clients)


@dataclass(frozen=True)
class ClassDraws:
    """Samples drawn with replacement, classes at given rates: what `Algorithm.class_rates` asks for."""

    rates: Tensor  # [clients, classes]: relative; those of classes that a client lacks are ignored
    counts: Tensor  # [clients, classes]: samples of each class
    by_class: Tensor  # [clients, samples]: the positions of each client's samples, sorted by class, padding last

    def positions(self, words: Tensor) -> Tensor:
        """A position for each of the random words ``[clients, ...]``."""
        counts, flat = self.counts.double(), words.flatten(1)
        rates = torch.where(counts > 0, self.rates.double(), 0.0)
        edges = (rates.cumsum(1) / rates.sum(1, keepdim=True).clamp(min=1e-300)).contiguous()
        last = ((rates > 0) * torch.arange(rates.shape[1], device=rates.device)).amax(1, keepdim=True)
        drawn = torch.searchsorted(edges, streams.uniform(flat), right=True).minimum(last)
        within = streams.uniform(streams.fold(flat, torch.zeros_like(flat))) * counts.gather(1, drawn)
        first = (counts.cumsum(1) - counts).gather(1, drawn)
        return self.by_class.gather(1, (first + within.floor()).long()).view(words.shape)


@dataclass(frozen=True)
class BatchPlan:
    """The mini-batches of one round for a stack of clients."""

    positions: Tensor  # [clients, steps, batch]: places in the client's own list of samples
    mask: Tensor  # [clients, steps, batch] float: 1 for a sample, 0 for padding
    steps: Tensor  # [clients]: how many of the steps are the client's own; the rest is padding


def plan_batches(
    keys: Tensor,
    sizes: Tensor,
    *,
    epochs: int,
    batch_size: int,
    largest: int,
    sampled: tuple[Tensor, ClassDraws] | None = None,
) -> BatchPlan:
    """Shuffle every client's samples once per epoch and cut them into batches; the last of an epoch may be smaller.

    ``keys`` and ``sizes`` are ``[clients]``; ``largest`` is ``sizes.max()`` or more. Clients that draw by class are
    named in ``sampled``, as a mask ``[clients]``, and their sizes are the lengths of their epochs.

    >>> plan = plan_batches(torch.tensor([1, 2]), torch.tensor([5, 2]), epochs=2, batch_size=4, largest=5)
    >>> plan.steps.tolist(), plan.mask.sum(-1).tolist()
    ([4, 2], [[4.0, 1.0, 4.0, 1.0], [2.0, 2.0, 0.0, 0.0]])
    """
    device = keys.device
    place = torch.arange(largest, device=device)
    epoch = torch.arange(epochs, device=device)
    draws = streams.fold(streams.fold(keys[:, None], epoch)[..., None], place)  # [clients, epochs, largest]
    order = torch.where(place < sizes[:, None, None], draws, torch.iinfo(torch.int64).max)
    shuffled = order.argsort(dim=-1)
    if sampled is not None:
        shuffled = torch.where(sampled[0][:, None, None], sampled[1].positions(draws), shuffled)

    per_epoch = ((sizes + batch_size - 1) // batch_size).clamp(min=1)
    total = epochs * ((largest + batch_size - 1) // batch_size)
    step = torch.arange(total, device=device)
    in_epoch = step % per_epoch[:, None]  # [clients, steps]
    of_epoch = (step // per_epoch[:, None]).clamp(max=epochs - 1)
    place = in_epoch[..., None] * batch_size + torch.arange(batch_size, device=device)
    real = (place < sizes[:, None, None]) & (step < epochs * per_epoch[:, None])[..., None]
    flat = of_epoch[..., None] * largest + place.clamp(max=largest - 1)
    positions = shuffled.flatten(1).gather(1, flat.flatten(1)).view(flat.shape)
    return BatchPlan(torch.where(real, positions, 0), real.float(), epochs * per_epoch)


def cut_short(plan: BatchPlan, shares: Tensor) -> BatchPlan:
    """The plan of clients that take a part of their steps, ``shares [clients]``: at least one, or none where it is 0.

    >>> plan = plan_batches(torch.tensor([1, 2]), torch.tensor([5, 2]), epochs=2, batch_size=1, largest=5)
    >>> cut_short(plan, torch.tensor([0.5, 0.0])).steps.tolist()
    [5, 0]
    """
    steps = torch.ceil(shares * plan.steps).long()
    taken = torch.arange(plan.mask.shape[1], device=steps.device) < steps[:, None]
    return BatchPlan(plan.positions, plan.mask * taken[..., None], steps)
