"""The key pair by which a server knows a site: on the curve P-384, in OpenSSH's format, as Flower wants it."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedga.common.files import write_whole
from fedga.errors import FedGAError
from fedga.federation.names import SITE_NAME
from fedga.federation.secret import read_received, write_secret

_WANTED = "the .pub file that fedga flower join made at the site"


@dataclass(frozen=True)
class PublicKey:
    """A site's public key; its comment is the name of the site."""

    site: str
    text: str  # algorithm and key, without the comment

    @property
    def line(self) -> str:
        """As it stands in a file."""
        return f"{self.text} {self.site}\n"

    @property
    def fingerprint(self) -> str:
        """What two people can compare on the telephone, as ``ssh-keygen -l`` shows it."""
        digest = hashlib.sha256(base64.b64decode(self.text.split()[1])).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def make_key_pair(site: str, private_path: Path, public_path: Path) -> PublicKey:
    """A new pair; the private half stays in its file."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = (serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    write_secret(private_path, key.private_bytes(*private))
    text = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    public = PublicKey(site, text.decode())
    write_whole(public_path, public.line)
    return public


def read_public_key(path: Path) -> PublicKey:
    """The public key in a file a site has sent; anything else is refused, a private key above all."""
    content = read_received(path, _WANTED)
    if b"PRIVATE KEY" in content:
        raise FedGAError(
            f"{path} is a PRIVATE key and must never leave its site: delete this copy, and ask the site to run "
            "fedga flower join in a new folder and to send the .pub file"
        )
    try:
        key = serialization.load_ssh_public_key(content)
        [algorithm, encoded, *comment] = content.decode().split()
    except (ValueError, UnsupportedAlgorithm):
        raise FedGAError(f"{path} is not a public key: give {_WANTED}") from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise FedGAError(f"{path} is a key of the kind {algorithm}, which Flower does not take: give {_WANTED}")
    site = " ".join(comment) or path.stem
    if not SITE_NAME.fullmatch(site):
        raise FedGAError(f"{path} does not say whose key it is: give {_WANTED}")
    return PublicKey(site, f"{algorithm} {encoded}")
