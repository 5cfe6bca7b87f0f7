import sys
from contextlib import ExitStack
from pathlib import Path

import cpu
import environments
import pytest
from processes import ContenderFailedError, Process

SPEAKS = """
import sys
from turns import Turns
turns = Turns()
done = 0
for _ in turns.rounds(lambda: done / 10):
    done += 1
    print("libraries print", flush=True)
    if done == {dies_in}:
        sys.exit("out of luck")
"""


def speak(tmp_path, dies_in=0):
    command = [sys.executable, "-c", SPEAKS.format(dies_in=dies_in)]
    return Process(command, {"PYTHONPATH": str(Path(cpu.__file__).parent)}, tmp_path / "log")


def test_a_contender_does_a_round_when_told(tmp_path):
    with ExitStack() as stack:
        process = speak(tmp_path)
        stack.callback(process.stop)
        seconds, versions = process.start()
        assert seconds > 0
        assert list(versions) == ["python"]
        assert process.round() >= 0
        assert process.accuracy() == 0.2
        assert process.peak_memory_mib() > 1
    process.stop()  # a second time does no harm
    assert process.log.read_text() == "libraries print\n" * 2


def test_a_contender_that_dies_says_why(tmp_path):
    with ExitStack() as stack:
        process = speak(tmp_path, dies_in=2)
        stack.callback(process.stop)
        process.start()
        with pytest.raises(ContenderFailedError, match="out of luck"):
            process.round()


def test_an_environment_that_cannot_be_made_says_why(tmp_path, monkeypatch):
    for name, folder in (("ROOT", tmp_path), ("FOLDER", tmp_path / "bench"), ("LOGS", tmp_path / "bench" / "logs")):
        monkeypatch.setattr(environments, name, folder)
    monkeypatch.setitem(environments.RECIPES, "plain", [["--no-index", "no-such-package"]])
    with pytest.raises(environments.InstallError, match="no-such-package") as caught:
        environments.interpreter("plain")
    assert "no-such-package" in caught.value.log.read_text()


class MadeUpProcess:
    """Rounds of given lengths; the names of all in the order of their turns."""

    turns: list[str] = []

    def __init__(self, name, seconds, dies_in=None):
        self.name, self.seconds, self.dies_in, self.rounds = name, seconds, dies_in, 0
        self.log = cpu.ROOT / name

    def greeting(self):
        return {}

    def start(self):
        self.round()
        return 1.0, {}

    def round(self):
        self.rounds += 1
        self.turns.append(self.name)
        if self.rounds == self.dies_in:
            raise ContenderFailedError("died", self.log)
        return self.seconds

    def accuracy(self):
        return self.rounds / 100

    def peak_memory_mib(self):
        return 10.0

    def stop(self):
        pass


@pytest.fixture
def made_up(monkeypatch):
    """A field of three peers: one twice as slow as fedga in its better way, one that dies, one that never starts."""

    def launch(contender, execution, model):
        if contender.name == "absent":
            raise environments.InstallError("no such version", cpu.ROOT / "absent")
        seconds = {"fedga": 1.0, "peer": 2.0, "mortal": 3.0}[contender.name] + 5 * (execution.words == "worse")
        return MadeUpProcess(contender.name, seconds, dies_in=6 if contender.name == "mortal" else None)

    monkeypatch.setattr(cpu, "launch", launch)
    cpu.read_from_disk.cache_clear()
    MadeUpProcess.turns.clear()
    ways = (cpu.Way("worse"), cpu.Way("better"))
    return [cpu.Contender("peer", "peer", ways), cpu.Contender("mortal", "mortal"), cpu.Contender("absent", "absent")]


def test_every_round_of_a_peer_stands_next_to_one_of_fedga(made_up):
    rows = {row.name: row for row in cpu.measure("mlp", made_up[:1], repeat=3)}
    assert MadeUpProcess.turns[-6:] == ["fedga", "peer", "peer", "fedga", "fedga", "peer"]
    assert rows["peer"].seconds == [2.0] * 3
    assert rows["peer"].ratio == 2.0
    assert rows["peer"].label == "peer, better"


def test_accuracy_is_that_after_the_same_number_of_rounds(made_up):
    rows = {row.name: row for row in cpu.measure("mlp", made_up, repeat=3)}
    assert rows["fedga"].accuracy == rows["peer"].accuracy == (cpu.WARM_UP["mlp"] + 3) / 100


def test_contenders_that_fail_are_reported(made_up):
    rows = {row.name: row for row in cpu.measure("mlp", made_up, repeat=3)}
    assert (rows["mortal"].not_run, rows["mortal"].log) == ("died", "mortal")
    assert (rows["absent"].not_run, rows["absent"].log) == ("no such version", "absent")
    report = cpu.Report(
        "today", cpu.machine.describe() | {"load_before": 0.1}, {"mlp": 3}, {"mlp": list(rows.values())}
    )
    assert "no such version" in report.as_markdown()
    names = [row["name"] for row in report.as_json()["models"]["mlp"]["contenders"]]
    assert sorted(names) == ["absent", "fedga", "mortal", "peer"]


def test_fedga_runs_where_nobody_else_does(made_up):
    [fedga, absent] = cpu.measure("mlp", made_up[2:], repeat=3)
    assert (len(fedga.seconds), fedga.accuracy) == (3, (cpu.WARM_UP["mlp"] + 3) / 100)
    assert absent.not_run
