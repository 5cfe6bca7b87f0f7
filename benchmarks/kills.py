"""A sweep of 200 runs killed with `kill -9` ten times at random moments, against one that never was: equal CSV bytes?

    python benchmarks/kills.py [--kills 10] [--seed 0]

Each process lives for 2 to 18 % of the time the whole sweep takes, and a sweep commits at least every two seconds here
(every 20 as shipped), so that kills fall into training, into commits and into the start of the program alike.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = ["--dataset", "digits", "--algorithm", "fedavg,fedprox,fedntd,fedga", "--alpha", "0.05,0.1,0.5,1,10"]
RUNS += ["--seeds", "0-9", "--rounds", "60", "--evaluate-every", "1", "--no-pictures"]  # 4 × 5 × 10 = 200
PROGRAM = "import fedga.study.sweep as s; s.COMMIT_EVERY_S = 2.0; from fedga.cli import main; main()"


def start(folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", PROGRAM, "run", *RUNS, "--out", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def results(folder: Path) -> bytes:
    command = [sys.executable, "-m", "fedga", "results", str(folder), "--format", "csv"]
    return subprocess.run(command, check=True, capture_output=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draws = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as place:
        whole, killed = Path(place) / "whole", Path(place) / "killed"
        begun = time.monotonic()
        assert start(whole).wait() == 0
        took = time.monotonic() - begun
        deaths = 0
        for _ in range(options.kills):
            process = start(killed)
            try:
                process.wait(draws.uniform(0.02, 0.18) * took)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                deaths += process.wait() == -signal.SIGKILL
        assert start(killed).wait() == 0
        same = results(whole) == results(killed)
        left = sorted(path.name for path in (killed / "checkpoints").glob("*"))
    print(f"{took:.0f} s in one go; {deaths} deaths; CSV bytes {'equal' if same else 'DIFFER'}; left over: {left}")
    sys.exit(not same)


if __name__ == "__main__":
    main()
