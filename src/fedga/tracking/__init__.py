"""Runs in wandb, MLflow or TensorBoard, as the results file reports them.

A process of its own reads every few seconds what the results folder has been given, and hands it on: training waits for
no service, and what one process left undelivered the next one delivers.
"""

import importlib.util
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedga.errors import FedGAError, check_known, needs_extra

SERVICES = ("mlflow", "tensorboard", "wandb")  # each is the name of its package, too
LOG_NAME = "tracking.log"
PATIENCE_S = 10.0


def parse_services(text: str) -> tuple[str, ...]:
    """The services of a comma list, each once; refuses what is unknown or not installed.

    >>> parse_services("tensorboard, tensorboard")
    ('tensorboard',)
    >>> parse_services("mflow")
    Traceback (most recent call last):
        ...
    fedga.errors.FedGAError: unknown tracker 'mflow': did you mean 'mlflow'? (known: mlflow, tensorboard, wandb)
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        check_known("tracker", name, SERVICES)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # a folder of that name, which these services leave, is no package
            raise needs_extra(name, "track", f"--track {name}")
    return names


@contextmanager
def tracking(names: Sequence[str], folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Follow the results file in ``folder`` until the block has ended and all is delivered; ``say`` gets notices."""
    if not names:
        yield
        return
    process = _start(names, folder)
    listener = threading.Thread(target=_listen, args=(process, say), name="tracking notices", daemon=True)
    listener.start()
    try:
        yield
    finally:  # after an interrupt as well: the last rounds are in the file by now
        assert process.stdin is not None
        try:
            process.stdin.close()
            listener.join(PATIENCE_S)
            if listener.is_alive():
                say(f"waiting until {' and '.join(names)} has the last rounds; Ctrl-C leaves them to the next command")
            listener.join()
            process.wait()
        except BaseException:  # such as a second Ctrl-C
            process.terminate()
            process.wait()
            raise
        log = folder / LOG_NAME
        if process.returncode:
            say(f"tracking ended early (code {process.returncode}, see {log}): the same command delivers the rest")
        elif not log.stat().st_size:  # what libraries printed is kept
            log.unlink()


def _start(names: Sequence[str], folder: Path) -> subprocess.Popen[str]:
    """The follower, in a session of its own: Ctrl-C is for the training, after which the follower has work to do."""
    try:
        with (folder / LOG_NAME).open("w") as errors:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "fedga.tracking.follower", str(folder), *names],
                stdin=subprocess.PIPE,  # closed when the block ends, or by the system when this process is killed
                stdout=subprocess.PIPE,
                stderr=errors,
                encoding="utf-8",
                start_new_session=True,
            )
    except OSError as error:
        raise FedGAError(f"tracking cannot start ({error}): leave out --track, or give another --out") from error


def _listen(process: subprocess.Popen[str], say: Callable[[str], None]) -> None:
    assert process.stdout is not None
    with process.stdout as notices:
        for line in notices:
            say(line.rstrip("\n"))
