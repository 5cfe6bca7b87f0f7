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
from collections.abc import Iterator, Mapping
from pathlib import Path

from fedga.common.files import write_whole
from fedga.errors import FedGAError
from fedga.federation.connections import PREFIX
from fedga.federation.folder import ServerFolder
from fedga.federation.keys import read_public_key
from fedga.federation.names import Address
from fedga.federation.output import OutputFilter, Say
from fedga.flower.processes.group import ProcessGroup, process_group
from fedga.flower.processes.superlink import CONNECTION, Outcome, SuperLink, start_superlink
from fedga.flower.processes.words import last_words, tail

_CHECK_KEYS_EVERY_S = 1.0
_OPEN_WITHIN_S = 30.0
_CHECK_GATE_EVERY_S = 0.5
_READ_AT_ONCE = 100_000
_LONG_LOG = 10_000_000
_ALREADY_KNOWN = "already"  # of a public key; Flower has no other word for it on the command line


def run_server(folder: ServerFolder, insecure: bool, port: int | None, say: Say) -> None:
    """Run the federation to its end; what its server prints goes to ``say``.

    Keys are registered before the gate opens, so that no site is turned away for coming early. Run it on a machine
    where only trusted people have accounts: each of them can reach Flower's control of the runs, and so run code at
    every site.
    """
    address = folder.address()
    folder.largest_reply()  # refused before anything is started
    address = Address(address.host, port or address.port)
    if not insecure:
        folder.check_safe()
    with process_group(folder.home) as group:
        _check_free(folder.listen(), address.port)
        if folder.log.exists() and folder.log.stat().st_size > _LONG_LOG:  # it has a line for every request
            folder.log.replace(folder.log.with_suffix(".old.log"))
        _forget_dismissed(folder)
        link = start_superlink(group, _arguments(folder, insecure), folder.log, None if insecure else folder.authority)
        link.stop_unfinished()
        with _admissions(folder, link, say) if not insecure else contextlib.nullcontext():
            gate = GateProcess(group, folder, link, address.port, insecure)
            with gate.open(say):
                say(f"the server is ready at {address} for {', '.join(folder.sites())}")
                output = OutputFilter(say, say_errors=False)
                outcome = link.run(folder.app, on_line=output.feed)
    _conclude(folder, outcome, output.error)


def _arguments(folder: ServerFolder, insecure: bool) -> list[str]:
    if insecure:
        return ["--insecure", "--database", str(folder.home.resolve() / "insecure.db")]
    files = {"--ssl-ca-certfile": folder.authority, "--ssl-certfile": folder.certificate, "--ssl-keyfile": folder.key}
    return ["--enable-supernode-auth", *_words({"--database": _database(folder), **files})]


def _words(files: Mapping[str, Path]) -> list[str]:
    return [word for flag, path in files.items() for word in (flag, str(path.resolve()))]


def _database(folder: ServerFolder) -> Path:
    """Where Flower remembers nodes: a node keeps its number when the server starts again."""
    return folder.home / "federation.db"


def _registered(folder: ServerFolder) -> Path:
    """Copies of the keys that the database knows."""
    return folder.home / "registered"


def _forget_dismissed(folder: ServerFolder) -> None:
    """If a key was removed, begin with a new database; the sites that stay are registered again."""
    texts = {key.text for key in folder.admitted_keys().values()}
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
    if missing := [site for site in folder.sites() if site not in folder.admitted_keys()]:
        say(f"not admitted yet: {', '.join(missing)}; when a site's .pub file comes: fedga flower admit {folder.path}")
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_CHECK_KEYS_EVERY_S):
            with contextlib.suppress(FedGAError):  # a file half copied by hand, or a server about to end
                _register(folder, link, say)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _register(folder: ServerFolder, link: SuperLink, say: Say) -> None:
    started = {}
    for site, key in folder.admitted_keys().items():
        if not (_registered(folder) / f"{site}.pub").exists():
            path = str(folder.admitted / f"{site}.pub")
            started[key] = link.group.start("flwr", "supernode", "register", path, CONNECTION, "--name", site)
    for key, process in started.items():
        printed, _ = process.communicate()
        if process.returncode and _ALREADY_KNOWN not in printed:
            raise FedGAError(f"Flower does not take the key of {key.site}: {last_words(printed)}")
        write_whole(_registered(folder) / f"{key.site}.pub", key.line)
        say(f"{key.site} may take part ({key.fingerprint})")


def _check_free(host: str, port: int) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise FedGAError(
                f"port {port} of {host} is not available ({error.strerror}): give another --port"
            ) from None


class GateProcess:
    """The gate as a process: started, watched, and started again when it has ended by itself."""

    def __init__(self, group: ProcessGroup, folder: ServerFolder, link: SuperLink, port: int, insecure: bool) -> None:
        self._group, self._link, self._port = group, link, port
        self._host, self.log = folder.listen(), folder.home / "gate.log"
        if self.log.exists():
            self.log.replace(self.log.with_suffix(".old.log"))  # its last words are not this gate's
        self.arguments = ["--host", self._host, "--port", str(port), "--most-bytes", str(folder.largest_reply())]
        self.arguments += ["--target", f"{'http' if insecure else 'https'}://{link.address}"]
        if not insecure:
            files = {"--ca": folder.authority, "--certificate": folder.certificate, "--key": folder.key}
            self.arguments += _words({**files, "--admitted": folder.admitted})
        self._reported = 0  # bytes of the log that were passed on
        self._over = threading.Event()
        self._failure: FedGAError | None = None

    @contextlib.contextmanager
    def open(self, say: Say) -> Iterator[None]:
        """A gate that is open while the block lasts; if it cannot be opened again, the block ends with an error."""
        watcher = threading.Thread(target=self._watch, args=(self._start(), say), daemon=True)
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
        while not self._over.wait(_CHECK_GATE_EVERY_S):
            self._report_refusals(say)
            if gate.poll() is None:
                continue
            say(f"the server's port {self._port} has closed ({self._last_words()}): opening it again")
            try:
                if time.monotonic() < opened_again + _OPEN_WITHIN_S:
                    raise self._does_not_open()
                gate, opened_again = self._start(), time.monotonic()
            except FedGAError as error:
                if not self._over.is_set():  # else nobody waits for it any more
                    self._failure = error
                    self._link.process.kill()  # which ends the run
                return

    def _report_refusals(self, say: Say) -> None:
        """Pass on the gate's lines for people; whoever makes it print a lot fills no memory here."""
        lines: list[bytes] = []
        with contextlib.suppress(FileNotFoundError), self.log.open("rb") as log:
            log.seek(self._reported)
            *lines, rest = log.read(_READ_AT_ONCE).split(b"\n")
            self._reported = log.tell() - (len(rest) if len(rest) < _READ_AT_ONCE else 0)
        for line in lines:
            if line.startswith(PREFIX.encode()):
                say(line.decode("utf-8", errors="replace").rstrip())

    def _start(self) -> subprocess.Popen[str]:
        """Start the gate, and wait until it is open."""
        gate = self._group.start(sys.executable, "-m", "fedga.federation.gate", *self.arguments, log=self.log)
        here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host)
        deadline = time.monotonic() + _OPEN_WITHIN_S
        while gate.poll() is None and time.monotonic() < deadline and not self._over.is_set():
            with contextlib.suppress(OSError), socket.create_connection((here, self._port), timeout=1):
                return gate
            time.sleep(0.1)
        raise self._does_not_open()

    def _does_not_open(self) -> FedGAError:
        return FedGAError(f"the server's port {self._port} does not open: {self._last_words()} (log: {self.log})")

    def _last_words(self) -> str:
        return last_words(tail(self.log)) or "no message"


def _conclude(folder: ServerFolder, outcome: Outcome, error: str) -> None:
    if outcome.completed:
        return
    if error:
        raise FedGAError(error)
    how = outcome.status.rpartition(":")[2]
    details = "" if outcome.details in ("", "N/A") else f" ({outcome.details})"
    raise FedGAError(f"the run {how}{details}: read {folder.log}; the same command continues")
