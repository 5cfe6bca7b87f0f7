"""Algorithms by name, with options as text, and algorithms of installed packages."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import partial
from importlib.metadata import EntryPoint

import pytest
from torch import Tensor

from fedga import plugins
from fedga.algorithms import ALGORITHMS, Algorithm, Batch, known_algorithms, make_algorithm, option
from fedga.errors import FedGAError


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_is_made_by_name(name: str) -> None:
    assert make_algorithm(name) == ALGORITHMS[name]()


def test_the_eight_algorithms() -> None:
    expected = {"fedavg", "fedprox", "fedrl", "climb", "fedntd", "fedga", "fedga-batch", "scaffold"}
    assert expected <= ALGORITHMS.keys()


def test_options_are_converted() -> None:
    assert make_algorithm("fedprox", mu="0.01") == ALGORITHMS["fedprox"](mu=0.01)  # type: ignore[call-arg]
    assert make_algorithm("fedga", variant="clamped", power="2").variant == "clamped"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("fedgaa", {}, "unknown algorithm 'fedgaa': did you mean 'fedga'"),
        ("fedprox", {"mo": 1}, "unknown option of fedprox 'mo': did you mean 'mu'"),
        ("fedprox", {"mu": "much"}, "--algorithm fedprox: mu must be a number of at least 0, not 'much'"),
        ("fedprox", {"mu": True}, "--algorithm fedprox: mu must be a number of at least 0, not True"),
        ("fedprox", {"mu": math.inf}, "--algorithm fedprox: mu must be a number of at least 0, not inf"),
        ("fedga", {"variant": None}, "--algorithm fedga: variant must be a text, not None"),
        ("fedavg", {"mu": 1}, "algorithm fedavg has no options"),
    ],
)
def test_bad_names_and_options(name: str, options: dict[str, object], words: str) -> None:
    with pytest.raises(FedGAError, match=words):
        make_algorithm(name, **options)


def test_a_misspelt_variant_is_refused_when_the_algorithm_is_made() -> None:
    """Not in the middle of the first round."""
    with pytest.raises(FedGAError, match="did you mean 'clamped'"):
        make_algorithm("fedga", variant="clampd")


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [(name, field.name, value) for name, kind in ALGORITHMS.items() for field in fields(kind) for value in (-1, 1e308)],
)
def test_no_number_outside_its_range_gets_into_an_algorithm(name: str, option: str, value: float) -> None:
    text = isinstance(getattr(ALGORITHMS[name](), option), str)
    expected = f"a text|unknown {option}" if text else f"{option} must be a (whole )?number .*, not ({value:g}|1000)"
    for make in (partial(make_algorithm, name), ALGORITHMS[name]):
        with pytest.raises(FedGAError, match=expected.replace("+", r"\+")):
            make(**{option: value})


def test_sentence_of_a_range() -> None:
    with pytest.raises(FedGAError) as caught:
        make_algorithm("fedprox", mu=-1)
    assert str(caught.value) == "--algorithm fedprox: mu must be a number of at least 0, not -1"
    with pytest.raises(FedGAError) as caught:
        make_algorithm("fedntd", tau=1e-300)
    assert str(caught.value) == "--algorithm fedntd: tau must be a number of at least 1e-06, not 1e-300"


@dataclass(frozen=True)
class Typed(Algorithm):
    """An algorithm of the user's own, with an option of every type; one of them has a range."""

    times: int = option(2, least=1)
    gain: float = 1.0
    double: bool = False
    how: str = "well"

    def local_loss(self, batch: Batch) -> Tensor:
        return self.gain * super().local_loss(batch)


def test_options_take_the_type_of_their_default() -> None:
    made = make_algorithm(Typed, times=3.0, gain="2", double="true", how="badly")
    assert made == Typed(3, 2.0, True, "badly")
    assert type(made.times) is int  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"times": 0.0}, "Typed: times must be a whole number of at least 1, not 0"),
        ({"times": 1.5}, "Typed: times must be a whole number of at least 1, not 1.5"),
        ({"times": math.inf}, "Typed: times must be a whole number of at least 1, not inf"),
        ({"gain": 1e39}, "Typed: gain must be a number at most 3e+38, not 1e+39"),
        ({"gain": "much"}, "Typed: gain must be a number, not 'much'"),
        ({"double": 1.0}, "Typed: double must be true or false, not 1.0"),
        ({"how": ["well"]}, "Typed: how must be a text, not ['well']"),
    ],
)
def test_an_option_of_a_wrong_type_is_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(FedGAError) as caught:
        make_algorithm(Typed, **options)
    assert str(caught.value) == f"--algorithm {words}"


@dataclass(frozen=True)
class Installed(Algorithm):
    gain: float = 2.0

    def local_loss(self, batch: Batch) -> Tensor:
        return self.gain * super().local_loss(batch)


def test_an_installed_package_offers_an_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def entry_points(group: str) -> list[EntryPoint]:
        asked.append(group)
        return [EntryPoint("installed", f"{__name__}:Installed", group)]

    monkeypatch.setattr(plugins, "entry_points", entry_points)
    assert make_algorithm("installed", gain="3") == Installed(gain=3.0)
    assert known_algorithms().keys() == {*ALGORITHMS, "installed"}
    assert set(asked) == {"fedga.algorithms"}
    with pytest.raises(FedGAError, match="did you mean 'installed'"):
        make_algorithm("instaled")
