"""The key, certificate and trusted authorities with which a process speaks TLS.

They are files that may be renewed at any time: each handshake uses what is there then. Files that
cannot be read, because they are being replaced or are damaged, leave the last ones in use. Only
TLS 1.3 is spoken. Servers show their certificates, and so does everybody who connects and has one.

    DIR/ca.pem              certificates of the authorities that are trusted; several while
                            authorities are exchanged
    DIR/revoked             serial numbers of certificates that are refused, one per line; or none
    DIR/node-3.pem          the key and the certificate of node 3; metadata-1.pem, client-alice.pem
                            and operator-carol.pem are alike
"""

from __future__ import annotations

import logging
import os
import ssl
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from loomlog.core import principal
from loomlog.core.conditions import Condition, Kind
from loomlog.core.principal import ANONYMOUS, Principal, stated_principal
from loomlog.errors import InvalidArgument, LoomError, Unauthorized, Unavailable

logger = logging.getLogger(__name__)

AUTHORITIES: Final = "ca.pem"
REVOKED: Final = "revoked"
EXPIRY_NOTICE_S: Final = 30 * 86_400  # an expiry is announced this long before
LOOK_S: Final = 5.0  # between looks at the files while no handshake does


VARIABLE: Final = "LOOM_TLS"  # of the environment: a directory or file, for clients


class _Contexts(NamedTuple):
    accepting: ssl.SSLContext
    connecting: ssl.SSLContext


def server_file(path: str, kind: principal.Kind, number: int) -> Path:
    """Return the file of a server, given its directory or itself."""
    place = Path(path)
    return place / f"{kind}-{number}.pem" if place.is_dir() else place


class Credentials:
    """The credentials of one process. `cluster` is that of its peers; empty: not known."""

    def __init__(self, authorities: Path, own: Path | None, cluster: str = "") -> None:
        """Load the files; raise InvalidArgument if they cannot be used."""
        self._authorities = authorities
        self.own = own
        self._cluster = cluster
        self._ends_s: int | None = None
        self._look_at_s = 0.0
        self.generation = 0  # of the files: grows when others are used
        self._signature = self._files_signature()
        self._contexts = self._load()

    @classmethod
    def of_server(cls, path: str, kind: principal.Kind, number: int, cluster: str) -> Credentials:
        """Load the credentials of a server from a directory, or from its own file."""
        own = server_file(path, kind, number)
        credentials = cls(own.parent / AUTHORITIES, own, cluster)
        from loomlog.net.certificates import read_certificate

        stated = read_certificate(own).principal
        wanted = Principal(kind, number=number, cluster=cluster)
        if stated != wanted:
            raise InvalidArgument(
                f"{own} is the certificate of {stated} in cluster {stated.cluster!r}, not of "
                f"{wanted} in {cluster!r}: give the right file, or make one with `loom certs`"
            )
        return credentials

    @classmethod
    def of_client(cls, path: str) -> Credentials:
        """Load the credentials of a client from a directory with one of them, or from its file. A
        directory without any, and the file of authorities, give a client without a name."""
        place = Path(path)
        if not place.is_dir():
            return cls(place.parent / AUTHORITIES, None if place.name == AUTHORITIES else place)
        found = sorted([*place.glob("client-*.pem"), *place.glob("operator-*.pem")])
        if len(found) > 1:
            names = ", ".join(file.name for file in found)
            raise InvalidArgument(f"{path} has several identities: name one of its files, {names}")
        return cls(place / AUTHORITIES, found[0] if found else None)

    @classmethod
    def chosen(cls, path: str | None = None) -> Credentials | None:
        """Return the credentials that a user of this process chose, by the environment if no path
        is given; None: no TLS."""
        if path is None:
            path = os.environ.get(VARIABLE, "")
        return cls.of_client(path) if path else None

    # ---- handshakes

    def accepting(self) -> ssl.SSLContext:
        """Return the context for a peer that connects to this process."""
        return self._fresh().accepting

    def connecting(self) -> ssl.SSLContext:
        """Return the context for a peer that this process connects to."""
        return self._fresh().connecting

    def principal_of(self, certificate: Mapping[str, Any] | None) -> Principal:
        """Return whom a verified certificate states; raise Unauthorized if it is of another
        cluster, or states nobody."""
        if not certificate:
            return ANONYMOUS
        if int(certificate["serialNumber"], 16) in self._revoked:
            raise Unauthorized("the certificate was revoked: ask for a new one")
        if ssl.cert_time_to_seconds(certificate["notAfter"]) <= time.time():
            raise Unauthorized("the certificate has expired: renew it")
        names = certificate.get("subjectAltName", ())
        stated = stated_principal(value for kind, value in names if kind == "URI")
        if stated is ANONYMOUS:
            raise Unauthorized("the certificate was not made with `loom certs`: it names nobody")
        if self._cluster and stated.cluster != self._cluster:
            raise Unauthorized(
                f"the certificate is of cluster {stated.cluster!r}, this is {self._cluster!r}"
            )
        return stated

    def look(self) -> int:
        """Return the generation of the files, after a look at them now and then."""
        now_s = time.monotonic()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + LOOK_S
            self._fresh()
        return self.generation

    def recheck(self, tls: ssl.SSLObject) -> None:
        """Raise Unauthorized if the peer of an open connection would not be let in any more."""
        self.principal_of(tls.getpeercert())
        certificate = tls.getpeercert(binary_form=True)
        from loomlog.net.certificates import is_signed_by

        if certificate is not None and not is_signed_by(certificate, self._authorities):
            raise Unauthorized("the authority that signed the certificate is not trusted any more")

    # ---- expiry

    @property
    def ends_s(self) -> int:
        """When our certificate, or the newest authority, expires, in seconds since 1970; 0: we have
        no certificate."""
        if self._ends_s is None:
            from loomlog.net.certificates import read_certificate

            files = (self.own, self._authorities) if self.own is not None else ()
            try:
                ends = [read_certificate(file).ends_at.timestamp() for file in files]
            except LoomError:
                return 0  # they are being replaced, and looked at again
            self._ends_s = int(min(ends, default=0))
        return self._ends_s

    def conditions(self) -> list[Condition]:
        """Return a condition if that is soon."""
        text = expiry(self.ends_s, time.time())
        helps = "`loom certs list` shows which, `loom certs renew` renews; no restart is needed"
        return (
            [Condition(Kind.CERTIFICATE_EXPIRES, f"its certificate {text}", helps)] if text else []
        )

    # ---- files

    def _files_signature(self) -> tuple[object, ...]:
        files = [self._authorities, *([self.own] if self.own is not None else [])]
        if (revoked := self._authorities.with_name(REVOKED)).exists():
            files.append(revoked)
        try:
            found = [os.stat(file) for file in files]
        except OSError as error:
            raise InvalidArgument(
                f"cannot read {error.filename}: {error.strerror}; `loom certs` makes it"
            ) from error
        return tuple((each.st_ino, each.st_size, each.st_mtime_ns) for each in found)

    def _fresh(self) -> _Contexts:
        try:
            signature = self._files_signature()
            if signature != self._signature:
                self._signature = signature  # also if it cannot be used: to complain once
                self._contexts = self._load()
                self._ends_s = None
                self.generation += 1
                logger.info("uses the renewed certificates beside %s", self._authorities)
        except LoomError as error:
            logger.warning("still uses the certificates that were there before: %s", error)
        return self._contexts

    def _load(self) -> _Contexts:
        file = self._authorities
        try:
            accepting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            accepting.verify_mode = ssl.CERT_OPTIONAL
            accepting.num_tickets = 0  # every connection shows its certificate
            connecting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks the name of the host
            for context in (accepting, connecting):
                context.minimum_version = ssl.TLSVersion.TLSv1_3
                context.load_verify_locations(file)
            if self.own is not None:
                _check_private(file := self.own)
                for context in (accepting, connecting):
                    context.load_cert_chain(file)
            file = self._authorities.with_name(REVOKED)
            numbers = file.read_text().split() if file.exists() else []
            self._revoked = frozenset(int(number, 16) for number in numbers)
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            reason = getattr(error, "reason", "") or getattr(error, "strerror", "") or error
            raise InvalidArgument(f"{file} cannot be used for TLS: {reason}") from error
        return _Contexts(accepting, connecting)


def _check_private(file: Path) -> None:
    mode = os.stat(file).st_mode & 0o777
    if mode & 0o077:
        raise InvalidArgument(
            f"{file} has a private key that others may read (mode {mode:03o}): chmod 600 {file}"
        )


def expiry(ends_s: float, now_s: float) -> str:
    """Return when it expires if that is soon, as a part of a sentence; else an empty text."""
    left_s = ends_s - now_s
    if not ends_s or left_s > EXPIRY_NOTICE_S:
        return ""
    day = datetime.fromtimestamp(ends_s, UTC).strftime("%Y-%m-%d")
    return f"expires on {day}, in {left_s / 86_400:.0f} days" if left_s > 0 else f"expired on {day}"


# ---- what went wrong


class HandshakeFailed(Unavailable):
    """A peer was reached, but there is no TLS with it, or it left without a greeting."""


_PLAIN: Final = {
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "HTTPS_PROXY_REQUEST",
    "RECORD_LAYER_FAILURE",
}
_OLD: Final = {"UNSUPPORTED_PROTOCOL", "TLSV1_ALERT_PROTOCOL_VERSION", "NO_PROTOCOLS_AVAILABLE"}


def explain_tls(error: Exception, *, accepted: bool) -> str:
    """Return why there is no TLS with a peer, as the end of a sentence, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        text = error.verify_message.rstrip(".")
        if error.verify_code in (18, 19, 20, 21):  # OpenSSL's X509_V_ERR: no issuer of ours
            text += "; it was not signed by an authority in our ca.pem"
        return f"its certificate is refused: {text}"
    reason = getattr(error, "reason", None) or ""
    if reason in _PLAIN:
        return "it does not speak TLS" + ("" if accepted else ": connect without --tls")
    if reason in _OLD:
        return "it does not speak TLS 1.3"
    if "ALERT" in reason:
        said = reason.split("ALERT_")[-1].lower().replace("_", " ")
        return f"it refuses our certificate ({said}): look at `loom certs list`"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {reason.lower().replace('_', ' ') or error}"
    return str(error) or type(error).__name__
