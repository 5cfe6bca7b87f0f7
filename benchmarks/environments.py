"""One virtual environment per peer under `.bench/`, installed from PyPI the first time it is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".bench"
LOGS = FOLDER / "logs"

TORCH = "torch==2.13.0"
# Torch is named with its version wherever it is needed, so that all train with the same one; torchvision comes without
# what it asks for, since that may be another build of torch. FedJAX needs `jax.tree_map`, which newer JAX has dropped,
# and that JAX needs a Haiku, Optax, NumPy and SciPy of its age.
RECIPES: dict[str, list[list[str]]] = {
    "plain": [[TORCH, "numpy"]],
    "flower": [[TORCH, "flwr[simulation]==1.41.0"]],
    "pfl": [[TORCH, "pfl[pytorch]==0.6.0"]],
    "fedjax": [
        [
            *("fedjax==0.0.17", "jax==0.4.30", "jaxlib==0.4.30", "dm-haiku==0.0.13"),
            *("optax==0.2.3", "numpy<2.3", "scipy<1.15"),
        ]
    ],
    "fluke": [[TORCH], ["--no-deps", "torchvision==0.28.0"], [TORCH, "fluke-fl==0.8.1"]],
    "fedlab": [[TORCH], ["--no-deps", "torchvision==0.28.0"], [TORCH, "fedlab==1.3.0"]],
}


class InstallError(Exception):
    """An environment could not be made; its text says why in a line, ``log`` holds the rest."""

    def __init__(self, reason: str, log: Path) -> None:
        super().__init__(reason)
        self.log = log


def interpreter(name: str) -> Path:
    """The Python of an environment, which is made when it is not there or its recipe has changed."""
    if name == "fedga":
        return Path(sys.executable)
    python, ready = FOLDER / name / "bin" / "python", FOLDER / name / "ready"
    recipe = "\n".join(" ".join(step) for step in RECIPES[name])
    if not ready.exists() or ready.read_text() != recipe:
        print(f"installing {name} into {FOLDER.relative_to(ROOT) / name}", flush=True)
        ready.unlink(missing_ok=True)
        LOGS.mkdir(parents=True, exist_ok=True)
        _install(name, python, LOGS / f"{name}-install.log")
        ready.write_text(recipe)
    return python


def _install(name: str, python: Path, log: Path) -> None:
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    commands = [
        [sys.executable, "-m", "venv", "--clear", str(FOLDER / name)],
        *([*pip, *step] for step in RECIPES[name]),
    ]
    with log.open("w") as output:
        for command in commands:
            if subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False).returncode:
                raise InstallError(_last_complaint(log), log)


def _last_complaint(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["pip failed"])[-1].removeprefix("ERROR: ")
