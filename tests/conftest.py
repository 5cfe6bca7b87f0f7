"""Fixtures that many tests share; the functions behind them live in ``tests.engine.runs``."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import torch

from fedga.data.federation import Dataset
from fedga.engine.device_data import DeviceData
from tests.engine.runs import make_data, make_dataset, make_lane, make_uneven_federation

__all__ = ["make_dataset", "make_lane", "make_uneven_federation"]

os.environ.pop("COLUMNS", None)  # set for workers of pytest: tables would be as narrow as its terminal
torch.set_num_threads(1)  # the tests' tensors are small: a second thread only costs

# The longest files, and those that mostly wait for processes: they begin first, so that short ones fill the end.
FIRST = ("test_federation.py", "test_pages.py", "test_simulation.py", "test_cluster.py", "test_examples.py")


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is marked long
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: FIRST.index(item.path.name) if item.path.name in FIRST else len(FIRST))
    seen: Counter[str] = Counter()
    for item in items:
        if marker := item.get_closest_marker("one_in"):
            test = item.nodeid.partition("[")[0]
            if seen[test] % marker.args[0]:
                item.add_marker(pytest.mark.long)
            seen[test] += 1


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Commands that are called in this process choose a number of threads, which would slow the tests after them."""
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def pictures() -> Dataset:
    return make_dataset()


@pytest.fixture(scope="session")
def pictures_data(pictures: Dataset) -> DeviceData:
    return DeviceData(pictures, torch.device("cpu"))


@pytest.fixture
def float64() -> Iterator[None]:
    """New tensors, and so new networks, are float64: what remains of rounding is far below any real difference."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def exact_data(float64: None, pictures: Dataset) -> DeviceData:
    """The pictures with pixels in float64."""
    return make_data(pictures)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets how much memory there seems to be."""
    return lambda size: monkeypatch.setattr("fedga.common.memory.available_memory", lambda: size)
