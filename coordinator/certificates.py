"""The federation's own CA, the certificate that its server shows, and certificates that are pinned.

Hospitals trust this CA and no other for the federation: its fingerprint is compared by telephone.
The CA's key signs server certificates only, and belongs offline once the server has one.
Coordinator and tally pin each other's certificate itself. Whatever cannot be read is a
`CertificateError`.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coordinator.errors import CertificateError
from pate_fed.nodes.ports import is_host, is_name

CA_LIFETIME = timedelta(days=3650)
SERVER_LIFETIME = timedelta(days=397)
"""The longest validity that clients accept of any server."""

_MOST_NAME_BYTES = 64
"""Of a common name, in UTF-8."""

_EARLY = timedelta(hours=1)
"""Valid this long before it was made: clocks differ."""


@dataclass(frozen=True, slots=True, repr=False)
class KeyedCertificate:
    """A certificate and its private key (PKCS #8), both PEM. Secret."""

    certificate: bytes
    private_key: bytes

    def __repr__(self) -> str:
        return "KeyedCertificate()"


def make_ca(federation: str, *, now: datetime) -> KeyedCertificate:
    """Make a federation's CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"{federation} CA")
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLY)
        .not_valid_after(now + CA_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_CA_USAGE, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return KeyedCertificate(_pem(builder.sign(key, hashes.SHA256())), _key_pem(key))


def issue_server_certificate(
    ca: KeyedCertificate, *, hosts: tuple[str, ...], now: datetime
) -> KeyedCertificate:
    """Issue a certificate for the server, with a key of its own.

    Raises:
        CertificateError: no host, the CA cannot be read, or it ends before the certificate would.
    """
    if not hosts:
        raise CertificateError("a server must have a name or an address")
    issuer = read_certificate(ca.certificate)
    if issuer.not_valid_after_utc <= now:
        raise CertificateError("the CA must be valid", "one that has ended")
    issuer_key = _read_key(ca.private_key)
    if not isinstance(issuer_key, ec.EllipticCurvePrivateKey):
        raise CertificateError("the CA's key must be of an elliptic curve")
    if not is_pair(ca.certificate, ca.private_key):
        raise CertificateError("the CA's key must be that of its certificate")
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(hosts[0]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLY)
        .not_valid_after(min(now + SERVER_LIFETIME, issuer.not_valid_after_utc))
        .add_extension(
            x509.SubjectAlternativeName([_alternative(h) for h in hosts]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    )
    return KeyedCertificate(_pem(builder.sign(issuer_key, hashes.SHA256())), _key_pem(key))


def make_pinned_certificate(name: str, *, host: str = "", now: datetime) -> KeyedCertificate:
    """Make a certificate that the other end pins: it is signed by itself, and signs no other.

    A client needs no `host`. Raises `CertificateError` where a host is none.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLY)
        .not_valid_after(now + CA_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    )
    if host:
        names = x509.SubjectAlternativeName([_alternative(host)])
        builder = builder.add_extension(names, critical=False)
    return KeyedCertificate(_pem(builder.sign(key, hashes.SHA256())), _key_pem(key))


def read_certificate(pem: bytes) -> x509.Certificate:
    """Read a certificate."""
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise CertificateError("a certificate must be readable") from error


def end_of(pem: bytes) -> datetime:
    """Return the end of a certificate's validity, in UTC."""
    return read_certificate(pem).not_valid_after_utc


def days_left(pem: bytes, *, now: datetime) -> float:
    """Return for how many more days a certificate is valid; negative once it has ended."""
    return (end_of(pem) - now.astimezone(UTC)) / timedelta(days=1)


def is_signed_by(certificate: bytes, ca: bytes) -> bool:
    """Tell whether a CA issued a certificate; both PEM."""
    try:
        read_certificate(certificate).verify_directly_issued_by(read_certificate(ca))
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def names_of(certificate: bytes) -> frozenset[str]:
    """Return the hosts that a certificate, PEM, is for."""
    try:
        found = read_certificate(certificate).extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
    except x509.ExtensionNotFound:
        return frozenset()
    return frozenset(str(one.value) for one in found.value)


def is_pair(certificate: bytes, private_key: bytes) -> bool:
    """Tell whether a certificate fits a key: otherwise no handshake succeeds with the two."""
    return read_certificate(certificate).public_key() == _read_key(private_key).public_key()


def _read_key(pem: bytes) -> PrivateKeyTypes:
    try:
        return load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: it has a password
        raise CertificateError("a private key must be readable") from error


def _name(common_name: str) -> x509.Name:
    cut = common_name.encode()[:_MOST_NAME_BYTES].decode(errors="ignore")  # no half of a letter
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, cut)])


def _alternative(host: str) -> x509.GeneralName:
    if not is_host(host):
        raise CertificateError("a host must be a name or an address", repr(host))
    return x509.DNSName(host) if is_name(host) else x509.IPAddress(ipaddress.ip_address(host))


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


_CA_USAGE = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)
