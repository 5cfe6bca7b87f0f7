"""The bar of rounds: there where somebody sees it move, and nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fedga import simulate
from fedga.common.watch import shown_rounds
from fedga.data import load_dataset, make_federation
from fedga.errors import FedGAError


def train(progress: bool | None) -> None:
    federation = make_federation(load_dataset("digits"), clients=10, seed=0, alpha=0.3)
    result = simulate(federation, "mlp", "fedavg", rounds=2, active=2, batch_size=16, progress=progress)
    assert len(result.rounds) == 2


def test_where_it_is_asked_for_it_counts_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    train(progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "2/2" in err
    assert "accuracy 0." in err


@pytest.mark.parametrize("progress", [None, False])
def test_in_a_pipe_and_where_it_is_not_wanted_nothing_is_written(
    progress: bool | None, capsys: pytest.CaptureFixture[str]
) -> None:
    train(progress)
    assert capsys.readouterr() == ("", "")


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="there are no pseudo-terminals here")
def test_on_a_terminal_it_is_there_by_itself() -> None:
    ours, theirs = os.openpty()
    code = "from fedga.common.watch import shown_rounds as s\nwith s(3, None) as advance: advance(3, {'accuracy': 0.5})"
    environment = os.environ | {"TERM": "xterm"}
    with subprocess.Popen([sys.executable, "-c", code], stderr=theirs, env=environment) as process:
        os.close(theirs)
        seen = b""
        try:
            while block := os.read(ours, 4096):
                seen += block
        except OSError:  # how Linux says that the other end is closed
            pass
    os.close(ours)
    assert process.returncode == 0
    assert b"3/3" in seen


def test_another_value_is_refused() -> None:
    with pytest.raises(FedGAError, match="progress is a str"), shown_rounds(2, "yes"):  # type: ignore[arg-type]
        pass
