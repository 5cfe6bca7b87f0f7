"""The folders of a federation: certificates, keys and settings, and what is refused."""

from __future__ import annotations

import os
import socket
import ssl
import stat
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from flwr.cli.config_utils import load_and_validate
from flwr.cli.supernode.register import try_load_public_key

from fedga.federation import certificates
from fedga.federation.folder import ServerFolder
from tests.cli.program import Outcome, done, fedga, files

INIT = "flower init server --address fl.example.org --sites north,south --classes ill,well"
JOIN = "flower join {0} --site {0} --server fl.example.org --ca server/ca.crt --data data.csv"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    Path("data.csv").write_text("height,label\n1.0,ill\n2.0,well\n")


@pytest.fixture
def server() -> Path:
    done(INIT)
    return Path("server")


@pytest.fixture
def joined(server: Path) -> Path:
    for site in ("north", "south"):
        done(JOIN.format(site))
    return server


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def secrets_of(*folders: str) -> list[str]:
    """The lines of all private keys, which nobody may ever see."""
    paths = [path for folder in folders for path in Path(folder, "keys").iterdir() if path.suffix == ".key"]
    return [line for path in paths for line in path.read_text().splitlines() if len(line) > 30]


# --- the server's folder ---------------------------------------------------------------------------------------------


def test_keys_are_their_owners_alone_whatever_the_umask() -> None:
    before = os.umask(0)
    try:
        done(INIT)
        done(JOIN.format("north"))
    finally:
        os.umask(before)
    for folder, keys in (("server", ("ca.key", "server.key")), ("north", ("north.key",))):
        assert mode(Path(folder, "keys")) == 0o700
        for name in keys:
            assert mode(Path(folder, "keys", name)) == 0o600
    assert mode(Path("north/state")) == 0o700


def test_nothing_secret_is_said_or_handed_out() -> None:
    said = [done(INIT), done(JOIN.format("north")), done("flower admit server north/north.pub"), done(INIT)]
    public = [path for path in (*Path("server").rglob("*"), *Path("north").rglob("*")) if path.suffix != ".key"]
    shown = "".join(outcome.out + outcome.err for outcome in said)
    shown += "".join(path.read_text() for path in public if path.is_file())
    for secret in secrets_of("server", "north"):
        assert secret not in shown
    assert "PRIVATE" not in shown


def test_init_says_what_comes_next() -> None:
    said = done(INIT).err
    assert "server/ca.crt" in said
    for site in ("north", "south"):
        assert f"fedga flower join {site} --site {site} --server fl.example.org:9092 --ca ca.crt --data PATH" in said
    assert "fedga flower serve server" in said


def test_the_app_is_one_that_flower_accepts(tmp_path: Path) -> None:
    Path("test.csv").write_text("")
    done(INIT, "--server-data", "test.csv", "--rounds", "7", "--algorithm", "fedavg,fedprox:mu=0.1")
    config, warnings = load_and_validate(Path("server/app/pyproject.toml"))
    assert warnings == []
    settings = config["tool"]["flwr"]["app"]["config"]
    asked = {"sites": "north,south", "classes": "ill,well", "rounds": 7, "algorithm": "fedavg,fedprox:mu=0.1"}
    paths = {"server-data": str(tmp_path / "test.csv"), "out": str(tmp_path / "server/results")}
    waiting = {"wait-for-sites": 600, "min-sites": 0, "round-timeout": 3600, "device": "auto"}
    assert settings.items() >= (asked | paths | waiting).items()


def test_the_app_reads_its_settings(server: Path) -> None:
    from fedga.flower.server.app import read_settings

    config = tomllib.loads((server / "app/pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    settings, runs = read_settings(config)
    assert (settings.sites, settings.classes, settings.round_timeout) == ("north,south", "ill,well", 3600)
    assert runs["algorithm"] == ["fedga"]


def test_given_again_everything_stays(server: Path) -> None:
    before = files(server)
    assert "nothing was changed" in done(INIT).err
    assert "nothing was changed" in done("flower init server").err
    assert files(server) == before


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("--address other.example.org", "its certificate is made out to that address: choose a new folder"),
        ("--address fl.example.org:9093", "is the federation at fl.example.org:9092"),
        ("--rounds 3", "to change rounds, edit server/app/pyproject.toml"),
        ("--sites north,south,west", "to change sites, edit"),
    ],
)
def test_given_again_differently_it_is_refused(server: Path, more: str, words: str) -> None:
    before = files(server)
    assert words in fedga(f"flower init server {more}").complaint
    assert files(server) == before


@pytest.mark.parametrize(
    "address",
    ["a b", "fl.example.org:", "fl.example.org:http", "fl.example.org:70000", "0.0.0.0", "300.1.1.1", "https://x"],
)
def test_bad_addresses(address: str) -> None:
    words = fedga("flower init server --sites a,b --classes x,y --address", address).complaint
    assert words.startswith(f"--address {address!r} is not an address: write HOST or HOST:PORT")
    assert not Path("server").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--sites a,b --classes x,y", "to make one, give --address HOST"),
        ("--address h --sites a,a --classes x,y", "--sites 'a,a' has 'a' twice"),
        ("--address h --sites a,,b --classes x,y", "has an empty name"),
        ("--address h --sites a,b/c --classes x,y", "'b/c' is not a name for a site"),
        ("--address h --sites a,b --classes x", "is a single name"),
        ("--address h --sites a,b --classes x,y --server-data nowhere.csv", "'nowhere.csv' does not exist"),
        ("--address h --sites a,b --classes x,y --algorithm fedgaa", "did you mean 'fedga'?"),
        ("--address h --sites a,b --classes x,y --model lenett", "unknown model 'lenett': did you mean 'lenet'?"),
        ("--address h --sites a,b --classes x,y --model no.such:Net", "No module named 'no'"),
        ("--address h --sites a,b --classes x,y --model torch.nn:Linear", "sites run no other code"),
        (f"--address h --sites {'a' * 300},b --classes x,y", "is not a name for a site"),
        (f"--address h --sites a,b --classes {'x' * 300},y", "is not a name for a class"),
        ("--address h --sites a,b --classes x,y --server-data /dev/zero", "/dev/zero is a device"),
        ("--address h --sites a,b --classes x,y --rounds 0", "--rounds must be a whole number of at least 1"),
    ],
)
def test_bad_settings_leave_nothing_behind(options: str, words: str) -> None:
    assert words in fedga(f"flower init server {options}").complaint
    assert not Path("server").exists()


def test_a_folder_with_something_else_in_it_is_left_alone() -> None:
    Path("server").mkdir()
    Path("server/mine.txt").write_text("mine")
    assert "server is not empty" in fedga(INIT).complaint
    assert [path.name for path in Path("server").iterdir()] == ["mine.txt"]


# --- certificates ----------------------------------------------------------------------------------------------------


def shake_hands(server: Path, ca: Path, host: str) -> None:
    """A TLS handshake within this process, as a site makes it; an untrusted server raises."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server / "keys/server.crt", server / "keys/server.key")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    trusting = ssl.create_default_context(cafile=str(ca))
    trusting.verify_flags |= ssl.VERIFY_X509_STRICT
    client = trusting.wrap_bio(to_client, to_server, server_hostname=host)
    answering = context.wrap_bio(to_server, to_client, server_side=True)
    waiting = [client, answering]
    while waiting:
        side = waiting.pop(0)
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            waiting.append(side)


def test_the_certificate_is_for_the_address_and_the_machine_itself(server: Path) -> None:
    for host in ("fl.example.org", "localhost", "127.0.0.1"):
        shake_hands(server, server / "ca.crt", host)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, server / "ca.crt", "evil.example.org")


@pytest.mark.parametrize("host", ["192.0.2.7", "2001:db8::7"])
def test_an_address_may_be_a_number(host: str) -> None:
    written = f"[{host}]:444" if ":" in host else f"{host}:444"
    done(f"flower init server --address {written} --sites a,b --classes x,y")
    shake_hands(Path("server"), Path("server/ca.crt"), host)


def test_another_authority_does_not_vouch_for_it(server: Path) -> None:
    done(INIT.replace("init server", "init other"))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, Path("other/ca.crt"), "fl.example.org")


def test_certificates_last_ten_years_and_two(server: Path) -> None:
    assert certificates.days_left(server / "ca.crt") == pytest.approx(3652, abs=2)
    assert certificates.days_left(server / "keys/server.crt") == pytest.approx(730, abs=2)


def test_a_certificate_that_ends_soon_is_renewed_with_the_same_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(certificates, "SERVER_DAYS", -1)
        done(INIT)
    server = Path("server")
    assert "certificate has expired: fedga flower init server renews it" in fedga("flower serve server").complaint
    before = files(server)
    assert "certificate is new" in done("flower init server").err
    changed = {name for name, content in files(server).items() if before.get(name) != content}
    assert changed == {"keys/server.crt"}
    shake_hands(server, server / "ca.crt", "fl.example.org")


@pytest.mark.parametrize("lost", [["server.key"], ["server.crt"], ["server.key", "server.crt"]])
def test_what_the_server_has_lost_is_made_anew(server: Path, lost: list[str]) -> None:
    before = files(server)
    for name in lost:
        (server / "keys" / name).unlink()
    assert "fedga flower init server makes it" in fedga("flower serve server").complaint
    assert "certificate is new" in done("flower init server").err
    changed = {name for name, content in files(server).items() if before.get(name) != content}
    assert changed == {f"keys/{name}" for name in {*lost, "server.crt"}}
    shake_hands(server, server / "ca.crt", "fl.example.org")


def test_the_authoritys_key_may_be_kept_elsewhere() -> None:
    said = done(INIT).err
    assert "server/keys/ca.key: only a new certificate needs it" in said
    server = Path("server")
    (server / "keys/ca.key").unlink()
    ServerFolder(server).check_safe()
    assert "nothing was changed" in done("flower init server").err
    (server / "keys/server.crt").unlink()
    words = fedga("flower init server").complaint
    assert words.endswith("restore it from a backup, or make a new folder")


def test_the_authoritys_certificate_is_at_every_site(server: Path) -> None:
    (server / "ca.crt").unlink()
    for command in ("flower serve server", "flower init server"):
        assert "copy it back from a site" in fedga(command).complaint


# --- a site's folder -------------------------------------------------------------------------------------------------


def test_flower_takes_the_keys_of_a_site(joined: Path) -> None:
    assert try_load_public_key(Path("north/north.pub"))
    private = serialization.load_ssh_private_key(Path("north/keys/north.key").read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)


def test_the_settings_of_a_site(server: Path, tmp_path: Path) -> None:
    said = done(JOIN.format("north"), "--label-column", "label", "--report-class-counts").err
    assert "north/north.pub (not secret)" in said
    assert "fedga flower site north" in said
    assert tomllib.loads(Path("north/site.toml").read_text()) == {
        **{"site": "north", "server": "fl.example.org:9092", "data": str(tmp_path / "data.csv")},
        **{"label-column": "label", "report-class-counts": True, "device": "auto"},
    }
    assert Path("north/ca.crt").read_bytes() == (server / "ca.crt").read_bytes()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("--data data.csv", "--data nowhere.csv"), "--data 'nowhere.csv' does not exist"),
        (("--ca server/ca.crt", "--ca data.csv"), "data.csv is not a certificate"),
        (("--ca server/ca.crt", "--ca nowhere"), "nowhere cannot be read"),
        (("--ca server/ca.crt", "--ca server/keys/ca.key"), "holds a private key"),
        (("--site north", "--site 'the north'"), "is not a name for a site"),
        (("--site north", "--site ../north"), "is not a name for a site"),
        (("--server fl.example.org", "--server fl..example"), "--server 'fl..example' is not an address"),
    ],
)
def test_bad_joins_leave_nothing_behind(server: Path, change: tuple[str, str], words: str) -> None:
    assert words in fedga(JOIN.format("north").replace(*change)).complaint
    assert not Path("north").exists()


def test_a_sites_key_is_never_overwritten(joined: Path) -> None:
    before = files(Path("north"))
    assert "keys are never overwritten" in fedga(JOIN.format("north")).complaint
    assert files(Path("north")) == before


# --- admission -------------------------------------------------------------------------------------------------------


def test_admitted_once_or_twice(joined: Path) -> None:
    said = done("flower admit server north/north.pub").err
    assert "1 of 2 sites are admitted; waiting for the keys of south" in said
    before = files(joined)
    assert "  north  admitted, " in done("flower admit server north/north.pub").err
    assert files(joined) == before
    Path("mail").mkdir()
    Path("mail/key (1).pub").write_bytes(Path("south/south.pub").read_bytes())
    assert "fedga flower serve server" in done("flower admit server", "mail/key (1).pub").err
    assert {path.name for path in Path("server/admitted").iterdir()} == {"north.pub", "south.pub"}


def test_both_sides_see_one_fingerprint(server: Path) -> None:
    def fingerprints(outcome: Outcome) -> set[str]:
        return {word.rstrip(";") for word in outcome.err.split() if word.startswith("SHA256:")}

    site = fingerprints(done(JOIN.format("north")))
    assert site == fingerprints(done(INIT)) | fingerprints(done("flower admit server north/north.pub"))


def test_a_private_key_is_refused_sharply(joined: Path) -> None:
    words = fedga("flower admit server north/keys/north.key").complaint
    assert "is a PRIVATE key and must never leave its site" in words
    assert not any(Path("server/admitted").iterdir())


def test_other_keys_are_refused(joined: Path) -> None:
    stranger = ed25519.Ed25519PrivateKey.generate().public_key()
    line = stranger.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    Path("other.pub").write_bytes(line + b" north\n")
    assert "kind ssh-ed25519, which Flower does not take" in fedga("flower admit server other.pub").complaint
    assert "is not a public key" in fedga("flower admit server data.csv").complaint
    assert "cannot be read" in fedga("flower admit server nowhere.pub").complaint
    north = Path("north/north.pub").read_text()
    Path("other.pub").write_text(north.replace(" north", " west"))
    assert "is no site of this federation (north, south)" in fedga("flower admit server other.pub").complaint
    done("flower admit server north/north.pub")
    Path("other.pub").write_text(north.replace(" north", " south"))
    assert "is also the key of north" in fedga("flower admit server other.pub").complaint
    Path("other.pub").write_text(Path("south/south.pub").read_text().replace(" south", " north"))
    assert "north has another key already" in fedga("flower admit server other.pub").complaint
    assert {path.name for path in Path("server/admitted").iterdir()} == {"north.pub"}


def test_admission_needs_a_federation() -> None:
    assert "fedga flower init makes such a folder" in fedga("flower admit nowhere data.csv").complaint


# --- what is checked before anything is started ----------------------------------------------------------------------


def test_no_server_without_certificates(server: Path) -> None:
    (server / "keys/server.crt").unlink()
    words = fedga("flower serve server").complaint
    assert "anybody could pose as the server" in words
    assert "only --insecure does without" in words


def test_no_server_with_a_key_that_others_may_read(server: Path) -> None:
    (server / "keys/server.key").chmod(0o640)
    assert "others may read the private key server/keys/server.key" in fedga("flower serve server").complaint


def test_no_site_with_a_key_that_others_may_read(joined: Path) -> None:
    Path("north/keys/north.key").chmod(0o604)
    assert "others may read the private key north/keys/north.key" in fedga("flower site north").complaint


def test_no_site_without_its_data(joined: Path) -> None:
    Path("data.csv").unlink()
    assert "the data of north are not at" in fedga("flower site north").complaint


def test_folders_that_are_none() -> None:
    assert "fedga flower init makes such a folder" in fedga("flower serve nowhere").complaint
    assert "fedga flower join makes such a folder" in fedga("flower site nowhere").complaint


def test_a_taken_port(server: Path) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port} of 0.0.0.0 is not available" in fedga(f"flower serve server --port {port}").complaint


@pytest.fixture
def impostor() -> Iterator[int]:
    """The port of a server with a certificate of another authority, for this very machine."""
    done("flower init impostor --address localhost --sites a,b --classes x,y")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain("impostor/keys/server.crt", "impostor/keys/server.key")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield from _answering(listening, context)


@pytest.fixture
def plain_text() -> Iterator[int]:
    """The port of a server without TLS."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield from _answering(listening, None)


def _answering(listening: socket.socket, context: ssl.SSLContext | None) -> Iterator[int]:
    def answer() -> None:
        line, _ = listening.accept()
        with line:
            if context is None:
                line.recv(1000)
                line.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                return
            with pytest.raises(ssl.SSLError):
                context.wrap_socket(line, server_side=True)

    thread = threading.Thread(target=answer)
    thread.start()
    yield listening.getsockname()[1]
    thread.join()


def test_a_site_does_not_speak_to_an_impostor(server: Path, impostor: int) -> None:
    done(JOIN.format("north").replace("fl.example.org", f"localhost:{impostor}"))
    words = fedga("flower site north").complaint
    assert f"localhost:{impostor} is not the server that north/ca.crt vouches for" in words


def test_a_site_does_not_speak_in_plain_text(server: Path, plain_text: int) -> None:
    done(JOIN.format("north").replace("fl.example.org", f"localhost:{plain_text}"))
    assert f"localhost:{plain_text} does not speak over TLS" in fedga("flower site north").complaint


# --- the commands themselves -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["new app", INIT, JOIN.format("north"), "admit a b", "serve a", "site a"])
def test_without_flower_every_command_says_so(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedga.flower.find_spec", lambda name: None)
    words = fedga(f"flower {command.removeprefix('flower ')}").complaint
    assert words.endswith("pip install 'fedga[flower]'")


def test_the_server_is_no_place_for_everybody() -> None:
    words = " ".join(done("flower serve --help").out.replace("│", " ").split())
    assert "Run it on a machine where only trusted people have accounts" in words
    assert "run code at every site" in words


def test_help_teaches_the_order_and_loads_nothing_heavy() -> None:
    program = "import sys; from fedga.cli import main\ntry: main(['flower'])\nexcept SystemExit: pass\n"
    program += (
        "heavy = {'torch', 'flwr', 'cryptography', 'sklearn'} & set(sys.modules); sys.exit(f'{heavy}' if heavy else 0)"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    words = " ".join(shown.stdout.split())
    steps = [words.index(f"fedga flower {step}") for step in ("new", "init", "join", "admit", "serve", "site")]
    assert steps == sorted(steps)
