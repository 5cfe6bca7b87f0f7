"""The folders of a federation, the server's and a site's: ``keys/`` is secret, ``flower/`` is what Flower keeps."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes

from fedga.common.files import read_text, write_whole
from fedga.errors import FedGAError, quoted
from fedga.federation.certificates import days_left, make_authority, make_server_certificate, read_certificate
from fedga.federation.keys import PublicKey, check_secret, make_key_pair, read_public_key, shown_digest
from fedga.federation.names import Address, check_site, parse_address
from fedga.flower.app_template import write_app
from fedga.flower.processes.words import Value, as_toml
from fedga.spec.settings import SETTINGS

LARGEST_REPLY = 256  # megabytes
RENEW_WITHIN_DAYS = 60

_TRAINING = ("algorithm", "model", "rounds", "local_epochs", "batch_size", "lr", "server", "standardize", "seed")
_BEFORE, _DURING = {"wait-for-sites": 600, "min-sites": 0}, {"round-timeout": 3600, "min-replies": 0}


class _Folder:
    """What both have: settings, the certificate by which sites know the server, and a home for Flower."""

    def __init__(self, path: Path, settings: str, made_by: str) -> None:
        self.path, self._made_by = path, made_by
        self.settings, self.authority, self.home = path / settings, path / "ca.crt", path / "flower"

    def fingerprint(self) -> str:
        """What two people can compare on the telephone."""
        return shown_digest(read_certificate(self.authority).fingerprint(hashes.SHA256()))

    def _text(self, key: str) -> str:
        return str(_value(self.settings, _read(self.settings, self._made_by), key))


class ServerFolder(_Folder):
    def __init__(self, path: Path) -> None:
        super().__init__(path, "federation.toml", "fedga flower init")
        keys = path / "keys"
        self.authority_key, self.certificate, self.key = keys / "ca.key", keys / "server.crt", keys / "server.key"
        self.app, self.admitted, self.results = path / "app", path / "admitted", path / "results"
        self.project = self.app / "pyproject.toml"
        self.log = self.home / "server.log"
        self.database = self.home / "federation.db"  # where Flower remembers nodes, and so their numbers
        self.registered = self.home / "registered"  # copies of the keys that the database knows

    def address(self) -> Address:
        """Where the sites reach the server."""
        return parse_address(self._text("address"), f"address in {self.settings}:")

    def listen(self) -> str:
        return self._text("listen")

    def largest_reply(self) -> int:
        """Bytes that a site's reply may have; folders of version 0.1 do not say."""
        found = _read(self.settings, self._made_by).get("largest-reply", LARGEST_REPLY)
        if isinstance(found, bool) or not isinstance(found, (int, float)) or not 1 <= found <= 1_000_000:
            raise FedGAError(f"largest-reply in {self.settings} is {quoted(found)}: write megabytes, such as 256")
        return int(found * 1e6)

    def config(self) -> Mapping[str, Any]:
        content: Any = _read(self.project, self._made_by)
        for key in ("tool", "flwr", "app", "config"):
            content = content.get(key, {})
        return dict(content)

    def sites(self) -> list[str]:
        """The sites of the federation, in the order that numbers them."""
        names = str(_value(self.project, self.config(), "sites")).split(",")
        return [check_site(name.strip(), f"sites in {self.project}:") for name in names]

    def admitted_keys(self) -> dict[str, PublicKey]:
        keys = [read_public_key(path) for path in sorted(self.admitted.glob("*.pub"))]
        return {key.site: key for key in keys}

    def check_same(self, address: str | None, asked: Mapping[str, Any]) -> None:
        """Refuse an address or settings other than those the folder has."""
        if address is not None and parse_address(address) != self.address():
            why = "its certificate is made out to that address: choose a new folder"
            raise FedGAError(f"{self.path} is the federation at {self.address()}, and {why}")
        config = self.config()
        for name, value in asked.items():
            if config.get(name) != value:
                raise FedGAError(f"{self.path} has its settings already: to change {name}, edit {self.project}")

    def check_safe(self) -> None:
        """Refuse certificates that are missing or have expired, and keys that are not secret."""
        made_by = f"fedga flower init {self.path}"
        self.check_authority()
        if not self.certificate.exists():
            why = "anybody could pose as the server, and only --insecure does without"
            raise FedGAError(f"{self.certificate} is missing ({why}): {made_by} makes it again")
        check_secret(self.key, made_by)
        if self.authority_key.exists():  # it may be kept elsewhere
            check_secret(self.authority_key, made_by)
        if days_left(self.certificate) < 0:
            raise FedGAError(f"the server's certificate has expired: {made_by} renews it, and sites need do nothing")

    def check_authority(self) -> None:
        """Refuse a folder without the certificate that the sites trust: they would not accept another one."""
        if not self.authority.exists():
            raise FedGAError(f"{self.authority} is missing: copy it back from a site, where it is called ca.crt too")


def make_server_folder(path: Path, address_text: str, asked: Mapping[str, Any]) -> ServerFolder:
    """A new federation: authority, server certificate, app and settings."""
    folder, address = ServerFolder(path), parse_address(address_text)
    _make_empty(path)
    make_authority(folder.authority_key, folder.authority, address.host)
    make_server_certificate(address.host, folder.authority_key, folder.authority, folder.key, folder.certificate)
    folder.admitted.mkdir()
    description = "Federated learning with fedga between real sites"
    write_app(folder.app, path.name, description, _sections(folder, asked), _template("README.md"))
    listen = "127.0.0.1" if address.loopback else "::" if ":" in address.host else "0.0.0.0"
    values: dict[str, Value] = {"address": str(address), "listen": listen, "largest-reply": LARGEST_REPLY}
    write_whole(folder.settings, _template("federation.toml").format(values=as_toml(values)))
    return folder


def _sections(folder: ServerFolder, asked: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    training = {name.replace("_", "-"): SETTINGS[name].default for name in _TRAINING}
    server = {"server-data": "", "out": str(folder.results.resolve()), "device": "auto"}
    groups = {
        "the sites, numbered in this order, and the classes they agreed on": {"sites": "", "classes": ""},
        "the training; fedga run --help names more, such as active: sites sampled per round (else all)": training,
        "on the server: test samples (none if empty), the results folder, the device": server,
        "before round 1: seconds to wait for sites, and how many must be there (0: all)": _BEFORE,
        "in a round: seconds to wait for a slow site, and how many must answer (0: half of those asked)": _DURING,
    }
    return {text: {name: asked.get(name, each[name]) for name in each} for text, each in groups.items()}


def renew_certificate(folder: ServerFolder) -> bool:
    """A new certificate for the server if the old one expires soon, or it or its key is missing; True if so."""
    folder.check_authority()
    complete = folder.certificate.exists() and folder.key.exists()
    if complete and days_left(folder.certificate) >= RENEW_WITHIN_DAYS:
        return False
    if not folder.authority_key.exists():
        raise FedGAError(f"{folder.authority_key} is missing: restore it from a backup, or make a new folder")
    address = folder.address()
    make_server_certificate(address.host, folder.authority_key, folder.authority, folder.key, folder.certificate)
    return True


def admit_key(folder: ServerFolder, path: Path) -> tuple[PublicKey, bool]:
    """Let the site of a public key take part; the key, and whether it is new."""
    sites, key = folder.sites(), read_public_key(path)
    if key.site not in sites:
        stranger = f"{quoted(key.site)}, which is no site of this federation ({', '.join(sites)})"
        cure = f"ask the site to join under one of these names, or add it to sites in {folder.project}"
        raise FedGAError(f"{path} is the key of {stranger}: {cure}")
    place, admitted = folder.admitted / f"{key.site}.pub", folder.admitted_keys()
    if same := next((other for other in admitted.values() if other.text == key.text), None):
        if same.site != key.site:
            raise FedGAError(f"{path} is also the key of {same.site}: every site needs a key of its own")
        return same, False
    if key.site in admitted:
        raise FedGAError(f"{key.site} has another key already: to replace it, delete {place} and restart the server")
    write_whole(place, key.line)
    return key, True


class SiteFolder(_Folder):
    def __init__(self, path: Path) -> None:
        super().__init__(path, "site.toml", "fedga flower join")
        self.state = path / "state"

    def site(self) -> str:
        return check_site(self._text("site"), f"site in {self.settings}:")

    def key(self) -> Path:
        return self.path / "keys" / f"{self.site()}.key"

    def public_key(self) -> Path:
        return self.path / f"{self.site()}.pub"

    def server(self) -> Address:
        return parse_address(self._text("server"), f"server in {self.settings}:")

    def node_config(self) -> dict[str, Value]:
        """What the ClientApp is told about the site."""
        data = Path(self._text("data"))
        if not data.exists():
            raise FedGAError(f"the data of {self.site()} are not at {data}: put them there, or edit {self.settings}")
        return {
            "site": self.site(),
            "data": str(data),
            "label-column": self._text("label-column"),
            "report-class-counts": self._text("report-class-counts") == "True",
            "state": str(self.state.resolve()),
            "device": self._text("device"),
        }

    def check_safe(self) -> None:
        """Refuse a certificate that is missing or none, and a key that is not secret."""
        read_certificate(self.authority)
        check_secret(self.key(), "fedga flower join, in a new folder,")


def make_site(path: Path, authority: Path, site: str, server: str, **more: Value) -> tuple[SiteFolder, PublicKey]:
    """A new site: its key pair, its copy of the authority's certificate, its settings."""
    address = parse_address(server, "--server")
    settings: dict[str, Value] = {"site": check_site(site), "server": str(address)}
    settings |= {name.replace("_", "-"): value for name, value in more.items()}
    read_certificate(authority)
    _make_empty(path)
    folder = SiteFolder(path)
    public = make_key_pair(site, path / "keys" / f"{site}.key", path / f"{site}.pub")
    write_whole(folder.authority, authority.read_bytes())
    folder.state.mkdir()
    folder.state.chmod(0o700)
    write_whole(folder.settings, _template("site.toml").format(values=as_toml(settings)))
    return folder, public


def _template(name: str) -> str:
    return (Path(__file__).with_name("template") / name).read_text("utf-8")


def _make_empty(path: Path) -> None:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FedGAError(f"{path} is not empty, and keys are never overwritten: choose a folder that does not exist")
    path.mkdir(parents=True, exist_ok=True)


def _read(path: Path, made_by: str) -> Mapping[str, Any]:
    try:
        return tomllib.loads(read_text(path))
    except OSError as error:
        raise FedGAError(f"{path} cannot be read ({error.strerror}): {made_by} makes such a folder") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FedGAError(f"{path} is not a TOML file: {error}") from None


def _value(path: Path, values: Mapping[str, Any], key: str) -> Value:
    value = values.get(key)
    if not isinstance(value, (str, int, float, bool)):
        raise FedGAError(f"{path} has no {key}: add a line {key} = ...")
    return value
