"""Identifies the peer of a connection by its certificate or token, and counts its resource usage.

The guard of a server decides on this basis what the peer may do.
"""

from __future__ import annotations

import asyncio
import math
import ssl
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic

from loomlog import limits
from loomlog.core.principal import ANONYMOUS, Kind, Principal
from loomlog.core.usage import UNKNOWN, Usage
from loomlog.errors import InvalidArgument, LoomError, Unauthorized, Unavailable
from loomlog.net.credentials import RENEWS, Credentials, explain_tls
from loomlog.net.frames import Codec, F
from loomlog.types import Buffer

_TLS_LARGE_BYTES: Final = 64 * limits.KIB  # a buffer of this size gets a separate TLS record
_TLS_PIECE_BYTES: Final = 256 * limits.KIB


class Identified(Generic[F]):
    """The part of a connection that knows its peer."""

    __slots__ = (
        *("__weakref__", "_accepted", "_counted", "_credentials_generation", "_ends_s"),
        *("_has_expired", "_transport", "_writelines", "codec", "is_encrypted", "peer"),
        *("principal", "session", "token", "usage"),
    )

    def __init__(self, codec: Codec[F], peer: str, *, accepted: bool) -> None:
        self.codec: Final = codec
        self.is_encrypted: Final = codec.credentials is not None
        self.peer = peer  # its address
        self.principal: Principal = ANONYMOUS  # as the peer's certificate states it
        self.token = ""  # that the peer presented; a secret
        self.session: Any = None  # what the guard of a server has decided
        self.usage: Usage = UNKNOWN  # of the peer's identity
        self._accepted = accepted
        self._counted: dict[int, int] = {}  # bytes of the requests in `usage`, by id
        self._transport: asyncio.Transport | None = None
        self._writelines: Callable[[Sequence[Buffer]], None] = _drop  # until it is connected
        self._ends_s = math.inf  # of the peer's certificate, since 1970
        self._credentials_generation = 0  # that it was checked against
        self._has_expired = False  # the certificate of this side, when it was checked last

    @abstractmethod
    def close(self, error: LoomError | None = None) -> None:
        """Close the connection."""

    # ---- certificates

    @property
    def is_private(self) -> bool:
        """Return whether secrets may be sent: over TLS, or within this machine."""
        if self.is_encrypted:
            return True
        name = self._transport.get_extra_info("peername") if self._transport else None
        return name is not None and (name[0] == "::1" or name[0].startswith("127."))

    def require(self, kind: Kind, number: int = 0) -> None:
        """Raise Unauthorized unless the peer's certificate states this kind of principal, and this
        number if one is given. Without TLS there are no certificates, and nothing is checked."""
        peer = self.principal
        if not self.is_encrypted or (peer.kind == kind and number in (0, peer.number)):
            return
        wanted = f"{kind} {number}" if number else f"a {kind}"
        raise Unauthorized(f"this needs the certificate of {wanted}, not that of {peer}")

    def recheck(self) -> None:
        """Close the connection if the certificate of either side has expired, or new files exclude
        the peer. Called every few seconds. Requests may be repeated on a new connection, because a
        new certificate may be in place by then; without one, they are refused there.

        For this side, the newest certificate counts rather than the one of the handshake: a server
        that accepts no new connections must not seem healthy because of old ones."""
        credentials, transport = self.codec.credentials, self._transport
        if credentials is None or transport is None:
            return
        try:
            self._recheck_peer(credentials, transport)
            before, self._has_expired = self._has_expired, credentials.has_expired
            if before and self._has_expired:  # already reported
                raise Unauthorized(f"the certificate {credentials.own} has expired: {RENEWS}")
        except Unauthorized as error:
            self.close(Unavailable(f"the connection to {self.peer} was closed: {error}"))

    def _recheck_peer(self, credentials: Credentials, transport: asyncio.Transport) -> None:
        generation = credentials.look()
        is_known = generation == self._credentials_generation and time.time() < self._ends_s
        if self._ends_s != math.inf and not is_known:
            self._credentials_generation = generation
            credentials.recheck(transport.get_extra_info("ssl_object"))

    def _identify(self, transport: asyncio.Transport) -> None:
        """Called when the transport is connected."""
        self._transport = transport
        self._writelines = transport.writelines if _pauses(transport) else _joined_writes(transport)
        if not self.peer:
            name = transport.get_extra_info("peername")
            self.peer = f"{name[0]}:{name[1]}" if name else "?"

    def _check_certificate(self, transport: asyncio.Transport) -> None:
        """Learn the peer's name; raise Unauthorized if its certificate is not accepted."""
        credentials = self.codec.credentials
        if credentials is not None:
            self._writelines = _joined_writes(transport)
            certificate = transport.get_extra_info("peercert")
            self.principal = credentials.peer_of(transport)
            if certificate:
                self._ends_s = ssl.cert_time_to_seconds(certificate["notAfter"])
                self._credentials_generation = credentials.look()

    def _why_no_greeting(self, error: Exception | None) -> str:
        """Return a possible reason why the peer closed the connection at once."""
        refusal = f"{self.peer} closed the connection without a greeting"
        if isinstance(error, ssl.SSLError):
            return f"{refusal}: {explain_tls(error, accepted=self._accepted)}"
        if not self.is_encrypted:
            return f"{refusal}; if it speaks TLS, connect with --tls"
        credentials = self.codec.credentials
        if credentials is not None and credentials.has_expired:
            return f"{refusal}: our certificate {credentials.own} has expired; {RENEWS}"
        return f"{refusal}; if it refuses this side's certificate, its log says why"

    # ---- limits of the identity

    def count(self, request_id: int, size: int) -> None:
        """Count a request against the limits of its identity until it is answered; raise Busy if
        they are reached."""
        if not request_id or request_id in self._counted:
            raise InvalidArgument("a request needs an id that no other one has")
        self.usage.begin(size)
        self._counted[request_id] = size

    def settle(self, request_id: int) -> None:
        """Stop counting a request that was answered, or never will be."""
        if (size := self._counted.pop(request_id, None)) is not None:
            self.usage.end(size)

    def _settle_all(self) -> None:
        for size in self._counted.values():
            self.usage.end(size)
        self._counted.clear()


def _drop(buffers: Sequence[Buffer]) -> None:
    """Discard the data, because there is no transport."""


def _pauses(transport: asyncio.Transport) -> bool:
    """Return whether `writelines` pauses the protocol when too much is queued. In asyncio it does
    only since Python 3.12.9 and 3.13.2 (CVE-2024-12254)."""
    version, fixed = sys.version_info[:3], {12: (3, 12, 9), 13: (3, 13, 2)}
    is_affected = version < fixed.get(sys.version_info.minor, (0,))
    return not (is_affected and type(transport).__module__.startswith("asyncio."))


def _joined_writes(transport: asyncio.Transport) -> Callable[[Sequence[Buffer]], None]:
    """Return a function that joins small buffers, since each write becomes a TLS record, which
    costs more than a copy. Large buffers are not copied but written in pieces that fit into a
    cache while they are encrypted."""
    write = transport.write

    def write_all(buffers: Sequence[Buffer]) -> None:
        small: list[Buffer] = []
        size = 0
        for buffer in buffers:
            count = len(buffer)
            if count < _TLS_LARGE_BYTES:
                small.append(buffer)
                size += count
                if size < _TLS_PIECE_BYTES:
                    continue
            if small:
                write(b"".join(small))
                small, size = [], 0
            if count >= _TLS_LARGE_BYTES:
                view = memoryview(buffer)
                for at in range(0, count, _TLS_PIECE_BYTES):
                    write(view[at : at + _TLS_PIECE_BYTES])
        if small:
            write(b"".join(small))

    return write_all
