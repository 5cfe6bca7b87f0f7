"""What people write by hand: names of sites, addresses, lists."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from dataclasses import dataclass

from fedga.errors import FedGAError, quoted

SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
LONGEST_CLASS = 100
DEFAULT_PORT = 9092
_HOST = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*"
)


@dataclass(frozen=True)
class Address:
    """Where a server is reached.

    >>> print(parse_address("server.example.org"), parse_address("[::1]:444"))
    server.example.org:9092 [::1]:444
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
    host, port = _split(text)
    if not _is_host(host) or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise FedGAError(
            f"{flag} {quoted(text)} is not an address: write HOST or HOST:PORT, such as server.example.org:9092"
        )
    return Address(host, int(port))


def _split(text: str) -> tuple[str, str]:
    bracketed = re.fullmatch(r"\[([^]]*)](?::(.*))?", text)
    if bracketed:
        return bracketed[1], bracketed[2] or str(DEFAULT_PORT)
    if text.count(":") > 1:  # an IPv6 address without brackets
        return text, str(DEFAULT_PORT)
    host, colon, port = text.partition(":")
    return host, port if colon else str(DEFAULT_PORT)


def _is_host(text: str) -> bool:
    try:
        return not ipaddress.ip_address(text).is_unspecified
    except ValueError:
        digits_only = all(part.isdecimal() for part in text.split("."))  # an IP address with a slip in it
        return _HOST.fullmatch(text) is not None and not digits_only


def check_site(name: str, flag: str = "--site") -> str:
    """A name that can be a file's, and be read out on the telephone."""
    if not SITE_NAME.fullmatch(name):
        raise FedGAError(
            f"{flag} {quoted(name)} is not a name for a site: use up to 63 letters, digits, '-', '_' and '.', such as "
            "hospital-a"
        )
    return name


def check_class(name: str) -> str:
    """A name that fits on a line of a terminal, where it is shown."""
    if len(name) > LONGEST_CLASS or not name.isprintable():
        raise FedGAError(
            f"--classes: {quoted(name)} is not a name for a class: use up to {LONGEST_CLASS} letters, all of which "
            "can be printed"
        )
    return name


def parse_names(text: str, flag: str) -> list[str]:
    """A comma list of different names.

    >>> parse_names("a, b", "--sites")
    ['a', 'b']
    """
    names = [name.strip() for name in text.split(",")]
    if "" in names:
        raise FedGAError(f"{flag} {quoted(text)} has an empty name: write them with single commas, as a,b,c")
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise FedGAError(f"{flag} names {quoted(twice[0])} twice: every name stands for one only")
    return names
