"""Makes and reads the certificates of a cluster.

An authority belongs to one cluster and signs the certificates of its servers and clients. Each
states its holder as a URI (core/principal.py), servers also the hosts where they are reached. Keys
are on the curve P-256. Files are replaced atomically and readable by their owner only.
net/credentials.py lists their names; `ca.key` is the key of the newest authority, which is needed
only for signing.
"""

from __future__ import annotations

import ipaddress
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from loomlog.core.principal import ANONYMOUS, Principal, stated_principal
from loomlog.errors import AlreadyExists, InvalidArgument, LoomError, NotFound
from loomlog.net.credentials import AUTHORITIES, REVOKED

AUTHORITY_KEY: Final = "ca.key"
AUTHORITY_DAYS: Final = 3650
DAYS: Final = 365
_CLOCK_DIFFERENCE: Final = timedelta(minutes=5)  # of machines that use a new certificate at once
_DIRECTORY_MODE: Final = 0o700


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate in a file, for people."""

    file: Path
    principal: Principal  # anonymous: an authority
    hosts: tuple[str, ...]
    begins_at: datetime
    ends_at: datetime
    fingerprint: str  # SHA-256
    issuer: str  # the fingerprint of the authority's key

    def days_left(self, now: datetime) -> float:
        return (self.ends_at - now) / timedelta(days=1)


# ---- making


def create_authority(directory: Path, cluster: str, days: float = AUTHORITY_DAYS) -> Path:
    """Create the authority of a cluster in a new or empty directory."""
    Principal("client", name="ca", cluster=cluster)  # or no certificate could name the cluster
    if (directory / AUTHORITIES).exists() or (directory / AUTHORITY_KEY).exists():
        raise AlreadyExists(
            f"{directory} has an authority already: use `loom certs rotate` to exchange it"
        )
    directory.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
    directory.chmod(_DIRECTORY_MODE)
    return _add_authority(directory, cluster, days, [])


def rotate_authority(directory: Path, days: float = AUTHORITY_DAYS) -> Path:
    """Create a new authority; the old ones stay trusted until they are retired."""
    older = _authorities(directory)
    return _add_authority(directory, _cluster(older[0]), days, older)


def retire_authorities(directory: Path) -> int:
    """Trust only the newest authority; return how many are no longer trusted."""
    newest, *older = _authorities(directory)
    issuer = _key_fingerprint(newest)
    for certificate in list_certificates(directory):
        if certificate.principal is not ANONYMOUS and certificate.issuer != issuer:
            raise InvalidArgument(
                f"{certificate.file.name} was signed by an older authority: run `loom certs renew`"
            )
    _write(directory / AUTHORITIES, [_pem(newest)])
    return len(older)


def create_certificate(
    directory: Path, principal: Principal, hosts: Sequence[str] = (), days: float = DAYS
) -> Path:
    """Create a key and a certificate, signed by the newest authority of the directory."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _signed(directory, principal, hosts, days, key.public_key())
    last = principal.number or principal.name
    file = directory / f"{principal.kind}-{last}.pem"
    _write(file, [_key_pem(key), _pem(certificate)])
    return file


def renew_certificate(directory: Path, certificate: Certificate, days: float = DAYS) -> Path:
    """Create a new key and certificate for the same holder and hosts."""
    return create_certificate(directory, certificate.principal, certificate.hosts, days)


def revoke_certificate(directory: Path, file: Path) -> None:
    """Add the certificate in a file to the list of revoked ones."""
    serial = f"{_certificates(file)[0].serial_number:x}"
    revoked = directory / REVOKED
    numbers = revoked.read_text().split() if revoked.exists() else []
    if serial not in numbers:
        _write(revoked, [f"{number}\n".encode() for number in (*numbers, serial)])


def is_signed_by(certificate: bytes, authorities: Path) -> bool:
    """Return whether one of the authorities in a file has signed a certificate (DER), or the file
    cannot be read now."""
    try:
        trusted = _certificates(authorities)
    except LoomError:
        return True
    return any(_is_issuer(each, x509.load_der_x509_certificate(certificate)) for each in trusted)


def _is_issuer(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def cluster_of(directory: Path) -> str:
    """Return the cluster that the authority of the directory belongs to."""
    return _cluster(_authorities(directory)[0])


def _add_authority(
    directory: Path, cluster: str, days: float, older: list[x509.Certificate]
) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, cluster),
            x509.NameAttribute(NameOID.COMMON_NAME, f"loomlog authority {_serial():x}"[:60]),
        ]
    )
    usage = _usage(signs_certificates=True)
    certificate = (
        _builder(name, name, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    # The certificate first: with it, what the new key signs is trusted.
    file = directory / AUTHORITIES
    _write(file, [_pem(each) for each in (certificate, *older)])
    _write(directory / AUTHORITY_KEY, [_key_pem(key)])
    return file


def _signed(
    directory: Path,
    principal: Principal,
    hosts: Sequence[str],
    days: float,
    key: ec.EllipticCurvePublicKey,
) -> x509.Certificate:
    authority, authority_key = _authorities(directory)[0], _authority_key(directory)
    if authority_key.public_key() != authority.public_key():
        raise InvalidArgument(
            f"{directory / AUTHORITY_KEY} is not the key of the first certificate in {AUTHORITIES}"
        )
    is_server = principal.kind in ("node", "metadata")
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if is_server:
        uses.append(ExtendedKeyUsageOID.SERVER_AUTH)
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, principal.cluster),
            x509.NameAttribute(NameOID.COMMON_NAME, str(principal)[:60]),
        ]
    )
    names = [x509.UniformResourceIdentifier(principal.uri), *map(_host, hosts)]
    return (
        _builder(name, authority.subject, key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: float
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(_serial())
        .not_valid_before(min(now, now + timedelta(days=days)) - _CLOCK_DIFFERENCE)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _serial() -> int:
    return x509.random_serial_number()


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not host or not host.isascii() or any(sign in host for sign in " /:@"):
        raise InvalidArgument(f"{host!r} is no host name or IP address")
    return x509.DNSName(host)


# ---- reading


def read_certificate(file: Path) -> Certificate:
    """Read the first certificate of a file."""
    return _described(file, _certificates(file)[0])


def is_for_servers(file: Path) -> bool:
    """Return whether the first certificate in a file may be shown to clients, and to servers."""
    try:
        extensions = _certificates(file)[0].extensions
        uses = set(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except x509.ExtensionNotFound:
        return False
    return uses >= {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}


def list_certificates(directory: Path) -> list[Certificate]:
    """Return the authorities of a directory, newest first, and the certificates they signed."""
    found = [_described(directory / AUTHORITIES, each) for each in _authorities(directory)]
    others = sorted(file for file in directory.glob("*-*.pem"))
    return [*found, *map(read_certificate, others)]


def _described(file: Path, certificate: x509.Certificate) -> Certificate:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names = x509.SubjectAlternativeName([])
    addresses = (str(each) for each in names.get_values_for_type(x509.IPAddress))
    return Certificate(
        file=file,
        principal=stated_principal(names.get_values_for_type(x509.UniformResourceIdentifier)),
        hosts=(*names.get_values_for_type(x509.DNSName), *addresses),
        begins_at=certificate.not_valid_before_utc,
        ends_at=certificate.not_valid_after_utc,
        fingerprint=certificate.fingerprint(hashes.SHA256()).hex(),
        issuer=_issuer_fingerprint(certificate),
    )


def _issuer_fingerprint(certificate: x509.Certificate) -> str:
    try:
        found = certificate.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier)
    except x509.ExtensionNotFound:
        return ""
    return (found.value.key_identifier or b"").hex()


def _key_fingerprint(certificate: x509.Certificate) -> str:
    found = certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    return found.value.key_identifier.hex()


def _authorities(directory: Path) -> list[x509.Certificate]:
    return _certificates(directory / AUTHORITIES)


def _certificates(file: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(file.read_bytes())
    except OSError as error:
        raise NotFound(
            f"cannot read {file}: {error.strerror}; `loom certs init` begins a directory"
        ) from error
    except ValueError as error:
        raise InvalidArgument(f"{file} has no certificate that can be read") from error


def _authority_key(directory: Path) -> ec.EllipticCurvePrivateKey:
    file = directory / AUTHORITY_KEY
    try:
        key = serialization.load_pem_private_key(file.read_bytes(), password=None)
    except OSError as error:
        raise NotFound(
            f"cannot read {file}: {error.strerror}; certificates are made where the authority's "
            "key is kept"
        ) from error
    except (ValueError, TypeError) as error:
        raise InvalidArgument(f"{file} is no private key that can be read") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InvalidArgument(f"{file} is a key of another kind than `loom certs` makes")
    return key


def _cluster(authority: x509.Certificate) -> str:
    names = authority.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return str(names[0].value) if names else ""


# ---- files


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(file: Path, parts: Iterable[bytes]) -> None:
    """Replace a file as a whole; only its owner can read it."""
    try:
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=".new-")  # with mode 0600
        try:
            with os.fdopen(handle, "wb") as new:
                new.write(b"".join(parts))
                new.flush()
                os.fsync(new.fileno())
            os.replace(name, file)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise InvalidArgument(f"cannot write {file}: {error.strerror or error}") from error
