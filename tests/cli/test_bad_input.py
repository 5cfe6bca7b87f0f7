"""Bad input gets one clear sentence and exit code 2; nothing is written or lost."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file

from fedga.common.sealed import seal
from fedga.data import SOURCES
from fedga.engine import engine
from fedga.store.store import Store
from fedga.study import group
from tests.cli.program import SMALL, Outcome, done, fedga, files


def refused(command: str, *arguments: str | os.PathLike[str]) -> str:
    """The program's complaint about a command that must leave the folder as it was."""
    before = files(Path())
    complaint = fedga(command, *arguments).complaint
    assert files(Path()) == before
    return complaint


# Names, with the nearest valid one


@pytest.mark.parametrize(
    ("command", "name", "nearest"),
    [
        ("run --algorithm fedgaa", "unknown algorithm 'fedgaa'", "did you mean 'fedga'?"),
        ("run --algorithm fedavg,fedporx:mu=1", "unknown algorithm 'fedporx'", "did you mean 'fedprox'?"),
        ("run --algorithm fedprox:m=1", "unknown option of fedprox 'm'", "did you mean 'mu'?"),
        ("run --dataset mnits", "unknown data set 'mnits'", "did you mean 'mnist'?"),
        ("run --dataset digits --model lenett", "unknown model 'lenett'", "did you mean 'lenet'?"),
        ("run --dataset digits --select random", "unknown selection rule 'random'", "did you mean 'uniform'?"),
        ("run --partition non-iid", "unknown --partition 'non-iid'", "did you mean 'dirichlet'?"),
        ("run --preset papr", "unknown preset 'papr'", "did you mean 'paper'?"),
        ("run --partition dirchlet", "unknown --partition 'dirchlet'", "did you mean 'dirichlet'?"),
        ("run --rouns 3", "unknown option --rouns", "did you mean --rounds?"),
        ("run --local-epoch 3", "unknown option --local-epoch", "did you mean --local-epochs?"),
        ("rnu", "no such command 'rnu'", "did you mean 'run'?"),
        ("data shw", "no such command 'shw'", "did you mean 'show'?"),
        ("data show mnits", "unknown data set 'mnits'", "did you mean 'mnist'?"),
        ("data get mnits", "unknown data set 'mnits'", "did you mean 'mnist'?"),
        ("results . --format cvs", "unknown format 'cvs'", "did you mean 'csv'?"),
        ("algorithms --model lenett", "unknown model 'lenett'", "did you mean 'lenet'?"),
        ("algorithms --format jsn", "unknown format 'jsn'", "did you mean 'json'?"),
    ],
)
def test_misspelt_name(command: str, name: str, nearest: str) -> None:
    complaint = refused(command)
    assert name in complaint
    assert nearest in complaint


# Values


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("run --alpha 0", "--alpha must be a number above 0"),
        ("run --alpha 0.1,nan", "--alpha must be a number above 0 (or none), not nan"),
        ("run --alpha x", "--alpha must be a number above 0 (or none), not 'x'"),
        ("run --active 30 --clients 20", "--active 30 is more than --clients 20: give --active 20 or fewer"),
        ("run --dataset digits --clients 2000", "2000 clients cannot share 1438 training samples: use at most 1438"),
        ("run --seeds 4-0", "--seeds '4-0' is a range that ends before it begins: write it as 0-4"),
        ("run --seeds 0,,1", "--seeds '0,,1' has an empty entry"),
        ("run --seeds -1", "--seeds must be a whole number of at least 0, not -1"),
        ("run --threads 0", "--threads must be a whole number of at least 1, not 0"),
        ("run --threads 100000", "--threads must be a whole number of at least 1 and at most 4,096, not 100000"),
        ("run --threads x", "--threads must be a whole number of at least 1, not 'x'"),
        ("run --rounds 1.5", "--rounds must be a whole number of at least 1, not '1.5'"),
        ("run --rounds", "'--rounds' requires an argument"),
        ("run --clip -1", "--clip must be a number of at least 0"),
        ("run --momentum 1", "--momentum must be a number of at least 0 and below 1"),
        ("run --standardize maybe", "--standardize must be true or false, not 'maybe'"),
        ("run --algorithm fedprox:mu=x", "--algorithm fedprox: mu must be a number"),
        ("run --algorithm fedprox:mu=-1", "--algorithm fedprox: mu must be a number of at least 0, not -1.0"),
        (
            "run --algorithm fedga:strength=1e308",
            "strength must be a number of at least 0 and at most 1e+06, not 1e+308",
        ),
        ("tune --then fedprox:mu=-1", "--algorithm fedprox: mu must be a number of at least 0, not -1.0"),
        ("run --lr 1e308", "--lr must be a number above 0 and at most 1e+30, not 1e+308"),
        ("run --lr 1_0", "--lr must be a number above 0, not '1_0'"),
        ("run --lr ٣", "--lr must be a number above 0, not '٣'"),
        ("run --lr 1e400", "--lr must be a number above 0, not inf"),
        ("run --lr -0", "--lr must be a number above 0, not -0.0"),
        ("run --seed 1 --seeds 2", "--seeds is given twice: give it once"),
        ("run --pictures --no-pictures", "--pictures and --no-pictures are both given: give one of them"),
        ("run --rounds " + "9" * 5000, "--rounds must be a whole number of at least 1, not '999"),
        ("run --seeds 0-" + "9" * 5000, "--seeds must be a whole number of at least 0, not '999"),
        ("run --seeds 0-9999 --rounds 1-5000", "these lists make 200,000,000 runs, and 1,000,000 are the most"),
        ("run --algorithm fedavg:mu=1", "algorithm fedavg has no options, and 'mu' was given: leave it out"),
        ("run --algorithm fedprox:x:", "--algorithm 'fedprox:x:' has a bad option 'x'"),
        ("run --partition iid --alpha 1", "--alpha is not read by --partition iid: leave it out"),
        ("run --partition natural", "does not say which client a sample belongs to"),
        ("run --client-column who", "digits has no columns"),
        ("run --dataset digits --norm group", "model mlp has no normalisation layers: leave --norm out"),
        ("run --dataset digits --model lenet", "lenet needs pictures of at least 16×16 pixels"),
        ("run --dataset digits --model nowhere:Net", "model 'nowhere:Net' cannot be imported"),
        ("run --dataset digits --model os:getcwd", "model os:getcwd cannot be made for samples of shape 1×8×8"),
        ("run more", "unexpected extra argument"),
        ("run --dataset nowhere.csv", "nowhere.csv does not exist"),
        ("run --dataset '[bold]:x:'", "unknown data set '[bold]:x:'"),
        ("run --device gpu", "--device gpu is not a device: give auto, cpu, cuda or cuda:1"),
        ("run --device mps", "--device mps is not supported"),
        ("data show digits --alpha 0", "--alpha must be a number above 0"),
        ("data show digits --alpha 0.1,1", "--alpha '0.1,1' lists several values: give one"),
        ("data show digits --seed -1", "must be a whole number of at least 0, not -1"),
        ("data show digits --clients 0", "--clients must be a whole number of at least 1"),
        ("data show digits --partition iid --alpha 1", "--alpha is not read by --partition iid"),
        ("data show digits --clients 5000", "5000 clients cannot share 1438 training samples"),
        ("data show", "missing argument 'name'"),
        ("algorithms --shape 3y2", "--shape '3y2' is not the shape of a sample: write channels, height"),
        ("algorithms --shape 0x8", "--shape '0x8' is not the shape of a sample"),
        ("algorithms --classes 1", "--classes must be a whole number of at least 2"),
        ("results", "missing argument 'folder'"),
        ("results nowhere", "there are no results in 'nowhere'"),
        ("results .", "there are no results in '.'"),
        ("evaluate nowhere.safetensors", "there is no model file nowhere.safetensors"),
        ("algorithms --shape 1x28x28x28x28", "--shape '1x28x28x28x28' is not the shape of a sample"),
        ("evaluate --device cpu:7 nowhere.safetensors", "--device cpu:7 is not there"),
        ("evaluate --data-dir nowhere nowhere.safetensors", "the folder of --data-dir does not exist"),
        ("diagnose --no-page --out x.html p.csv", "--no-page writes no page, and --out x.html names one"),
        ("evaluate .", ". is a folder, where a plain file is expected"),
        ("evaluate x --format csv", "unknown format 'csv'"),
    ],
)
def test_bad_value(command: str, said: str) -> None:
    assert said.lower() in refused(command).lower()  # one release of the parser shouts the names of arguments


def test_cuda_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "give --device cpu" in refused("run --device cuda")


def test_client_left_without_samples() -> None:
    complaint = refused("run --dataset digits --clients 1000 --active 2 --partition dirichlet-class --alpha 0.01")
    assert "left without samples by partition 'dirichlet-class' with alpha=0.01" in complaint
    assert "use a larger alpha, fewer clients, or partition 'dirichlet'" in complaint


# Files of settings


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'algoritm = "fedga"', "unknown key in study.toml 'algoritm': did you mean 'algorithm'?"),
        (b"rounds = = 3", "study.toml is not valid TOML"),
        (b"\xff\xfe", "study.toml is not valid TOML"),
        (b"alpha = [0.1, -1]", "alpha in study.toml must be a number above 0"),
        (b'rounds = "x"', "rounds in study.toml must be a whole number of at least 1, not 'x'"),
        (b'dataset = "mnits"', "unknown data set 'mnits': did you mean 'mnist'?"),
        (b"device = 3", "device in study.toml must be a text, not 3"),
    ],
)
def test_bad_settings_file(text: bytes, said: str) -> None:
    Path("study.toml").write_bytes(text)
    assert said in refused("run --config study.toml")


def test_settings_file_that_is_not_there() -> None:
    assert "the file of --config does not exist: nowhere.toml" in refused("run --config nowhere.toml")
    assert ". is a folder, where a plain file is expected" in refused("run --config .")


# Data


def test_no_local_copy_opens_no_connection(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def connect(*_: Any) -> None:
        raise AssertionError("a connection was opened that nobody asked for")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "getaddrinfo", connect)
    Path("elsewhere").mkdir()
    complaint = refused("run --dataset mnist --data-dir elsewhere")
    assert "no local copy of mnist: looked for mnist-train.parquet, mnist-test.parquet" in complaint
    assert "in elsewhere and" in complaint
    assert str(tmp_path / "cache" / "data") in complaint
    assert "fedga data get mnist" in complaint


@pytest.mark.parametrize("command", ["run --dataset digits", "tune", "paper table-main --datasets digits"])
def test_data_folder_that_is_none(command: str) -> None:
    Path("file").write_text("mine", encoding="utf-8")
    assert refused(f"{command} --data-dir nowhere") == "the folder of --data-dir does not exist: 'nowhere'"
    complaint = refused(f"{command} --data-dir file")
    assert complaint == "--data-dir 'file' is a file: give the folder that it lies in"


def test_data_folder_of_a_settings_file_that_is_none() -> None:
    Path("study.toml").write_text('data_dir = "nowhere"', encoding="utf-8")
    assert refused("run --config study.toml") == "the folder of --data-dir does not exist: 'nowhere'"


def test_data_folder_of_the_variable_matters_where_data_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDGA_DATA", "nowhere")
    complaint = "the folder of the variable FEDGA_DATA does not exist: 'nowhere'"
    assert refused("run --dataset digits,mnist") == complaint
    done(f"run {SMALL} --algorithm fedavg --out out")
    Path("data").mkdir()
    assert "no local copy of mnist" in refused("run --dataset mnist --data-dir data")


def test_download_without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{unused.getsockname()[1]}")
        complaint = refused("data get mnist")
    assert "mnist could not be downloaded" in complaint
    assert "put mnist-train.parquet and mnist-test.parquet into" in complaint


@pytest.mark.parametrize(
    ("name", "lines", "said"),
    [
        ("a.csv", ["x,label", "1,0", "2,-1", "3,1"], "a.csv has label -1, outside the classes 0 to 1"),
        (
            "a.csv",
            ["x,label", "1,0", "2,77"],
            "label 77 of a.csv asks for 78 classes, more than its 2 training samples",
        ),
        ("a.csv", ["x,label", "1,0.5"], "labels that are not whole numbers"),
        ("a.csv", ["x,kind", "1,0"], "a.csv has no column named label"),
        ("a.csv", ["x,label", "y,0"], "column 'x' of a.csv holds text such as 'y', not numbers"),
    ],
)
def test_bad_table(name: str, lines: list[str], said: str) -> None:
    Path(name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert said in refused(f"run --dataset {name}")


def test_pictures_of_mixed_size() -> None:
    for place in range(6):
        path = Path("pictures", "cat" if place % 2 else "dog", f"{place}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((8, 9 if place == 5 else 8), np.uint8)).save(path)
    assert "bring all pictures to one size" in refused("run --dataset pictures")


def test_truncated_files(truncated: Path) -> None:
    kinds = {"whole.npz": ".npz", "mnist-train.parquet": "Parquet", "train-images-idx3-ubyte": "IDX"}
    for name, kind in kinds.items():
        where = "--dataset " + str(truncated / name)
        if kind != ".npz":
            where = f"--dataset mnist --data-dir {truncated / kind}"
        complaint = refused(f"run {where}")
        assert name in complaint
        assert f"{kind} file, or is damaged" in complaint
        assert "replace it by an intact copy" in complaint


@pytest.fixture
def truncated(tmp_path: Path) -> Path:
    """A folder with half an .npz, and data folders with half a Parquet and half an IDX file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = tmp_path / "truncated"
    shape = (20, *SOURCES["mnist"].shape[1:])
    inputs, labels = np.random.default_rng(0).integers(0, 256, shape, np.uint8), np.arange(20) % 10
    for part in ("Parquet", "IDX"):
        (folder / part).mkdir(parents=True)
    np.savez(folder / "whole.npz", x=inputs, y=labels)
    for split in ("train", "test"):
        pq.write_table(
            pa.table({"image": [row.tobytes() for row in inputs], "label": labels}),
            folder / "Parquet" / f"mnist-{split}.parquet",
        )
    for prefix in ("train", "t10k"):
        for kind, array in (("images-idx3", inputs), ("labels-idx1", labels.astype(np.uint8))):
            header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
            (folder / "IDX" / f"{prefix}-{kind}-ubyte").write_bytes(header + array.tobytes())
    for name in ("whole.npz", "Parquet/mnist-train.parquet", "IDX/train-images-idx3-ubyte"):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[: len(whole) // 2])
    return folder


def test_column_that_is_not_there() -> None:
    Path("a.csv").write_text("x,label,hospital\n" + "1,0,north\n2,1,south\n" * 20, encoding="utf-8")
    assert "did you mean 'hospital'?" in refused("run --dataset a.csv --client-column hospitl")
    assert "did you mean 'label'?" in refused("run --dataset a.csv --client-column hospital --label-column labl")
    complaint = refused("run --dataset a.csv --client-column hospital --active 3")
    assert "use --active 2 or fewer" in complaint


# The output folder


@pytest.mark.parametrize("where", ["file", "file/below", "/proc/nowhere"])
def test_output_folder_that_cannot_be(where: str) -> None:
    Path("file").write_text("mine", encoding="utf-8")
    assert f"the output folder '{where}'" in refused(f"run {SMALL} --out {where}")


def test_output_folder_without_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    def mkdir(self: Path, *_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", mkdir)
    assert "is not writable: change its permissions or give another --out" in refused(f"run {SMALL} --out closed")


def test_settings_that_changed_under_a_folder() -> None:
    done(f"run {SMALL} --out out --algorithm fedga")
    complaint = refused(f"run {SMALL} --out out --algorithm fedga --lr 0.5")
    assert "already holds digits, α=0.1, fedga, seed 0 with --lr 0.1, and now it should be 0.5" in complaint
    assert "give another --out, or list both values (--lr 0.1,0.5)" in complaint


def test_alternatives_of_pictures_stand_between_semicolons() -> None:
    done(f"run {SMALL} --out out --algorithm fedga")
    complaint = refused(f"run {SMALL} --out out --algorithm fedga --augment shift:1")
    assert "list both values (--augment 'none;shift:1')" in complaint
    done(f"run {SMALL} --out out --algorithm fedga --augment 'none;shift:1'")
    assert "such as --augment 'A;B'" in fedga("run --augment=shift:1 --augment=shift:2").complaint


RULES = """
from dataclasses import dataclass
import numpy as np
from fedga.data import Partition
from fedga.servers import ServerOptimizer

class Half(ServerOptimizer): ...

class Lost(ServerOptimizer):
    def state(self, params):
        return {"velocity": params * 0}

    def step(self, params, update, state, rate):
        return params + state["velocity"], {}

class Branching(ServerOptimizer):
    def step(self, params, update, state, rate):
        return (params if update.norm() > 1 else update), {}

@dataclass(frozen=True)
class Tuned(ServerOptimizer):
    beta: float = 0.9

class Scattered(Partition):
    def assign(self, inputs):
        return np.array_split(np.random.permutation(len(inputs.targets)), inputs.clients)

class Striped(Partition):
    def assign(self, inputs):
        return [np.arange(client, len(inputs.targets), inputs.clients) for client in range(inputs.clients)]
"""


def write_rules() -> None:
    """Rules of one's own, under their names in small letters."""
    Path("own.py").write_text(RULES)
    names = {"servers": ("Half", "Lost", "Branching", "Tuned"), "partitions": ("Striped", "Scattered")}
    tables = (
        f"[{kind}]\n" + "".join(f'{name.lower()} = "own.py:{name}"\n' for name in of) for kind, of in names.items()
    )
    Path("fedga.toml").write_text("".join(tables))


def test_results_of_rules_that_are_gone_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDGA_PROJECT", "")
    write_rules()
    command = f"run {SMALL} --server half --partition striped --out out"
    done(command)
    for name in ("half", "server:half", "server:adam"):
        assert "returns the next model and all that it keeps" in done(f"algorithms --check {name}").out
    Path("fedga.toml").unlink()
    assert "fedga" in done("results out").out
    done("report out")
    assert "unknown --partition 'striped'" in refused(command)


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("algorithms --check server:lost", "server optimiser lost: step drops 'velocity': return all that state has"),
        (f"run {SMALL} --server branching", "step branches on the value of a tensor"),
        (
            f"run {SMALL} --server tuned",
            "beta would be an option, and it has none but --server-rate: write beta: ClassVar",
        ),
        (f"run {SMALL} --partition scattered", "assigns other samples every time: draw from inputs.generator alone"),
        ("algorithms --check striped", "is no algorithm: give it with --partition"),
        (f"run {SMALL} --server half:rate=1", "a server optimiser has none but --server-rate: leave them out"),
        (f"run {SMALL} --server adam:rate=1", "a server optimiser has none but --server-rate: leave them out"),
        (f"run {SMALL} --server halv", "did you mean 'half'?"),
        (f"run {SMALL} --partition stripes", "did you mean 'striped'?"),
        (
            f"run {SMALL} --partition striped --alpha 0.1",
            "--alpha means nothing with --partition striped",
        ),
        (f"run {SMALL} --out out --augment shift:20", "moves 8×8 pixels out of sight"),
    ],
)
def test_what_is_asked_of_ones_own_rules(command: str, complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDGA_PROJECT", "")
    write_rules()
    outcome = fedga(command)
    assert complaint in outcome.complaint
    assert "setting" not in outcome.err
    assert not Path("out").exists()


def test_a_trace_of_clients_is_kept_apart_from_the_data() -> None:
    def write(client: int) -> None:
        Path("tr.csv").write_text(f"round,client\n1,{client}\n1,2\n")

    write(1)
    command = f"run {SMALL} --out out --algorithm fedga --availability always,tr.csv"
    done(command)
    done(f"run {SMALL} --out out --algorithm fedavg")
    done(command)
    write(3)
    complaint = refused(command)
    assert "the file of --availability 'tr.csv' is not the one the results in 'out' were made with" in complaint
    assert "bring the old file back" in complaint


def test_data_that_changed_under_a_folder() -> None:
    def write(seed: int) -> None:
        inputs = np.random.default_rng(seed).normal(size=(60, 4)).astype(np.float32)
        np.savez("own.npz", x=inputs, y=np.arange(60) % 3)

    write(0)
    command = "run --dataset own.npz --rounds 1 --clients 4 --active 2 --algorithm fedga --no-pictures"
    done(command)
    write(1)
    complaint = refused(command)
    assert "are not those the results in" in complaint
    assert "give another --out, or bring the old data back" in complaint


def test_full_disk_loses_nothing_that_was_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    command = f"run {SMALL} --algorithm fedga,fedavg --rounds 2,4"
    done(f"{command} --out whole")
    save, saved = group.write_model, []

    def no_space(path: Path, *rest: Any) -> None:
        if len(saved) == 3:  # the two short runs are finished, the first of the long ones too, but not committed
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        saved.append(path)
        save(path, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(group, "write_model", no_space)
        outcome = fedga(f"{command} --out out")
    assert outcome.code == 2
    assert outcome.err.splitlines()[-1].startswith("fedga: the disk that holds 'out' is full: make room")
    with Store("out") as store:
        assert sorted(run.status for run in store.runs()) == ["done", "done", "pending", "pending"]
    assert ", 2 of them finished already" in done(f"{command} --out out").err
    assert done("results out --format csv").out == done("results whole --format csv").out


# What the system refuses


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EMFILE, "too many files are open: raise the limit (ulimit -n 1024)"),
        (errno.ENFILE, "too many files are open on this machine"),
        (errno.ENAMETOOLONG, "the name is too long: give a shorter one"),
        (errno.ENOTDIR, "a part of this path is a file and no folder"),
        (errno.EISDIR, "this is a folder where a file is expected"),
        (errno.ELOOP, "links lead in a circle here"),
        (errno.ENOMEM, "out of memory: close other programs, or raise the limit (ulimit -v)"),
    ],
    ids=errno.errorcode.get,
)
def test_refused_by_the_system(number: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number), "x" * 1000)

    monkeypatch.setattr("fedga.cli.commands.run.build_sweep", fails)
    complaint = refused("run")
    assert said in complaint
    assert len(complaint) < 400


def test_no_thread_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("fedga.cli.commands.run.build_sweep", fails)
    assert refused("run").startswith("no further thread can be started: raise the limit (ulimit -u)")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit the memory of a process")
@pytest.mark.parametrize("limit", [100_000, 300_000, 500_000])
def test_too_little_memory_to_load_libraries(limit: int) -> None:
    limited = ["bash", "-c", f'ulimit -v {limit}; exec "$@"', "bash", sys.executable, "-m", "fedga", "algorithms"]
    ended = subprocess.run(limited, capture_output=True, text=True, check=False)
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.startswith("fedga: too little memory to load ")
    assert ended.stderr.endswith(" are left to this process): raise the limit (ulimit -v)\n")
    assert ended.stderr.count("\n") == 1
    shown = subprocess.run([*limited, "--traceback"], capture_output=True, text=True, check=False)
    assert "Traceback" in shown.stderr


def test_a_library_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise ImportError("libtorch_cpu.so: failed to map segment from shared object")

    monkeypatch.setattr("fedga.cli.commands.run.build_sweep", fails)
    assert "too little memory to load PyTorch (libtorch_cpu.so: failed to map segment" in refused("run")


def test_an_import_that_fails_otherwise_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise ImportError("cannot import name 'x'")

    monkeypatch.setattr("fedga.cli.commands.run.build_sweep", fails)
    with pytest.raises(ImportError, match="cannot import name"):
        fedga("run")


# Memory


def _out_of_memory(*_: Any, **__: Any) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


def test_out_of_memory_goes_on_with_less_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    train, sizes = engine.train_locally, []

    def scarce(model: Any, data: Any, slots: Any, *rest: Any) -> Any:
        sizes.append(len(slots.params))
        return _out_of_memory() if len(slots.params) > 2 else train(model, data, slots, *rest)

    command = f"run {SMALL} --seeds 0-3 --algorithm fedga"
    done(f"{command} --out plenty")
    monkeypatch.setattr(engine, "train_locally", scarce)
    outcome = done(f"{command} --out scarce")
    assert "out of memory: going on with" in outcome.err
    assert max(sizes) > 2
    assert set(sizes[-4:]) <= {1, 2}
    rows = [json.loads(done(f"results {folder} --format json").out) for folder in ("plenty", "scarce")]
    for plenty, scarce_row in zip(*rows, strict=True):
        assert scarce_row == {k: pytest.approx(v, rel=1e-3) if isinstance(v, float) else v for k, v in plenty.items()}


def test_out_of_memory_whatever_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "train_locally", _out_of_memory)
    outcome = fedga(f"run {SMALL} --out out")
    assert outcome.code == 2
    assert outcome.err.splitlines()[-1].startswith("fedga: out of memory, however little is done at once: use a ")


# Diverged runs are results


def test_diverged_runs_are_marked_and_the_others_go_on() -> None:
    command = f"run {SMALL} --algorithm fedga --lr 0.1,1e30 --out out"
    outcome = done(command)
    assert "fedga, lr 1e+30, seed 0 diverged in round 1" in outcome.err
    assert "1 of 1 diverged" in outcome.out
    assert "2 of them finished already" in done(command).err
    rows = json.loads(done("results out --format json").out)
    assert [(row["lr"], row["round"]) for row in rows] == [(0.1, 1), (0.1, 2), (0.1, 3)]
    assert "1 of 1 diverged" in done("results out --summary").out
    assert [path.suffix for path in Path("out/models").iterdir()].count(".safetensors") == 1


# Saved models


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    done(f"run {SMALL} --algorithm fedga --rounds 1", "--out", folder)
    [path] = (folder / "models").glob("*.safetensors")
    return path


def test_file_that_is_no_model(model: Path) -> None:
    Path("half.safetensors").write_bytes(model.read_bytes()[:3000])
    Path("text.safetensors").write_text("hello", encoding="utf-8")
    save_file({"weight": torch.zeros(3)}, "foreign.safetensors")
    assert "half.safetensors is damaged (its content does not match its digest)" in refused("evaluate half.safetensors")
    assert "text.safetensors is not a whole safetensors file" in refused("evaluate text.safetensors")
    assert "foreign.safetensors was not written by fedga" in refused("evaluate foreign.safetensors")


def test_model_file_of_another_time(model: Path) -> None:
    with safe_open(model, "pt") as file:
        description = file.metadata()
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping

    def write(weights: dict[str, torch.Tensor], **changes: str) -> None:
        Path("other.safetensors").write_bytes(seal(weights, {**description, **changes}))

    write({name: tensor[:1].clone() for name, tensor in weights.items()})
    assert "do not fit model mlp: give an intact copy" in refused("evaluate other.safetensors")
    write(weights, class_names="no JSON")
    assert "in a way this version cannot read" in refused("evaluate other.safetensors")
    write(weights, spec=json.dumps({**json.loads(description["spec"]), "invented_later": 1}))
    assert "was it written by a newer fedga?" in refused("evaluate other.safetensors")
    write(weights, spec=json.dumps({**json.loads(description["spec"]), "model": "nowhere:Net"}))
    assert "names the model 'nowhere:Net', which is none of fedga's own" in refused("evaluate other.safetensors")
    assert "there is no module nowhere: install it" in refused("evaluate --model nowhere:Net other.safetensors")


def test_model_on_data_it_was_not_made_for(model: Path) -> None:
    np.savez("own.npz", x=np.zeros((60, 4), np.float32), y=np.arange(60) % 3)
    complaint = refused("evaluate --dataset own.npz", model)
    assert "reads samples of shape (1, 8, 8) in 10 classes and own has (4,) in 3" in complaint
    assert "did you mean 'mnist'?" in refused("evaluate --dataset mnits", model)
    assert "no local copy of mnist" in refused("evaluate --dataset mnist", model)


def test_picture_that_cannot_be_written() -> None:
    Path("file").write_text("mine", encoding="utf-8")
    outcome = fedga("data show digits --clients 5 --out file/picture")
    assert "digits: 5 clients" in outcome.out  # the map in the terminal is not lost with it
    assert Outcome(outcome.code, "", outcome.err).complaint.startswith(
        "the picture 'file/picture.png' cannot be written"
    )
    assert files(Path()) == {"file": b"mine"}


# Tracebacks


def test_traceback_on_request() -> None:
    with pytest.raises(ValueError, match="unknown algorithm"):
        fedga("run --algorithm fedgaa --traceback")


def test_bug_is_not_dressed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(engine.Engine, "run_round", broken)
    with pytest.raises(ZeroDivisionError):
        fedga(f"run {SMALL}")


def test_no_command_is_answered_with_help() -> None:
    outcome = fedga("")
    assert outcome == Outcome(2, outcome.out, "")
    for command in ("run", "results", "evaluate", "algorithms", "data"):
        assert command in outcome.out


def test_an_option_given_twice_is_refused() -> None:
    outcome = fedga("run", "--algorithm", "fedavg", "--algorithm", "fedga")
    assert outcome.complaint == "--algorithm is given twice: give it once, with a list such as --algorithm A,B"
    assert not Path("runs").exists()


@pytest.mark.parametrize("command", ["run --out ''", "paper table-80 --out ''", "results ''", "run --track ''"])
def test_an_empty_value_is_not_the_folder_one_works_in(command: str) -> None:
    assert "is empty: give one, or leave it out" in fedga(command).complaint
