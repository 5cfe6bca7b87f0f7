"""What people write by hand: names of sites and classes, addresses."""

import ipaddress
import re
from dataclasses import dataclass

from fedga.errors import FedGAError, quoted
from fedga.flower.processes.words import split_names

SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
LONGEST_CLASS = 100
DEFAULT_PORT = 9092
_ADDRESS = re.compile(r"(?:\[(?P<bracketed>[^]]*)\]|(?P<host>[^:]*))(?::(?P<port>\d{1,5}))?|(?P<ipv6>[^:]*:.*:.*)")
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")


@dataclass(frozen=True)
class Address:
    """Where a server is reached.

    >>> print(parse_address("server.example.org"), parse_address("[::1]:444"), parse_address("::1"))
    server.example.org:9092 [::1]:444 [::1]:9092
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether it means the very machine that asks."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def parse_address(text: str, flag: str = "--address") -> Address:
    """``HOST`` or ``HOST:PORT``, where the host is a name or an IP address."""
    found = _ADDRESS.fullmatch(text)
    host = next(filter(None, found.group("bracketed", "host", "ipv6")), "") if found else ""
    port = int((found and found["port"]) or DEFAULT_PORT)
    if not _is_host(host) or not 1 <= port <= 65535:
        raise FedGAError(f"{flag} {quoted(text)} is not an address: write HOST or HOST:PORT, as example.org:9092")
    return Address(host, port)


def _is_host(text: str) -> bool:
    try:
        return not ipaddress.ip_address(text).is_unspecified
    except ValueError:
        digits_only = all(part.isdecimal() for part in text.split("."))  # an IP address with a slip in it
        return _HOST.fullmatch(text) is not None and not digits_only


def check_site(name: str, flag: str = "--site") -> str:
    """A name that can be a file's, and be read out on the telephone."""
    if not SITE_NAME.fullmatch(name):
        raise FedGAError(f"{flag} {quoted(name)} is not a name for a site: use 1 to 63 of A-Z a-z 0-9 . _ -")
    return name


def parse_parties(sites: str | None, classes: str | None) -> dict[str, str]:
    """The sites and classes of a federation, as far as they were given, as its app's settings name them.

    >>> parse_parties("a, b", "ill,well")
    {'sites': 'a,b', 'classes': 'ill,well'}
    """
    parties = {}
    if sites is not None:
        parties["sites"] = ",".join(check_site(site, "--sites:") for site in split_names(sites, "--sites"))
    if classes is not None:
        names = split_names(classes, "--classes", least=2)
        for name in names:
            if len(name) > LONGEST_CLASS or not name.isprintable():
                cure = f"write {LONGEST_CLASS} letters at most"
                raise FedGAError(f"--classes: {quoted(name)} is not a name for a class: {cure}")
        parties["classes"] = ",".join(names)
    return parties
