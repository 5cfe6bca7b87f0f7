"""The certificates of a federation: an authority of its own, and the server's certificate that it signs.

The authority's certificate, ``ca.crt``, is what a site needs to know the server by; it is not secret. Its key signs the
server's certificate here and when that one is renewed, and for nothing else.
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedga.common.files import open_regular, write_whole
from fedga.errors import FedGAError
from fedga.federation.secret import write_secret

AUTHORITY_DAYS = 3653
SERVER_DAYS = 731
RENEW_WITHIN_DAYS = 60
_LONGEST = 100_000  # bytes; ours have a thousand
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def make_authority(key_path: Path, certificate_path: Path, host: str) -> None:
    """A key and the certificate that vouches for whatever the key signs."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"fedga federation of {host}")
    usage = _usage(key_cert_sign=True, crl_sign=True, digital_signature=False)
    certificate = (
        _certificate(name, name, key.public_key(), AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    write_secret(key_path, _pem(key))
    write_whole(certificate_path, certificate.public_bytes(serialization.Encoding.PEM))


def make_server_certificate(
    host: str, authority_key: Path, authority: Path, key_path: Path, certificate_path: Path
) -> None:
    """The certificate of a server that is reached as ``host``, or on its own machine; its key is made if missing."""
    signing = serialization.load_pem_private_key(authority_key.read_bytes(), None)
    assert isinstance(signing, ec.EllipticCurvePrivateKey)
    if not key_path.exists():
        write_secret(key_path, _pem(ec.generate_private_key(ec.SECP256R1())))
    key = serialization.load_pem_private_key(key_path.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    issuer = read_certificate(authority)
    names = [_general_name(name) for name in dict.fromkeys((host, *_LOOPBACK))]
    certificate = (
        _certificate(_name(host), issuer.subject, key.public_key(), SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(key_cert_sign=False, crl_sign=False, digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(signing, hashes.SHA256())
    )
    write_whole(certificate_path, certificate.public_bytes(serialization.Encoding.PEM))


def read_certificate(path: Path) -> x509.Certificate:
    """The certificate in a file, or a sentence on what is there instead."""
    try:
        with open_regular(path) as file:
            content = file.read(_LONGEST)
    except OSError as error:
        raise FedGAError(
            f"{path} cannot be read ({error.strerror}): give the ca.crt that the server's owner sent"
        ) from None
    if b"PRIVATE KEY" in content:
        raise FedGAError(f"{path} holds a private key, which must stay where it was made: give the ca.crt instead")
    try:
        return x509.load_pem_x509_certificate(content)
    except ValueError:
        raise FedGAError(f"{path} is not a certificate: give the ca.crt that the server's owner sent") from None


def fingerprint(path: Path) -> str:
    """What two people can compare on the telephone."""
    digest = read_certificate(path).fingerprint(hashes.SHA256())
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def days_left(path: Path) -> int:
    """For how many days a certificate is still good; negative when it has ended."""
    return (read_certificate(path).not_valid_after_utc - _now()).days


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    start = _now() - datetime.timedelta(hours=1)  # clocks differ
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key,
        serial_number=x509.random_serial_number(),
        not_valid_before=start,
        not_valid_after=start + datetime.timedelta(days=days),
    )


def _usage(*, key_cert_sign: bool, crl_sign: bool, digital_signature: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
