"""What a notebook shows of a data set, a federation, a run and a diagnosis."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from fedga import RunResult, simulate
from fedga.data import Federation, load_dataset, make_federation
from fedga.diagnosis import diagnose
from fedga.drawing.inline import card, curve, label_map


@pytest.fixture(scope="module")
def federation() -> Federation:
    return make_federation(load_dataset("digits"), clients=10, seed=0, alpha=0.3)


@pytest.fixture(scope="module")
def result(federation: Federation) -> RunResult:
    return simulate(federation, "mlp", "fedga", rounds=2, active=2, batch_size=16)


def test_a_map_has_a_cell_for_every_class_that_a_client_holds() -> None:
    counts = np.array([[5, 0, 1], [0, 0, 90]])
    cells = ElementTree.fromstring(label_map(counts)).findall("{*}rect")[1:]  # the first is the frame
    places = {(int(cell.attrib["y"]) // 10, int(cell.attrib["x"]) // 10): cell.attrib["fill"] for cell in cells}
    assert places.keys() == {(0, 0), (0, 2), (1, 2)}
    assert len(set(places.values())) == 3  # more samples, another shade


def test_a_curve_goes_through_its_values_and_leaves_out_what_was_not_measured() -> None:
    [line] = ElementTree.fromstring(curve([1, 2, 3], [0.0, float("nan"), 1.0])).findall("{*}polyline")
    (x0, y0), (x1, y1) = (map(float, place.split(",")) for place in line.attrib["points"].split())
    assert x0 < x1
    assert y0 > y1  # up is better, and down the page
    assert curve([1], [0.5]) == ""


def test_texts_of_others_are_escaped() -> None:
    assert "<script>" not in card("<script>", {"<script>": "<script>"})


def test_values_say_what_they_are_in_one_line_and_as_html(federation: Federation, result: RunResult) -> None:
    diagnosis = diagnose([[0.9, 0.1], [0.4, 0.6]] * 20, ["a", "b"] * 20, class_names=["a", "b"])
    for value in (federation.dataset, federation, result, diagnosis):
        assert "\n" not in repr(value)
        assert len(repr(value)) < 200
        ElementTree.fromstring(value._repr_html_())  # every element is closed
    assert f"{result.rounds[-1]['accuracy']:.4g}" in repr(result)
    assert "10 clients" in repr(federation)
    assert len(re.findall("<svg", federation._repr_html_() + result._repr_html_())) == 2
