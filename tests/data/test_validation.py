"""Samples held out of training: which ones, and how many."""

from __future__ import annotations

import numpy as np
import pytest

from fedga.data import Dataset, load_dataset, make_federation
from fedga.data.federation import Federation
from fedga.data.validation import hold_out
from fedga.errors import FedGAError


def handfuls(sizes: list[int]) -> Federation:
    """Clients of these sizes; two more samples belong to nobody."""
    total = sum(sizes) + 2
    empty = np.zeros((0, 1), np.float32), np.zeros(0, np.int64)
    dataset = Dataset("made", np.zeros((total, 1), np.float32), np.zeros(total, np.int64), *empty, ("a", "b"))
    order = np.random.default_rng(0).permutation(total)[: sum(sizes)]
    return Federation(dataset, order, np.concatenate([[0], np.cumsum(sizes)]))


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.99])
def test_every_sample_is_trained_on_or_held_out_and_everybody_keeps_one(share: float) -> None:
    whole = handfuls([1, 2, 3, 500, 1, 40])
    part = hold_out(whole, share, seed=3)
    assert part.held_out is not None
    assert part.sizes.min() >= 1
    held = set(part.held_out.tolist())
    for client in range(whole.num_clients):
        mine, left = whole.client(client).tolist(), part.client(client).tolist()
        assert left == [place for place in mine if place not in held]  # in the same order
        assert abs(len(mine) - len(left) - share * len(mine)) <= 1
    assert sorted([*part.indices, *part.held_out]) == sorted(whole.indices)


def test_clients_with_a_handful_of_samples_give_the_share_in_the_mean() -> None:
    part = hold_out(handfuls([3] * 3000), 0.1, seed=0)
    assert part.held_out is not None
    assert abs(len(part.held_out) / 9000 - 0.1) < 0.01
    assert (part.sizes >= 2).all()


def test_the_seed_alone_decides() -> None:
    dataset = load_dataset("digits")
    one, same, other = (
        make_federation(dataset, "iid", clients=10, seed=seed, validate=0.2).held_out for seed in (1, 1, 2)
    )
    assert one is not None
    assert other is not None
    assert np.array_equal(one, same)
    assert not np.array_equal(np.sort(one), np.sort(other))
    assert make_federation(dataset, "iid", clients=10, seed=1).held_out is None


def test_bad_shares_are_one_sentence() -> None:
    with pytest.raises(FedGAError, match="holds out none of the 4 samples of 4 clients: give a larger share"):
        hold_out(handfuls([1] * 4), 0.5, seed=0)
    for share in (-0.1, 1, float("nan"), True):
        with pytest.raises(FedGAError, match="give a share of every client's samples from 0 to below 1"):
            make_federation(load_dataset("digits"), "iid", clients=10, seed=0, validate=share)
