"""The certificates of a federation: an authority's (``ca.crt``, not secret), and the server's, which it signs."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedga.common.files import write_whole
from fedga.errors import FedGAError
from fedga.federation.keys import read_received, write_secret

AUTHORITY_DAYS = 3653
SERVER_DAYS = 731
_WANTED = "the ca.crt that the server's owner sent"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_ENCIPHERS = ("key_encipherment", "data_encipherment", "encipher_only", "decipher_only")
_UNUSED = dict.fromkeys(("content_commitment", "key_agreement", *_ENCIPHERS), False)

Key = ec.EllipticCurvePrivateKey


def make_authority(key_path: Path, certificate_path: Path, host: str) -> None:
    """A key and the certificate that vouches for whatever the key signs."""
    key, name = _make_key(key_path), _name(f"fedga federation of {host}")
    _issue(certificate_path, AUTHORITY_DAYS, name, key, name, key)


def make_server_certificate(
    host: str, authority_key: Path, authority: Path, key_path: Path, certificate_path: Path
) -> None:
    """The certificate of a server that is reached as ``host``, or on its own machine; its key is made if missing."""
    signer = _read_key(authority_key)
    key = _read_key(key_path) if key_path.exists() else _make_key(key_path)
    names = [_general_name(name) for name in dict.fromkeys((host, *_LOOPBACK))]
    more = (
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
        x509.SubjectAlternativeName(names),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
    )
    _issue(certificate_path, SERVER_DAYS, _name(host), key, read_certificate(authority).subject, signer, *more)


def read_certificate(path: Path) -> x509.Certificate:
    """The certificate in a file that somebody sent."""
    content = read_received(path, _WANTED)
    if b"PRIVATE KEY" in content:
        raise FedGAError(f"{path} holds a private key, which must stay where it was made: give {_WANTED}")
    try:
        return x509.load_pem_x509_certificate(content)
    except ValueError:
        raise FedGAError(f"{path} is not a certificate: give {_WANTED}") from None


def days_left(path: Path) -> int:
    """For how many days a certificate is still valid; negative when it has expired."""
    return (read_certificate(path).not_valid_after_utc - datetime.datetime.now(datetime.UTC)).days


def _issue(
    path: Path, days: int, subject: x509.Name, key: Key, issuer: x509.Name, signer: Key, *more: x509.ExtensionType
) -> None:
    """Write a certificate; one that signs itself is an authority's."""
    authority = key is signer
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)  # clocks differ
    usage = x509.KeyUsage(digital_signature=not authority, key_cert_sign=authority, crl_sign=authority, **_UNUSED)
    builder = x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=start,
        not_valid_after=start + datetime.timedelta(days=days),
    )
    builder = builder.add_extension(x509.BasicConstraints(authority, 0 if authority else None), critical=True)
    builder = builder.add_extension(usage, critical=True)
    for extension in (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), *more):
        builder = builder.add_extension(extension, critical=False)
    write_whole(path, builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def _make_key(path: Path) -> Key:
    key = ec.generate_private_key(ec.SECP256R1())
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    write_secret(path, key.private_bytes(*form))
    return key


def _read_key(path: Path) -> Key:
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    assert isinstance(key, Key)
    return key


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])
