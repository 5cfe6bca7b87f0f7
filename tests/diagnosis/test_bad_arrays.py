"""Malformed arrays in memory, and malformed class counts, are refused in one sentence."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedga.diagnosis import diagnose
from fedga.errors import FedGAError


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({"cat": 3}, "leave out 'dog'"),
        ({"cat": 3, "dog": 2, "bird": 1}, "counts for 'bird', which is no class"),
        ({"cat": 3, "dog": -2}, "the count of class 'dog' is -2"),
        ({"cat": 3, "dog": "many"}, "the count of class 'dog' is 'many'"),
        ({"cat": 0, "dog": 0}, "are all 0"),
        ([3], "is 1 class count for 2 classes"),
        ([3, 2, 1], "are 3 class counts for 2 classes"),
        ({"a": {"cat": 3, "dog": 1}}, "site 'b' has predictions and no class counts"),
        ({"a": {"cat": 3, "dog": 1}, "b": 4}, "the class counts at b are 4"),
        ({"cat": 3, "dog": 1, "0": 7}, "name 'cat' twice"),
        ({"a": {"cat": 3, "dog": 1}, "b": {"cat": 3, "dog": 1}, "a ": {"cat": 3, "dog": 1}}, "names 'a' twice"),
        ({"a": {"cat": 3, "dog": 1}, "b": {"cat": 3, "dog": 1}, None: {"cat": 3, "dog": 1}}, "without a name"),
    ],
)
def test_class_counts(counts: object, said: str) -> None:
    with pytest.raises(FedGAError, match=said):
        diagnose([[0.9, 0.1], [0.2, 0.8]], [0, 1], ["a", "b"], ["cat", "dog"], counts)  # type: ignore[arg-type]


def test_arrays_in_memory() -> None:
    with pytest.raises(FedGAError, match=r"sum to 1\.7"):
        diagnose([[0.9, 0.8], [0.2, 0.8]], [0, 1])
    with pytest.raises(FedGAError, match="2 rows of probabilities and 3 labels"):
        diagnose([[0.9, 0.1], [0.2, 0.8]], [0, 1, 1])
    with pytest.raises(FedGAError, match="probs is ragged"):
        diagnose([[0.9, 0.1], [0.2]], [0, 1])
    with pytest.raises(FedGAError, match="probs has type"):
        diagnose([["a", "b"]], [0])
    with pytest.raises(FedGAError, match="probs does not hold numbers alone"):
        diagnose([["a", None], [0.5, 0.5]], [0, 1])
    with pytest.raises(FedGAError, match="label 'True', which is no class: it must be one of ill, healthy"):
        diagnose([[0.9, 0.1], [0.2, 0.8]], [True, False], class_names=["ill", "healthy"])


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA, pd.NaT, ""])
def test_what_is_missing_in_memory(missing: object) -> None:
    probs = [[0.9, 0.1], [0.2, 0.8], [0.2, 0.8]]
    with pytest.raises(FedGAError, match="row 2 of probs names no site"):
        diagnose(probs, [0, 1, 1], ["None", missing, "b"])
    with pytest.raises(FedGAError, match="row 2 of probs has no label"):
        diagnose(probs, ["a", missing, "None"], None, ["a", "None"])
    if not isinstance(missing, str):
        with pytest.raises(FedGAError, match="row 2 of probs has no number for class '1'"):
            diagnose(np.array([[0.9, 0.1], [0.2, missing], [0.2, 0.8]], dtype=object), [0, 1, 1])
