import statistics
from threading import Thread

import flower
import pytest
from turns import Stop

ROUNDS = 5


def play(folder):
    """A contender's side of the conversation, without Flower."""
    turns = flower.FileTurns(str(folder), ROUNDS)
    try:
        while True:
            turns.wait(lambda: 0.5)
    except Stop:
        return


@pytest.fixture
def contender(tmp_path, monkeypatch):
    monkeypatch.setattr(flower.Contender, "_run", lambda self, app: play(self.folder))
    contender = flower.Contender("made up", "server({turns})", "client()")
    contender.start(tmp_path, ROUNDS)
    return contender


def test_a_contender_does_a_round_when_told(contender):
    assert contender.start_seconds > 0
    assert not (contender.folder / "2.json").exists()
    assert all(contender.round(number) > 0 for number in range(2, ROUNDS + 1))
    assert contender.accuracy == 0.5
    contender.thread.join()


def test_the_app_makes_both_sides_with_the_turns_of_its_folder(contender):
    package = contender.folder / "app" / flower.PACKAGE
    assert f"app = server(flower.FileTurns('{contender.folder}', {ROUNDS}))" in (package / "server_app.py").read_text()
    assert "app = client()" in (package / "client_app.py").read_text()
    for number in range(2, ROUNDS + 1):
        contender.round(number)


def test_a_contender_that_ends_early_says_so(tmp_path, monkeypatch):
    def fail(self, app):
        self.said = "finished:failed out of luck"

    monkeypatch.setattr(flower.Contender, "_run", fail)
    with pytest.raises(SystemExit, match="made up did not do round 1: finished:failed out of luck"):
        flower.Contender("made up", "", "").start(tmp_path, ROUNDS)


def test_rounds_of_all_alternate_and_only_those_between_warm_up_and_the_last_count(monkeypatch):
    order = []

    class MadeUp(flower.Contender):
        def start(self, folder, rounds):
            self.thread = Thread(target=print)
            self.thread.start()

        def round(self, number):
            order.append(self.label)
            return float(number)

    contenders = [MadeUp("a", "", ""), MadeUp("b", "", "")]
    flower.measure(contenders, repeat=2)
    assert order == ["b", "a", "a", "b", "b", "a", "a", "b", "b", "a"]
    assert [contender.seconds for contender in contenders] == [[4.0, 5.0]] * 2


def test_ratio_is_that_of_averages_with_the_spread_of_pairs():
    bare = [0.3, 0.4, 0.3, 0.5] * 5
    assert flower.compare([2 * seconds for seconds in bare], bare, statistics.fmean) == "2.00 (2.00–2.00)"
    rows = [flower.Contender(label, "", "", 10.0, bare, 0.9) for label in ("bare", "ours")]
    assert flower.table(rows).splitlines()[-1].startswith("| ours | 0.350 | 0.375 | 1.00 (1.00–1.00)")
