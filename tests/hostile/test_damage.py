"""Whatever happens to a file, a command gives the numbers of the whole file, or one sentence.

``make test`` tries a fixed number of damages, the same each time; ``make fuzz`` (``FEDGA_FUZZ=1000``) tries as many as
asked, others each time. Of files that carry digests any difference is a failure; a user's own data carry none, so that
other numbers may come of them, but never a traceback, an endless read, or more memory than a bound.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedga.spec.grid import build_sweep, parse_list
from fedga.store.archive import write_archive
from fedga.store.store import Store
from fedga.study.sweep import Interrupted, Observer, run_sweep
from tests.cli.program import Outcome, done, fedga
from tests.hostile.damage import Damage, copied, damages

EXAMPLES = int(os.environ.get("FEDGA_FUZZ", "0"))
MOST_MEMORY_KB = 1 << 20  # that all damaged files together may add to this process
SETTINGS = {
    **{"dataset": "digits", "rounds": "4", "clients": "10", "active": "2", "evaluate_every": "1"},
    **{"algorithm": "fedavg,fedga", "diagnose_every": "2", "batch_size": "16", "server_average": "0.1"},
}
RUN = "run --threads 1 --no-pictures " + " ".join(
    f"--{name.replace('_', '-')} {text}" for name, text in SETTINGS.items()
)


def fuzzed(examples: int) -> Callable[..., Callable[..., None]]:
    """So many damages, always the same ones; as many as asked by FEDGA_FUZZ, and others each time."""
    quiet = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(
        max_examples=EXAMPLES or examples,
        derandomize=not EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=quiet,
    )


@dataclass(frozen=True)
class World:
    """Files that were left in peace, and what commands say of them."""

    folder: Path
    rows: str  # of the half-way sweep
    finished: str  # rows of the sweep at its end

    def path(self, name: str) -> Path:
        return self.folder / name


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A sweep half-way (``half``), its archives (``small``, ``full``), and models of a finished one (``whole``)."""
    folder = tmp_path_factory.mktemp("world")
    sweep = build_sweep({name: parse_list(name, text) for name, text in SETTINGS.items()})
    rounds = 0

    def half_way() -> bool:
        nonlocal rounds
        rounds += 1
        return rounds > 2

    with Store(folder / "half") as store, pytest.raises(Interrupted):
        run_sweep(sweep.runs, store, torch.device("cpu"), axes=sweep.axes, observer=Observer(should_stop=half_way))
    done(f"{RUN} --out", folder / "whole")
    write_archive(folder / "whole", folder / "small")
    write_archive(folder / "half", folder / "full", full=True)
    rows = {name: done("results --format csv", folder / name).out for name in ("half", "whole")}
    assert rows["half"] != rows["whole"]
    return World(folder, rows["half"], rows["whole"])


_seen: Counter[str] = Counter()


def answered(command: str, *arguments: str | os.PathLike[str]) -> Outcome | None:
    """What a command gives; None where it refuses, which it does in one sentence."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome = fedga(command, *arguments)  # an exception that is no sentence comes through here, and fails the test
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_MEMORY_KB
    assert "Traceback" not in outcome.err
    _seen["same" if outcome.code == 0 else "refused"] += 1
    if outcome.code == 0:
        return outcome
    assert outcome.code == 2, outcome
    complaint = outcome.err.splitlines()[-1]
    assert complaint.startswith("fedga: "), outcome.err
    assert len(complaint) < 1000
    return None


def strike(folder: Path, damage: Damage, place: float, names: str = "*") -> Path:
    """Damage one of the files in a folder."""
    files = sorted(path for path in folder.rglob(names) if path.is_file())
    path = files[int(place * len(files))]
    damage.strike(path, [other for other in files if other.suffix == path.suffix and other != path])
    return path


PLACES = st.floats(0, 1, exclude_max=True)


@fuzzed(15)
@given(damage=damages, place=PLACES)
def test_reading_results(world: World, damage: Damage, place: float) -> None:
    """Rows and summary of a folder; one of its files is damaged."""
    folder = copied(world.path("half"), Path("results"))
    path = strike(folder, damage, place)
    for command in ("results --format csv", "results --summary", "report --out page.html"):
        outcome = answered(command, folder)
        if outcome is not None and "csv" in command:
            assert outcome.out == world.rows, path


@fuzzed(15)
@given(damage=damages, place=PLACES)
def test_going_on(world: World, damage: Damage, place: float) -> None:
    """The same command goes on and ends with the numbers of an undisturbed run, or refuses; then a repair helps."""
    folder = copied(world.path("half"), Path("results"))
    path = strike(folder, damage, place)
    if answered(f"{RUN} --out", folder) is None:
        if not (folder / "results.sqlite").is_file() or answered("repair", folder) is None:
            return
        if answered(f"{RUN} --out", folder) is None:
            return
    assert done("results --format csv", folder).out == world.finished, path


@fuzzed(15)
@given(damage=damages, place=PLACES, small=st.booleans())
def test_archives(world: World, damage: Damage, place: float, small: bool) -> None:
    """An archive is shown as it was or refused; a full one that unpacks goes on as it would have."""
    archive = copied(world.path("small" if small else "full"), Path("archive"))
    path = strike(archive, damage, place)
    outcome = answered("results --format csv", archive)
    if outcome is not None:
        expected = done("results --format csv", world.path("small")).out if small else world.rows
        assert outcome.out == expected, path
    if not small:
        shutil.rmtree("unpacked", ignore_errors=True)
        if answered("unpack", archive, "unpacked") is not None:
            done(f"{RUN} --out unpacked")
            assert done("results --format csv unpacked").out == world.finished, path


@fuzzed(15)
@given(damage=damages)
def test_models(world: World, damage: Damage) -> None:
    """A model says what it said before it was damaged, or nothing."""
    models = copied(world.path("whole") / "models", Path("models"))
    path, other = sorted(models.glob("*averaged.safetensors"))
    expected = done("evaluate --format json", path).out
    damage.strike(path, [])
    for command in ("evaluate --format json", "diagnose --format json --no-page"):
        outcome = answered(command, path)
        if outcome is not None and command.startswith("evaluate"):
            assert outcome.out == expected
    assert other.is_file()


@fuzzed(6)
@given(damage=damages, place=PLACES)
def test_cached_pictures(damage: Damage, place: float) -> None:
    """Decoded pictures are decoded again where the cache is damaged."""
    _write_pictures(Path("pictures.npz"))
    shutil.rmtree(os.environ["FEDGA_CACHE"], ignore_errors=True)
    command = (
        "run --dataset pictures.npz --rounds 1 --clients 3 --active 3 --algorithm fedavg --threads 1 --no-pictures"
    )
    shutil.rmtree("first", ignore_errors=True)
    done(f"{command} --out first")
    strike(Path(os.environ["FEDGA_CACHE"]), damage, place)
    shutil.rmtree("second", ignore_errors=True)
    done(f"{command} --out second")
    first, second = (done(f"results --format csv {name}").out for name in ("first", "second"))
    assert first == second


def _write_pictures(path: Path) -> None:
    draws = np.random.default_rng(0)
    labels = np.arange(60) % 3
    np.savez(
        path, x=draws.integers(0, 80, (60, 4, 4), np.uint8) + (labels * 50)[:, None, None].astype(np.uint8), y=labels
    )


def _write_data(folder: Path) -> None:
    """One small data set, or file of predictions, of every kind."""
    import pyarrow as pa
    import pyarrow.parquet as parquet
    from PIL import Image

    folder.mkdir()
    draws = np.random.default_rng(0)
    rows = [(*draws.normal(size=3).round(3).tolist(), ("ill", "well")[at % 2]) for at in range(60)]
    text = "".join(f"{a},{b},{c},{label}\n" for a, b, c, label in rows)
    (folder / "table.csv").write_text(f"a,b,c,label\n{text}")
    columns = dict(zip(("a", "b", "c", "label"), zip(*rows, strict=True), strict=True))
    parquet.write_table(pa.table(columns), folder / "table.parquet")
    _write_pictures(folder / "pictures.npz")
    for at in range(12):
        path = folder / "folder" / ("cat" if at % 2 else "dog") / f"{at}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draws.integers(0, 256, (4, 4, 3), np.uint8)).save(path)
    probabilities = draws.dirichlet(np.ones(3), 60)
    labels = np.arange(60) % 3
    np.savez(folder / "predictions.npz", probs=probabilities, labels=labels)
    lines = "".join(f"{label},{','.join(map(str, of))}\n" for label, of in zip(labels, probabilities, strict=True))
    (folder / "predictions.csv").write_text(f"label,0,1,2\n{lines}")
    table = {"label": labels} | {str(at): probabilities[:, at] for at in range(3)}
    parquet.write_table(pa.table(table), folder / "predictions.parquet")
    (folder / "study.toml").write_text('dataset = "digits"\nalpha = [0.1, 0.5]\nrounds = 1\n')


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "data"
    _write_data(folder)
    return folder


@fuzzed(30)
@given(damage=damages, place=PLACES)
def test_data_and_predictions(data: Path, damage: Damage, place: float) -> None:
    """A user's own file carries no digest: other numbers may come of it, never anything but numbers or a sentence."""
    folder = copied(data, Path("data"))
    path = strike(folder, damage, place)
    name = path.relative_to(folder).parts[0]
    if name.startswith("predictions"):
        answered("diagnose --no-page --format json", folder / name)
    elif name.endswith(".toml"):
        answered("run --threads 1 --no-pictures --clients 5 --active 2 --algorithm fedavg --config", path)
    else:
        answered("data show --clients 2 --partition iid --out picture", folder / name)


def test_the_strategies_do_damage(world: World) -> None:
    """Most damages are noticed: a strategy that changed nothing would make every test here pass."""
    assert json.loads(done("evaluate --format json", next(world.path("whole").glob("models/*.safetensors"))).out)
    assert _seen["refused"] > _seen["same"] / 10 > 0, _seen
