"""`fedga flower serve`: a federation's server, from the first certificate check to the end of its run."""

from __future__ import annotations

import contextlib
import math
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from fedga.common.files import write_whole
from fedga.errors import FedGAError
from fedga.federation.connections import BEGINNING
from fedga.federation.folder import ServerFolder
from fedga.federation.heard import Heard, Say
from fedga.federation.keys import PublicKey, read_public_key
from fedga.federation.names import Address
from fedga.flower.processes.group import ProcessGroup, family
from fedga.flower.processes.superlink import CONNECTION, Outcome, SuperLink, start_superlink
from fedga.flower.processes.words import last_words, tail

_LOOK_FOR_KEYS_EVERY_S = 1.0
_OPEN_WITHIN_S = 30.0
_LOOK_AT_DOOR_EVERY_S = 0.5
_READ_AT_ONCE = 100_000
_GATE = "fedga.federation.gate"
_LONG_LOG = 10_000_000
_ALREADY_KNOWN = "already"  # of a public key; Flower has no other word for it on the command line


def serve(folder: ServerFolder, insecure: bool, port: int | None, say: Say) -> None:
    """Run the federation to its end; what its server says goes to ``say``.

    Keys are registered before the door opens, so that no site is turned away for coming early. Run it on a machine
    where only trusted people have accounts: each of them can reach Flower's control of the runs, and so run code at
    every site.
    """
    address = folder.address()
    folder.largest_reply()  # refused before anything is started
    address = Address(address.host, port or address.port)
    if not insecure:
        folder.check_safe()
    with family(folder.home) as members:
        _check_free(folder.listen(), address.port)
        _set_aside(folder.log)
        _forget_dismissed(folder)
        link = start_superlink(
            members, _arguments(folder, insecure), folder.log, None if insecure else folder.authority
        )
        link.stop_unfinished()
        with _admissions(folder, link, say) if not insecure else contextlib.nullcontext():
            door = _Door(members, folder, link, address.port, insecure)
            with door.open(say):
                say(f"the server is ready at {address} for {', '.join(folder.sites())}")
                heard = Heard(say, say_errors=False)
                outcome = link.run(folder.app, on_line=heard.take)
    _conclude(folder, outcome, heard)


def _arguments(folder: ServerFolder, insecure: bool) -> list[str]:
    if insecure:
        return ["--insecure", "--database", str(folder.home.resolve() / "insecure.db")]
    files = {"--ssl-ca-certfile": folder.authority, "--ssl-certfile": folder.certificate, "--ssl-keyfile": folder.key}
    given = [word for flag, path in files.items() for word in (flag, str(path.resolve()))]
    return ["--enable-supernode-auth", "--database", str(_database(folder)), *given]


def _set_aside(log: Path) -> None:
    """A log has a line for every request: a long one makes room."""
    if log.exists() and log.stat().st_size > _LONG_LOG:
        log.replace(log.with_suffix(".old.log"))


def _database(folder: ServerFolder) -> Path:
    """Where Flower remembers nodes: a node keeps its number when the server starts again."""
    return folder.home.resolve() / "federation.db"


def _registered(folder: ServerFolder) -> Path:
    """Copies of the keys that the database knows."""
    return folder.home / "registered"


def _forget_dismissed(folder: ServerFolder) -> None:
    """If a key was taken back, begin with a new database; the sites that stay are registered again."""
    texts = {key.text for key in folder.admitted_keys()}
    known = [read_public_key(path) for path in _registered(folder).glob("*.pub")]
    if _database(folder).exists() and all(key.text in texts for key in known):
        return
    shutil.rmtree(_registered(folder), ignore_errors=True)
    for path in folder.home.glob(f"{_database(folder).name}*"):
        path.unlink()


@contextlib.contextmanager
def _admissions(folder: ServerFolder, link: SuperLink, say: Say) -> Iterator[None]:
    """Register the admitted keys, now and, while the block lasts, whenever one is added."""
    _register(folder, link, say)
    if missing := folder.missing():
        say(f"not admitted yet: {', '.join(missing)}; when a site's .pub file comes: fedga flower admit {folder.path}")
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_LOOK_FOR_KEYS_EVERY_S):
            with contextlib.suppress(FedGAError):  # a file half copied by hand, or a server about to end
                _register(folder, link, say)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


def _register(folder: ServerFolder, link: SuperLink, say: Say) -> None:
    fresh = [key for key in folder.admitted_keys() if not (_registered(folder) / f"{key.site}.pub").exists()]
    started = [(key, _start_registration(folder, link, key)) for key in fresh]
    for key, process in started:
        said, _ = process.communicate()
        if process.returncode and _ALREADY_KNOWN not in said:
            raise FedGAError(f"Flower does not take the key of {key.site}: {last_words(said)}")
        write_whole(_registered(folder) / f"{key.site}.pub", key.line)
        say(f"{key.site} may take part ({key.fingerprint})")


def _start_registration(folder: ServerFolder, link: SuperLink, key: PublicKey) -> subprocess.Popen[str]:
    path = folder.admitted / f"{key.site}.pub"
    return link.family.start("flwr", "supernode", "register", str(path), CONNECTION, "--name", key.site)


def _check_free(host: str, port: int) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise FedGAError(
                f"port {port} of {host} cannot be had ({error.strerror}): give another with --port"
            ) from None


class _Door:
    """The gate as a process: started, watched, and started again when it has ended by itself."""

    def __init__(self, members: ProcessGroup, folder: ServerFolder, link: SuperLink, port: int, insecure: bool) -> None:
        self._members, self._link, self._port = members, link, port
        self._host, self._log = folder.listen(), folder.home / "gate.log"
        self._arguments = _gate_arguments(folder, link, port, insecure)
        if self._log.exists():
            self._log.replace(self._log.with_suffix(".old.log"))  # its last words are no gate's of ours
        self._passed_on = 0  # bytes of the log that were looked through
        self._over = threading.Event()
        self._failure: FedGAError | None = None

    @contextlib.contextmanager
    def open(self, say: Say) -> Iterator[None]:
        """A door that is open while the block lasts; if it cannot be opened again, the block ends with an error."""
        gate = self._start()
        watcher = threading.Thread(target=self._watch, args=(gate, say), daemon=True)
        watcher.start()
        try:
            yield
        except FedGAError:
            if self._failure is None:
                raise
        finally:
            self._over.set()
            watcher.join()
        if self._failure is not None:
            raise self._failure

    def _watch(self, gate: subprocess.Popen[str], say: Say) -> None:
        opened_again = -math.inf
        while not self._over.wait(_LOOK_AT_DOOR_EVERY_S):
            self._tell_refusals(say)
            if gate.poll() is None:
                continue
            say(f"the server's port {self._port} has closed ({self._last_words()}): opening it again")
            try:
                if time.monotonic() < opened_again + _OPEN_WITHIN_S:
                    raise self._does_not_open()
                gate, opened_again = self._start(), time.monotonic()
            except FedGAError as error:
                if self._over.is_set():  # meanwhile, so that nobody waits for it any more
                    return
                self._failure = error
                self._link.process.kill()  # which ends the run
                return

    def _tell_refusals(self, say: Say) -> None:
        """Pass on what the gate says for people; whoever keeps it busy fills no memory here."""
        lines: list[bytes] = []
        with contextlib.suppress(FileNotFoundError), self._log.open("rb") as log:
            log.seek(self._passed_on)
            *lines, rest = log.read(_READ_AT_ONCE).split(b"\n")
            self._passed_on = log.tell() - (len(rest) if len(rest) < _READ_AT_ONCE else 0)
        for line in lines:
            if line.startswith(BEGINNING.encode()):
                say(line.decode("utf-8", errors="replace").rstrip())

    def _start(self) -> subprocess.Popen[str]:
        """Start the gate, and wait until it is open."""
        gate = self._members.start(sys.executable, "-m", _GATE, *self._arguments, log=self._log)
        here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host)
        deadline = time.monotonic() + _OPEN_WITHIN_S
        while gate.poll() is None and time.monotonic() < deadline and not self._over.is_set():
            with contextlib.suppress(OSError), socket.create_connection((here, self._port), timeout=1):
                return gate
            time.sleep(0.1)
        raise self._does_not_open()

    def _does_not_open(self) -> FedGAError:
        return FedGAError(f"the server's port {self._port} does not open: {self._last_words()} (log: {self._log})")

    def _last_words(self) -> str:
        return last_words(tail(self._log)) or "it said nothing"


def _gate_arguments(folder: ServerFolder, link: SuperLink, port: int, insecure: bool) -> list[str]:
    arguments = ["--host", folder.listen(), "--port", str(port)]
    arguments += ["--target", f"{'http' if insecure else 'https'}://{link.address}"]
    arguments += ["--most-bytes", str(folder.largest_reply())]
    if insecure:
        return arguments
    files = {"--ca": folder.authority, "--certificate": folder.certificate, "--key": folder.key}
    files["--admitted"] = folder.admitted
    return [*arguments, *(word for flag, path in files.items() for word in (flag, str(path.resolve())))]


def _conclude(folder: ServerFolder, outcome: Outcome, heard: Heard) -> None:
    if outcome.completed:
        return
    if heard.error:
        raise FedGAError(heard.error)
    how = outcome.status.rpartition(":")[2]
    details = "" if outcome.details in ("", "N/A") else f" ({outcome.details})"
    raise FedGAError(f"the run {how}{details}: {folder.log} says more, and the same command continues")
