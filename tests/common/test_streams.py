"""Counter-based streams: the same draw as tensors and as integers, uniform, and never to change."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedga.common import streams

WORDS = st.integers(-(2**63), 2**63 - 1)


@given(st.integers(0, 2**63 - 1), st.text(max_size=8), st.lists(WORDS, min_size=1, max_size=4), WORDS)
@settings(max_examples=200, deadline=None)
def test_fold_on_tensors_equals_key_on_integers(seed: int, purpose: str, counters: list[int], more: int) -> None:
    word = torch.tensor(streams.key(seed, purpose))
    for counter in counters:
        word = streams.fold(word, torch.tensor(counter))
    assert word.item() == streams.key(seed, purpose, *counters)
    assert streams.fold(word, torch.tensor(more)).item() == streams.key(seed, purpose, *counters, more)


def test_fold_broadcasts() -> None:
    keys = torch.tensor([streams.key(seed, "batches") for seed in range(3)])
    table = streams.fold(keys[:, None], torch.arange(4))
    assert table.tolist() == [[streams.key(seed, "batches", counter) for counter in range(4)] for seed in range(3)]


def test_the_mixer_is_splitmix64() -> None:
    """First outputs of the published generator for seed 0, as in its authors' reference implementation."""
    golden = 0x9E3779B97F4A7C15
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    states = [(n * golden) % 2**64 for n in (1, 2, 3)]
    assert [streams._mix_int(state) for state in states] == expected
    signed = torch.tensor([streams._signed(state) for state in states])
    assert [word % 2**64 for word in streams._mix(signed).tolist()] == expected


def test_draws_are_never_to_change() -> None:
    """Runs that were begun with an earlier version go on with the same draws."""
    assert streams.key(0, "clients", 1) == 5386861195887402109
    assert streams.key(123, "batches", 4, 5, 6) == -2448243280150473259
    assert streams.numpy_generator(3, "partition").integers(0, 1000, 4).tolist() == [490, 302, 838, 144]


def test_every_part_of_a_key_matters() -> None:
    keys = [
        streams.key(seed, purpose, *counters)
        for seed in range(5)
        for purpose in ("clients", "batches", "")
        for length in range(3)
        for counters in itertools.product(range(5), repeat=length)
    ]
    assert len(set(keys)) == len(keys) == 5 * 3 * (1 + 5 + 25)


def test_uniform_at_its_ends() -> None:
    words = torch.tensor([0, -1, 2**63 - 1, -(2**63)])
    assert streams.uniform(words).tolist() == [0.0, 1 - 2**-53, 0.5 - 2**-53, 0.5]


@given(WORDS)
@settings(max_examples=200, deadline=None)
def test_uniform_is_below_one(word: int) -> None:
    draw = streams.uniform(torch.tensor(word)).item()
    assert 0 <= draw < 1
    assert draw == ((word % 2**64) >> 11) * 2.0**-53


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_uniform_is_uniform(seed: int) -> None:
    """A million draws, each bound at five standard deviations or more."""
    n = 1_000_000
    draws = streams.uniform(streams.fold(torch.tensor(streams.key(seed, "test")), torch.arange(n)))
    assert draws.dtype == torch.float64
    assert abs(draws.mean().item() - 1 / 2) < 5 * (1 / 12 / n) ** 0.5
    assert abs(draws.var().item() - 1 / 12) < 5 * (1 / 180 / n) ** 0.5
    neighbours = np.corrcoef(draws[:-1], draws[1:])[0, 1]
    assert abs(neighbours) < 5 / n**0.5
    counts = torch.histc(draws, 100, 0, 1)
    assert ((counts - n / 100).square() / (n / 100)).sum() < 99 + 5 * (2 * 99) ** 0.5


def test_keys_of_neighbouring_seeds_share_nothing() -> None:
    """Each bit of the key flips with probability 1/2 when the seed grows by one."""
    words = torch.tensor([streams.key(seed, "clients", 1) for seed in range(4001)])
    flips = words[1:] ^ words[:-1]
    share = torch.stack([(flips >> bit) & 1 for bit in range(64)]).double().mean(1)
    assert (share - 0.5).abs().max() < 5 * 0.5 / 4000**0.5


def test_numpy_generator_depends_on_seed_purpose_and_counters() -> None:
    def draw(*given: int | str) -> list[int]:
        return streams.numpy_generator(*given).integers(0, 2**62, 3).tolist()  # type: ignore[arg-type]

    assert draw(0, "a") == draw(0, "a")
    assert len({tuple(draw(*given)) for given in ((0, "a"), (1, "a"), (0, "b"), (0, "a", 0), (0, "a", 1))}) == 5
