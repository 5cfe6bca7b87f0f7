"""Algorithms by name, with options as text, and algorithms of installed packages."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint

import pytest
from torch import Tensor

from fedga import own
from fedga.algorithms import ALGORITHMS, Algorithm, Batch, known_algorithms, make_algorithm
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
        ("fedprox", {"mu": "much"}, "option mu of fedprox must be a number, not 'much'"),
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

    monkeypatch.setattr(own, "entry_points", entry_points)
    assert make_algorithm("installed", gain="3") == Installed(gain=3.0)
    assert known_algorithms().keys() == {*ALGORITHMS, "installed"}
    assert set(asked) == {"fedga.algorithms"}
    with pytest.raises(FedGAError, match="did you mean 'installed'"):
        make_algorithm("instaled")
