"""The keys by which a server knows a site (P-384, in OpenSSH's format), and files that only their owner may read."""

import base64
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedga.common.files import open_regular, write_whole
from fedga.errors import FedGAError
from fedga.federation.names import SITE_NAME

_LONGEST = 100_000  # bytes; keys and certificates have about a thousand
_WANTED = "the .pub file that fedga flower join made at the site"


@dataclass(frozen=True, eq=False)
class PublicKey:
    """A site's public key; its comment is the name of the site."""

    site: str
    key: ec.EllipticCurvePublicKey

    @property
    def text(self) -> str:
        """Algorithm and key, without the comment."""
        return self.key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()

    @property
    def line(self) -> str:
        return f"{self.text} {self.site}\n"

    @property
    def fingerprint(self) -> str:
        """What two people can compare on the telephone, as ``ssh-keygen -l`` shows it."""
        return shown_digest(serialization.ssh_key_fingerprint(self.key, hashes.SHA256()))


def make_key_pair(site: str, private_path: Path, public_path: Path) -> PublicKey:
    """A new pair; the private half stays in its file."""
    key = ec.generate_private_key(ec.SECP384R1())
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    write_secret(private_path, key.private_bytes(*form))
    public = PublicKey(site, key.public_key())
    write_whole(public_path, public.line)
    return public


def read_public_key(path: Path) -> PublicKey:
    """The public key in a file a site has sent; anything else is refused, a private key above all."""
    content = read_received(path, _WANTED)
    if b"PRIVATE KEY" in content:
        cure = "delete this copy, and ask the site to run fedga flower join in a new folder and to send the .pub file"
        raise FedGAError(f"{path} is a PRIVATE key and must never leave its site: {cure}")
    try:
        key = serialization.load_ssh_public_key(content)
        [kind, _, *comment] = content.decode().split()
    except (ValueError, UnsupportedAlgorithm):
        raise FedGAError(f"{path} is not a public key: give {_WANTED}") from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise FedGAError(f"{path} is a key of the kind {kind}, which Flower does not take: give {_WANTED}")
    site = " ".join(comment) or path.stem
    if not SITE_NAME.fullmatch(site):
        raise FedGAError(f"{path} does not say whose key it is: give {_WANTED}")
    return PublicKey(site, key)


def shown_digest(digest: bytes) -> str:
    """As OpenSSH shows one."""
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def write_secret(path: Path, content: bytes) -> None:
    """Write a new file, in a folder nobody else may enter; an existing one is never overwritten."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise FedGAError(f"{path} exists, and keys are never overwritten: choose another folder") from None
    with os.fdopen(file, "wb") as out:
        os.fchmod(out.fileno(), 0o600)  # whatever the umask
        out.write(content)
        out.flush()
        os.fsync(out.fileno())


def check_secret(path: Path, made_by: str) -> None:
    """Refuse a key that is missing or that others may read; ``made_by`` is the command that makes it."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        raise FedGAError(f"{path} is missing: {made_by} makes it") from None
    if mode & 0o077:
        raise FedGAError(f"others may read the private key {path}: make a new one, or chmod 600 it if nobody has")


def read_received(path: Path, wanted: str) -> bytes:
    """A small file that somebody sent; ``wanted`` says which one to give instead if it cannot be read."""
    try:
        with open_regular(path) as file:
            return file.read(_LONGEST)
    except OSError as error:
        raise FedGAError(f"{path} cannot be read ({error.strerror}): give {wanted}") from None
