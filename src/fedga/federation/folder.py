"""The two kinds of folders of a federation: the server's and a site's. Each tells where its files are and writes them.

What is secret lies in ``keys/``; ``ca.crt``, ``*.pub`` and the settings are not. ``flower/`` is what Flower keeps.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedga.common.files import open_regular, write_whole
from fedga.errors import FedGAError, quoted
from fedga.federation.certificates import (
    RENEW_WITHIN_DAYS,
    days_left,
    make_authority,
    make_server_certificate,
    read_certificate,
)
from fedga.federation.keys import PublicKey, make_key_pair, read_public_key
from fedga.federation.names import Address, check_site, parse_address
from fedga.federation.secret import check_secret
from fedga.flower.app_template import Section, write_app
from fedga.flower.processes.words import Value, as_toml

_FEDERATION = """\
# Where the server of this federation is, written by `fedga flower init`. Its certificate is made out to this host.
# What is trained, and by whom, stands in app/pyproject.toml. A site may send replies of as many megabytes as
# largest-reply says: a model, and what the algorithm adds to it, must fit in.
{values}"""
LARGEST_REPLY = 256  # megabytes

_SITE = """\
# This site of a federation, written by `fedga flower join`. All of it may be edited, except the name of the site.
{values}"""

_README = """\
# A federation

`fedga flower serve` submits this app, and every site runs it; it holds settings and no code but the names of the two
parts, which come from the fedga installed on each machine. Settings are in `pyproject.toml` and may be edited while the
server does not run; a change makes another run, which begins at round 1.
"""


@dataclass(frozen=True)
class ServerFolder:
    """What is on the server's machine."""

    path: Path

    @property
    def settings(self) -> Path:
        return self.path / "federation.toml"

    @property
    def authority(self) -> Path:
        return self.path / "ca.crt"

    @property
    def authority_key(self) -> Path:
        return self.path / "keys" / "ca.key"

    @property
    def certificate(self) -> Path:
        return self.path / "keys" / "server.crt"

    @property
    def key(self) -> Path:
        return self.path / "keys" / "server.key"

    @property
    def app(self) -> Path:
        return self.path / "app"

    @property
    def admitted(self) -> Path:
        return self.path / "admitted"

    @property
    def results(self) -> Path:
        return self.path / "results"

    @property
    def home(self) -> Path:
        return self.path / "flower"

    @property
    def log(self) -> Path:
        return self.home / "server.log"

    def exists(self) -> bool:
        return self.settings.exists()

    def address(self) -> Address:
        """Where the sites reach the server."""
        return parse_address(str(_value(self.settings, self._read(), "address")), f"address in {self.settings}:")

    def listen(self) -> str:
        """The address of this machine's that the server listens on."""
        return str(_value(self.settings, self._read(), "listen"))

    def largest_reply(self) -> int:
        """Bytes that a site's reply may have; folders of version 0.1 do not say."""
        found = self._read().get("largest-reply", LARGEST_REPLY)
        if isinstance(found, bool) or not isinstance(found, (int, float)) or not 1 <= found <= 1_000_000:
            raise FedGAError(f"largest-reply in {self.settings} is {quoted(found)}: write megabytes, such as 256")
        return int(found * 1e6)

    def config(self) -> Mapping[str, Any]:
        """The settings of the app."""
        content: Any = _read(self.app / "pyproject.toml", "fedga flower init")
        for key in ("tool", "flwr", "app", "config"):
            content = content.get(key, {})
        return dict(content)

    def sites(self) -> list[str]:
        """The sites of the federation, in the order that numbers them."""
        names = str(_value(self.app / "pyproject.toml", self.config(), "sites")).split(",")
        return [check_site(name.strip(), f"sites in {self.app / 'pyproject.toml'}:") for name in names]

    def missing(self) -> list[str]:
        """The sites whose keys have not come yet."""
        here = {key.site for key in self.admitted_keys()}
        return [site for site in self.sites() if site not in here]

    def _read(self) -> Mapping[str, Any]:
        return _read(self.settings, "fedga flower init")

    def check_safe(self) -> None:
        """Refuse certificates that are missing or have ended, and keys that are not secret."""
        made_by = f"fedga flower init {self.path}"
        self.check_authority()
        if not self.certificate.exists():
            raise FedGAError(
                f"{self.certificate} is missing, and without it anybody could pose as the server: {made_by} makes it "
                "anew, and nothing changes for sites; only --insecure does without"
            )
        check_secret(self.key, made_by)
        if self.authority_key.exists():  # it may be kept elsewhere
            check_secret(self.authority_key, made_by)
        if days_left(self.certificate) < 0:
            raise FedGAError(f"the server's certificate has ended: {made_by} renews it, and nothing changes for sites")

    def check_authority(self) -> None:
        """Refuse a folder without the certificate that the sites trust: another one would be none of theirs."""
        if not self.authority.exists():
            raise FedGAError(
                f"{self.authority} is missing, by which sites know the server: copy it back from a site, where it is "
                "ca.crt, too, or restore it from a backup"
            )

    def admitted_keys(self) -> list[PublicKey]:
        """The keys of the admitted sites."""
        return [read_public_key(path) for path in sorted(self.admitted.glob("*.pub"))]


def make_server(path: Path, address: Address, sections: list[Section]) -> ServerFolder:
    """A new federation: authority, server certificate, app and settings."""
    folder = ServerFolder(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FedGAError(f"{path} is not empty: choose a folder that is not there yet")
    path.mkdir(parents=True, exist_ok=True)
    make_authority(folder.authority_key, folder.authority, address.host)
    _certify(folder, address)
    folder.admitted.mkdir()
    description = "Federated learning with fedga between real sites"
    write_app(folder.app, path.name, description, sections, _README)
    listen = "127.0.0.1" if address.loopback else "::" if ":" in address.host else "0.0.0.0"
    places: dict[str, Value] = {"address": str(address), "listen": listen, "largest-reply": LARGEST_REPLY}
    write_whole(folder.settings, _FEDERATION.format(values=as_toml(places)))
    return folder


def renew(folder: ServerFolder) -> bool:
    """A new certificate for the server if the old one ends soon, or it or its key is missing; True if so."""
    folder.check_authority()
    there = folder.certificate.exists() and folder.key.exists()
    if there and days_left(folder.certificate) >= RENEW_WITHIN_DAYS:
        return False
    if not folder.authority_key.exists():
        raise FedGAError(
            f"{folder.authority_key} is missing, which has to sign a new certificate of the server: restore it from a "
            "backup, or make a new folder"
        )
    _certify(folder, folder.address())
    return True


def _certify(folder: ServerFolder, address: Address) -> None:
    authority = (folder.authority_key, folder.authority)
    make_server_certificate(address.host, *authority, folder.key, folder.certificate)


def admit(folder: ServerFolder, path: Path) -> tuple[PublicKey, bool]:
    """Let the site of a public key take part; the key, and whether it is new."""
    sites, key = folder.sites(), read_public_key(path)
    if key.site not in sites:
        raise FedGAError(
            f"{path} is the key of {key.site!r}, which is no site of this federation ({', '.join(sites)}): ask the "
            f"site to join under one of these names, or add it to sites in {folder.app / 'pyproject.toml'}"
        )
    place = folder.admitted / f"{key.site}.pub"
    for other in folder.admitted_keys():
        if other.site == key.site and other.text == key.text:
            return other, False
        if other.site == key.site:
            raise FedGAError(
                f"{key.site} has another key already: if this one replaces it, delete {place} first and start the "
                "server again afterwards"
            )
        if other.text == key.text:
            raise FedGAError(f"{path} is the key of {other.site}, too: every site needs a key of its own")
    write_whole(place, key.line)
    return key, True


@dataclass(frozen=True)
class SiteFolder:
    """What is on a site's machine."""

    path: Path

    @property
    def settings(self) -> Path:
        return self.path / "site.toml"

    @property
    def authority(self) -> Path:
        return self.path / "ca.crt"

    @property
    def state(self) -> Path:
        return self.path / "state"

    @property
    def home(self) -> Path:
        return self.path / "flower"

    def key(self) -> Path:
        return self.path / "keys" / f"{self.site()}.key"

    def public_key(self) -> Path:
        return self.path / f"{self.site()}.pub"

    def site(self) -> str:
        return check_site(str(self._value("site")), f"site in {self.settings}:")

    def server(self) -> Address:
        return parse_address(str(self._value("server")), f"server in {self.settings}:")

    def node_config(self) -> dict[str, Value]:
        """What the ClientApp is told about the site."""
        data = Path(str(self._value("data")))
        if not data.exists():
            raise FedGAError(f"the data of {self.site()} are not at {data}: put them there, or edit {self.settings}")
        return {
            "site": self.site(),
            "data": str(data),
            "label-column": str(self._value("label-column")),
            "report-class-counts": bool(self._value("report-class-counts")),
            "state": str(self.state.resolve()),
            "device": str(self._value("device")),
        }

    def check_safe(self) -> None:
        """Refuse a certificate that is missing or none, and a key that is not secret."""
        read_certificate(self.authority)
        check_secret(self.key(), "fedga flower join, in a new folder,")

    def _value(self, key: str) -> Value:
        return _value(self.settings, _read(self.settings, "fedga flower join"), key)


def make_site(path: Path, authority: Path, settings: Mapping[str, Value]) -> tuple[SiteFolder, PublicKey]:
    """A new site: its key pair, its copy of the authority's certificate, its settings."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FedGAError(f"{path} is not empty, and keys are never overwritten: choose a folder that is not there yet")
    read_certificate(authority)
    folder, site = SiteFolder(path), str(settings["site"])
    public = make_key_pair(site, path / "keys" / f"{site}.key", path / f"{site}.pub")
    write_whole(folder.authority, authority.read_bytes())
    folder.state.mkdir()
    folder.state.chmod(0o700)
    write_whole(folder.settings, _SITE.format(values=as_toml(settings)))
    return folder, public


def _read(path: Path, made_by: str) -> Mapping[str, Any]:
    try:
        with open_regular(path) as file:
            return tomllib.loads(file.read().decode("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise FedGAError(f"{path} is missing: {made_by} makes such a folder") from None
    except OSError as error:
        raise FedGAError(f"{path} cannot be read ({error.strerror}): {made_by} makes such a folder") from None
    except RecursionError:
        raise FedGAError(f"{path} is not a TOML file of ours: its values are nested without end") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FedGAError(f"{path} is not a TOML file: {error}") from None


def _value(path: Path, values: Mapping[str, Any], key: str) -> Value:
    value = values.get(key)
    if not isinstance(value, (str, int, float, bool)):
        raise FedGAError(f"{path} has no {key}: write it in again, as {key} = ...")
    return value
