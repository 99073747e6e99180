"""The key, certificate and trusted authorities with which a process speaks TLS.

The files may be renewed at any time; each handshake uses the current ones. If files cannot be read,
because they are being replaced or are damaged, the last ones stay in use. Only TLS 1.3 is spoken.
Servers present certificates, and so do clients that have one.

    DIR/ca.pem              certificates of the authorities that are trusted; several while
                            authorities are exchanged
    DIR/revoked             serial numbers of certificates that are refused, one per line; or none
    DIR/node-3.pem          the key and the certificate of node 3; metadata-1.pem, client-alice.pem
                            and operator-carol.pem are alike
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from loomlog.core import principal
from loomlog.core.conditions import Condition, Kind
from loomlog.core.principal import ANONYMOUS, Principal, stated_principal
from loomlog.errors import InvalidArgument, LoomError, Unauthorized, Unavailable
from loomlog.net.key_usage import has_extended_key_usage

logger = logging.getLogger(__name__)

AUTHORITIES: Final = "ca.pem"
REVOKED: Final = "revoked"
_DAY_S: Final = 86_400
EXPIRY_NOTICE_S: Final = 30 * _DAY_S  # an expiry is announced this long before
LOOK_S: Final = 5.0  # between checks of the files while there are no handshakes


RENEWS: Final = "`loom certs renew` renews it"

VARIABLE: Final = "LOOM_TLS"  # of the environment: a directory or file, for clients


class _Contexts(NamedTuple):
    accepting: ssl.SSLContext
    connecting: ssl.SSLContext


def server_file(path: str, kind: principal.Kind, number: int) -> Path:
    """Return the file of a server, given its directory or itself."""
    place = Path(path)
    return place / f"{kind}-{number}.pem" if place.is_dir() else place


class Closing(Protocol):
    """A connection that is closed, and waits for its peer to confirm that."""

    async def wait_closed(self) -> None: ...


class Credentials:
    """The credentials of one process. `cluster` is that of its peers; empty: not known."""

    def __init__(self, authorities: Path, own: Path | None, cluster: str = "") -> None:
        """Load the files; raise InvalidArgument if they cannot be used."""
        self._authorities = authorities
        self.own = own
        self._cluster = cluster
        self._ends: list[int] | None = None  # of our certificate and of the newest authority
        self._look_at_s = 0.0
        self.generation = 0  # of the files: grows when new ones are used
        self.closing: set[Closing] = set()  # connections with them
        self._signature = self._files_signature()
        self._contexts = self._load()

    async def wait_closed(self) -> None:
        """Wait until all closed connections have closed their transports. Otherwise a loop that
        ends would leave their sockets to the garbage collector."""
        await asyncio.gather(*(connection.wait_closed() for connection in self.closing))

    @classmethod
    def of_server(cls, path: str, kind: principal.Kind, number: int, cluster: str) -> Credentials:
        """Load the credentials of a server from a directory, or from its own file. Also raise
        InvalidArgument if they have expired, because no peer could connect to the server."""
        own = server_file(path, kind, number)
        credentials = cls(own.parent / AUTHORITIES, own, cluster)
        from loomlog.net.certificates import is_for_servers, read_certificate

        stated = read_certificate(own).principal
        wanted = Principal(kind, number=number, cluster=cluster)
        if stated != wanted:
            raise InvalidArgument(
                f"{own} is the certificate of {stated} in cluster {stated.cluster!r}, not of "
                f"{wanted} in {cluster!r}: give the right file, or make one with `loom certs`"
            )
        if not is_for_servers(own):
            raise InvalidArgument(
                f"{own} lacks one of the extended key usages serverAuth and clientAuth: servers "
                "need both; `loom certs` makes such certificates"
            )
        credentials._check_current()
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

    @classmethod
    def of_stand_in(cls) -> Credentials | None:
        """Return the credentials for a command that takes the place of a metadata repository, from
        the file that the environment names or one beside it. Return None without TLS."""
        if not (path := os.environ.get(VARIABLE, "")):
            return None
        place = Path(path)
        directory = place if place.is_dir() else place.parent
        files = [place] if place.match("metadata-*.pem") else directory.glob("metadata-*.pem")
        if not (found := sorted(files)):
            raise InvalidArgument(
                f"this stands in for a metadata repository, and {directory} has no certificate of "
                "one: name its file, metadata-1.pem, with --tls"
            )
        return cls(found[0].parent / AUTHORITIES, found[0])

    # ---- handshakes

    def accepting(self) -> ssl.SSLContext:
        """Return the context for a peer that connects to this process."""
        return self._fresh().accepting

    def connecting(self) -> ssl.SSLContext:
        """Return the context for a peer that this process connects to."""
        return self._fresh().connecting

    def peer_of(self, transport: asyncio.BaseTransport) -> Principal:
        """Return the principal in a peer's certificate, after the handshake; raise Unauthorized if
        the certificate is not accepted."""
        tls = transport.get_extra_info("ssl_object")
        shown = None if tls is None else tls.getpeercert(binary_form=True)
        if shown is not None and not has_extended_key_usage(shown):
            raise Unauthorized(
                "the certificate has no extended key usage (serverAuth, clientAuth): make it with "
                "`loom certs`"
            )
        return self.principal_of(transport.get_extra_info("peercert"))

    def principal_of(self, certificate: Mapping[str, Any] | None) -> Principal:
        """Return the principal in a verified certificate; raise Unauthorized if it belongs to
        another cluster or states no principal."""
        if not certificate:
            return ANONYMOUS
        if int(certificate["serialNumber"], 16) in self._revoked:
            raise Unauthorized("the certificate was revoked: ask for a new one")
        if ssl.cert_time_to_seconds(certificate["notAfter"]) <= time.time():
            raise Unauthorized(f"the certificate has expired: {RENEWS}")
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
        """Return the generation of the files, which are checked from time to time."""
        now_s = time.monotonic()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + LOOK_S
            self._fresh()
        return self.generation

    def recheck(self, tls: ssl.SSLObject) -> None:
        """Raise Unauthorized if the peer of an open connection would no longer be accepted."""
        self.principal_of(tls.getpeercert())
        certificate = tls.getpeercert(binary_form=True)
        from loomlog.net.certificates import is_signed_by

        if certificate is not None and not is_signed_by(certificate, self._authorities):
            raise Unauthorized("the authority that signed the certificate is not trusted any more")

    # ---- expiry

    @property
    def ends_s(self) -> int:
        """The time at which our certificate or the newest authority expires, in seconds since 1970;
        0: we have no certificate."""
        return min(self._read_ends(), default=0)

    @property
    def has_expired(self) -> bool:
        """True if the certificate that the next handshake would show has expired."""
        if self._is_over():
            self._fresh()
        return self._is_over()

    def _check_current(self) -> None:
        now_s = time.time()
        for file, ends_s in zip((self.own, self._authorities), self._read_ends(), strict=False):
            if file is not None and ends_s <= now_s:
                helps = f"`loom certs renew {file.name}` renews it"
                if file == self._authorities:
                    helps = (
                        "`loom certs rotate` makes another authority, `loom certs renew` uses it"
                    )
                raise InvalidArgument(f"{file} {expiry(ends_s, now_s)}: {helps}")

    def _is_over(self) -> bool:
        ends = self._read_ends()
        return bool(ends) and ends[0] <= time.time()

    def _read_ends(self) -> list[int]:
        if self._ends is None:
            from loomlog.net.certificates import read_certificate

            files = (self.own, self._authorities) if self.own is not None else ()
            try:
                self._ends = [int(read_certificate(file).ends_at.timestamp()) for file in files]
            except LoomError:
                return []  # they are being replaced, and are checked again later
        return self._ends

    def conditions(self) -> list[Condition]:
        """Return a condition if the expiry is near."""
        self.look()
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
                self._ends = None
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
    """Return the end of a sentence about an expiry that is near; "" if it is not."""
    left_s = ends_s - now_s
    if not ends_s or left_s > EXPIRY_NOTICE_S:
        return ""
    day = datetime.fromtimestamp(ends_s, UTC).strftime("%Y-%m-%d")
    if left_s <= 0:
        return f"expired on {day}"
    if left_s < _DAY_S:
        return datetime.fromtimestamp(ends_s, UTC).strftime("expires on %Y-%m-%d at %H:%M UTC")
    return f"expires on {day}, in {left_s / _DAY_S:.0f} days"


# ---- what went wrong


class HandshakeFailed(Unavailable):
    """A peer was reached, but the TLS handshake failed, or it left without a greeting."""


_PLAIN: Final = {
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "HTTPS_PROXY_REQUEST",
    "RECORD_LAYER_FAILURE",
}
_EXPIRED: Final = 10  # OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED
_OLD: Final = {"UNSUPPORTED_PROTOCOL", "TLSV1_ALERT_PROTOCOL_VERSION", "NO_PROTOCOLS_AVAILABLE"}


def explain_tls(error: Exception, *, accepted: bool) -> str:
    """Return the end of a sentence about why TLS with a peer failed, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code == _EXPIRED:
            return f"its certificate has expired, or the authority that signed it: {RENEWS}"
        text = error.verify_message.rstrip(".")
        if error.verify_code in (18, 19, 20, 21):  # OpenSSL's X509_V_ERR: no issuer of ours
            text += "; it was not signed by an authority in our ca.pem"
        return f"its certificate is refused: {text}"
    reason = getattr(error, "reason", None) or ""
    if reason in _PLAIN:
        return "it does not speak TLS" + ("" if accepted else ": connect without --tls")
    if reason in _OLD:
        return "it does not speak TLS 1.3"
    if reason.endswith("CERTIFICATE_EXPIRED"):
        return f"our certificate has expired, or the authority that signed it: {RENEWS}"
    if "ALERT" in reason:
        said = reason.split("ALERT_")[-1].lower().replace("_", " ")
        return f"it refuses our certificate ({said}): look at `loom certs list`"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {reason.lower().replace('_', ' ') or error}"
    return str(error) or type(error).__name__
