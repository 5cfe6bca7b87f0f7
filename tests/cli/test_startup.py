"""What the program loads before it does anything: no library that a command does not need, and few modules at all.

Modules are counted, not seconds. Where a bound is passed, `python -X importtime -m fedga COMMAND` shows what grew: give
the import a place in the function that needs it, or raise the bound and say in the commit what it buys.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedga.algorithms import make_algorithm
from fedga.errors import FedGAError
from fedga.models import build_model
from fedga.selection import make_selection
from tests.cli.program import fedga

# The modules that were loaded before the program began (by the interpreter, or an editable install) are not its own.
SCRIPT = """
import atexit, json, sys
before = set(sys.modules)
atexit.register(lambda: print(json.dumps(sorted(set(sys.modules) - before)), file=open("modules.json", "w")))
{}
"""
PROGRAM = "from fedga.cli import main; main(sys.argv[1:])"
# Nothing of the product needs these to say a sentence; of the standard library, what takes milliseconds.
ARRAYS = ("numpy", "sqlite3", "tarfile")
LIBRARIES = (
    "torch",
    "pyarrow",
    "pandas",
    "scipy",
    "sklearn",
    "PIL",
    "matplotlib",
    "jinja2",
    "flwr",
    "ray",
    "safetensors",
)
LIBRARIES += ("asyncio", "multiprocessing", "urllib.request", "rich.progress")
HELP = ("rich.markdown", "markdown_it", "pygments")
PLUGINS = ("importlib.metadata", "email", "socket")  # only who looks through the installed packages
NONE = (*LIBRARIES, *ARRAYS, *HELP, *PLUGINS)

PREDICTIONS = "label,site,cat,dog\ncat,a,0.9,0.1\ndog,a,0.6,0.4\ndog,b,0.2,0.8\n"
CASES = {  # how many are loaded at most, a tenth more than when this was written, and what is not among them
    "--version": (168, NONE),
    "runn": (168, NONE),
    "run --algorthm x": (215, NONE),
    "run --alpha -1": (215, NONE),
    "run --algorithm fedgaa": (243, (*LIBRARIES, *ARRAYS, *HELP)),
    "tune --on fedprox --model resnt": (245, (*LIBRARIES, *ARRAYS, *HELP)),
    "--help": (365, (*LIBRARIES, *ARRAYS, *PLUGINS)),
    "run --help": (350, (*LIBRARIES, *ARRAYS, *PLUGINS)),
    "paper": (230, NONE),
    "results nowhere": (370, (*LIBRARIES, *HELP, *PLUGINS)),
    "predict model.safetensors new.csv --out x.txt": (400, (*LIBRARIES, *HELP)),
    "export model.safetensors --format x": (270, (*LIBRARIES, *HELP)),
    "data list": (400, (*LIBRARIES, *HELP, "sqlite3")),
    "diagnose predictions.csv --no-page": (455, (*(set(LIBRARIES) - {"pyarrow", "rich.progress"}), *HELP, "email")),
    "algorithms": (1450, ("torch._dynamo", "sympy", "triton", "pandas", "sklearn", "matplotlib", "flwr", *HELP)),
}


@pytest.mark.parametrize("command", CASES)
def test_a_command_loads_what_it_needs_and_no_more(command: str) -> None:
    Path("predictions.csv").write_text(PREDICTIONS, encoding="utf-8")
    most, needless = CASES[command]
    loaded = _loaded(PROGRAM, *command.split())
    assert "fedga.cli" in loaded
    assert sorted(loaded.intersection(needless)) == []
    assert len(loaded) <= most, sorted(loaded)


@pytest.mark.parametrize("flag", ["algorithm", "select", "model"])
def test_a_name_that_is_refused_early_is_refused_in_the_words_of_its_registry(flag: str) -> None:
    registry = {"algorithm": make_algorithm, "select": make_selection, "model": lambda name: build_model(name, (4,), 2)}
    with pytest.raises(FedGAError) as late:
        registry[flag]("no-such-name")
    assert fedga(f"run --{flag} no-such-name").complaint == str(late.value)


def test_importing_fedga_loads_no_other_library() -> None:
    loaded = _loaded("import fedga")
    assert {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names) == {"fedga"}
    assert len(loaded) <= 25, sorted(loaded)


def _loaded(code: str, *arguments: str) -> set[str]:
    subprocess.run(
        [sys.executable, "-c", SCRIPT.format(code), *arguments],
        env=os.environ | {"COLUMNS": "80"},
        capture_output=True,
        timeout=600,
        check=False,  # some are refused, with a code of 2
    )
    return set(json.loads(Path("modules.json").read_text(encoding="utf-8")))
