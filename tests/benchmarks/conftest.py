"""The benchmarks are scripts, not a package: their folder is where they import each other from."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
