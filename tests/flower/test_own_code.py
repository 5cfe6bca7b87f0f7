"""An algorithm of the user's own on Flower: found where its project is, and refused where it is not the server's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fedga.errors import FedGAError
from fedga.experiments.code import code_digest, own_code
from fedga.flower import wire
from fedga.flower.on_client import _check_code
from tests.flower.runs import assert_equal_results, by_messages, make_spec, on_engine
from tests.test_own import FOCAL

HELPER = "POWER = 1\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "focal.py").write_text(FOCAL)
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "fedga.toml").write_text('[algorithms]\nfocal = "focal.py:Focal"\n')
    monkeypatch.setenv("FEDGA_PROJECT", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "helper", raising=False)
    return tmp_path


def test_it_trains_as_on_the_engine(project: Path) -> None:
    specs = [make_spec(algorithm="focal:gamma=1")]
    grid = by_messages(specs, project / "messages")
    assert_equal_results(on_engine(specs, project / "engine"), project / "messages", specs)
    asked = [message for message, _ in grid.seen if message.metadata.message_type == wire.TRAIN]
    assert {message.content.config_records[wire.CONFIG]["code"] for message in asked} == {code_digest(own_code(specs))}


def test_a_site_without_the_code_says_what_to_install(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_spec(algorithm="focal")
    code = code_digest(own_code([spec]))
    _check_code(spec, code)
    (project / "helper.py").write_text("POWER = 2\n")
    _check_code.cache_clear()
    with pytest.raises(FedGAError, match=r"focal.py is not the server's: copy its version here, and start this node"):
        _check_code(spec, code)
    monkeypatch.delenv("FEDGA_PROJECT")
    monkeypatch.chdir(project.parent)
    with pytest.raises(
        FedGAError, match=r"focal on mlp is code of the server's own, which is not here: install .*copy"
    ):
        _check_code(spec, code)
    _check_code(make_spec(), "")  # ours need nothing
