"""Samples on the device: pixels, partitions, and the server's own samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedga.data.federation import Dataset
from fedga.engine.device_data import DeviceData, FederationTable, InputScaling, auxiliary_samples
from tests.engine.runs import make_dataset, make_federation, make_uneven_federation

CPU = torch.device("cpu")


def test_pixels_go_to_the_unit_interval() -> None:
    dataset = make_dataset((3, 4, 4))
    inputs = InputScaling.of(dataset, False).apply(torch.from_numpy(dataset.train_inputs))
    assert inputs.dtype == torch.float32
    torch.testing.assert_close(inputs, torch.from_numpy(dataset.train_inputs / 255).float())


@pytest.mark.parametrize("shape", [(3, 4, 4), (1, 8, 8), (5,)])
def test_standardised_channels_have_mean_zero_and_deviation_one(shape: tuple[int, ...]) -> None:
    dataset = make_dataset(shape, samples=400)
    pixels = InputScaling.of(dataset, True)
    inputs = pixels.apply(torch.from_numpy(dataset.train_inputs)).double()
    axes = [axis for axis in range(inputs.dim()) if axis != 1]
    torch.testing.assert_close(inputs.mean(axes), torch.zeros(shape[0]).double(), rtol=0, atol=1e-5)
    torch.testing.assert_close(inputs.std(axes, correction=0), torch.ones(shape[0]).double(), rtol=0, atol=1e-5)
    test = pixels.apply(torch.from_numpy(dataset.test_inputs)).double()
    assert test.mean(axes).abs().max() > 1e-5  # by the training split's statistics, not its own


def test_a_constant_channel_stays_finite() -> None:
    dataset = make_dataset((2, 4, 4))
    dataset.train_inputs[:, 1] = 7
    inputs = InputScaling.of(dataset, True).apply(torch.from_numpy(dataset.train_inputs))
    torch.testing.assert_close(inputs[:, 1], torch.zeros_like(inputs[:, 1]), rtol=0, atol=1e-6)


def test_tables_are_taken_as_they_are() -> None:
    rows = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    dataset = Dataset("table", rows, np.arange(6) % 2, rows, np.arange(6) % 2, ("a", "b"))
    assert torch.equal(InputScaling.of(dataset, False).apply(torch.from_numpy(rows)), torch.from_numpy(rows))


def test_pixels_leave_what_is_stored_alone() -> None:
    stored = torch.rand(4, 3)
    before = stored.clone()
    InputScaling(torch.full((3,), 2.0), torch.ones(3)).apply(stored)
    assert torch.equal(stored, before)


def test_pixels_of_every_slot() -> None:
    """Slots with maps of their own, and pictures of their own."""
    stored = torch.randint(0, 256, (2, 5, 3, 4, 4), dtype=torch.uint8)
    scale, shift = torch.rand(2, 3), torch.rand(2, 3)
    together = InputScaling(scale, shift).apply(stored)
    for slot in range(2):
        torch.testing.assert_close(together[slot], InputScaling(scale[slot], shift[slot]).apply(stored[slot]))


def test_samples_are_looked_up_in_the_lanes_own_partition() -> None:
    dataset = make_dataset()
    one, two = make_uneven_federation(dataset), make_federation(dataset, [9, 20, 30, 5, 25, 31], seed=4)
    federations = [two, one, two]
    table = FederationTable(federations, CPU)
    for lane, federation in enumerate(federations):
        row = table.of_lane[lane]
        assert table.sizes[row].tolist() == federation.sizes.tolist()
        assert table.class_counts[row].tolist() == federation.class_counts.tolist()
        for client in range(6):
            positions = torch.arange(federation.sizes[client])[None]
            found = table.samples(torch.tensor([lane]), torch.tensor([client]), positions)
            assert found[0].tolist() == federation.client(client).tolist()


def test_the_servers_own_samples() -> None:
    """Of every class as many as asked for, drawn without repetition where there are enough, by the seed alone."""
    dataset = make_dataset(samples=160)
    for per_class in (5, 30, 40):
        places = auxiliary_samples(dataset, 3, per_class)
        assert places.shape == (4, per_class)
        assert (dataset.train_targets[places] == np.arange(4)[:, None]).all()
        held = np.bincount(dataset.train_targets)
        assert all(len(set(row)) == per_class or per_class > held[label] for label, row in enumerate(places.tolist()))
    assert (auxiliary_samples(dataset, 3, 5) == auxiliary_samples(dataset, 3, 5)).all()
    assert (auxiliary_samples(dataset, 3, 5) != auxiliary_samples(dataset, 4, 5)).any()


def test_data_on_the_device_is_what_is_stored() -> None:
    dataset = make_dataset()
    data = DeviceData(dataset, CPU)
    assert data.train_inputs.dtype == torch.uint8
    for name in ("train_inputs", "train_targets", "test_inputs", "test_targets"):
        assert (getattr(data, name).numpy() == getattr(dataset, name)).all()
    assert data.has_room_for(2**60)


def test_read_only_arrays_are_copied() -> None:
    """Memory-mapped caches cannot be written to; torch would warn about sharing their memory."""
    dataset = make_dataset()
    for name in ("train_inputs", "test_inputs"):
        getattr(dataset, name).flags.writeable = False
    DeviceData(dataset, CPU)
