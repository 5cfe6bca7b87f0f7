"""`fedga flower serve`: a federation's server, from the first certificate check to the end of its run."""

import contextlib
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import replace

from fedga.common.files import write_whole
from fedga.errors import FedGAError
from fedga.federation.folder import ServerFolder
from fedga.federation.keys import read_public_key
from fedga.federation.output import OutputFilter, Say
from fedga.flower.processes.group import process_group
from fedga.flower.processes.superlink import CONNECTION, SuperLink, start_superlink
from fedga.flower.processes.words import last_words

_CHECK_KEYS_EVERY_S = 1.0
_LONG_LOG = 10_000_000
_ALREADY_KNOWN = "already"  # of a public key; Flower has no other word for it on the command line


def run_server(folder: ServerFolder, insecure: bool, port: int | None, say: Say) -> None:
    """Run the federation to its end; keys are registered before the gate opens, so that no site is turned away."""
    address = folder.address()
    address = replace(address, port=port or address.port)
    folder.largest_reply()  # refused before anything is started
    if not insecure:
        folder.check_safe()
    with process_group(folder.home) as group, _bind(folder.listen(), address.port) as listener:
        if folder.log.exists() and folder.log.stat().st_size > _LONG_LOG:  # it has a line for every request
            folder.log.replace(folder.log.with_suffix(".old.log"))
        _forget_dismissed(folder)
        link = start_superlink(group, _arguments(folder, insecure), folder.log, None if insecure else folder.authority)
        link.stop_unfinished()
        admissions = contextlib.nullcontext() if insecure else _admissions(folder, link, say)
        with admissions, _gate(folder, link, listener, insecure, say):
            say(f"the server is ready at {address} for {', '.join(folder.sites())}")
            output = OutputFilter(say, say_errors=False)
            outcome = link.run(folder.app, output.feed)
    if not outcome.completed:
        how = outcome.status.rpartition(":")[2]
        details = "" if outcome.details in ("", "N/A") else f" ({outcome.details})"
        raise FedGAError(output.error or f"the run {how}{details}: read {folder.log}; the same command continues")


def _arguments(folder: ServerFolder, insecure: bool) -> list[str]:
    if insecure:
        return ["--insecure", "--database", str(folder.home.resolve() / "insecure.db")]
    files = {"--ssl-ca-certfile": folder.authority, "--ssl-certfile": folder.certificate, "--ssl-keyfile": folder.key}
    words = [word for flag, path in files.items() for word in (flag, str(path.resolve()))]
    return ["--enable-supernode-auth", "--database", str(folder.database.resolve()), *words]


def _forget_dismissed(folder: ServerFolder) -> None:
    """If a key was removed, begin with a new database; the sites that stay are registered again."""
    texts = {key.text for key in folder.admitted_keys().values()}
    known = [read_public_key(path) for path in folder.registered.glob("*.pub")]
    if folder.database.exists() and all(key.text in texts for key in known):
        return
    shutil.rmtree(folder.registered, ignore_errors=True)
    for path in folder.home.glob(f"{folder.database.name}*"):
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
        if not (folder.registered / f"{site}.pub").exists():
            path = str(folder.admitted / f"{site}.pub")
            started[key] = link.group.start("flwr", "supernode", "register", path, CONNECTION, "--name", site)
    for key, process in started.items():
        printed, _ = process.communicate()
        if process.returncode and _ALREADY_KNOWN not in printed:
            raise FedGAError(f"Flower does not take the key of {key.site}: {last_words(printed)}")
        write_whole(folder.registered / f"{key.site}.pub", key.line)
        say(f"{key.site} may take part ({key.fingerprint})")


def _bind(host: str, port: int) -> socket.socket:
    """The port, taken at once; connections are refused until the gate listens."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if listener.family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise FedGAError(f"port {port} of {host} is not available ({error.strerror}): give another --port") from None
    return listener


def _gate(
    folder: ServerFolder, link: SuperLink, listener: socket.socket, insecure: bool, say: Say
) -> contextlib.AbstractContextManager[None]:
    """The gate before the SuperLink; if it closes by itself, the run ends."""
    from fedga.federation.gate import Admitted, Gate, open_gate  # slow to import, and of no use to other commands

    log, most_bytes = folder.home / "gate.log", folder.largest_reply()

    def closed() -> None:
        say(f"the server's port has closed: read {log}, and give the same command again")
        link.process.kill()

    if insecure:
        return open_gate(Gate(f"http://{link.address}", None, None, most_bytes, say), listener, log, closed)
    trusted, admitted = ssl.create_default_context(cafile=folder.authority), Admitted(folder.admitted)
    gate = Gate(f"https://{link.address}", trusted, admitted, most_bytes, say)
    return open_gate(gate, listener, log, closed, folder.certificate, folder.key)
