"""Connects to servers, and listens."""

from __future__ import annotations

import asyncio
import logging
import ssl
import sys
from collections.abc import Callable, Collection, Coroutine
from contextvars import Context
from typing import Any, Generic, TypeAlias, TypeVar

from loomlog import limits, tracing
from loomlog.core.principal import Kind
from loomlog.errors import Busy, LoomError, Timeout, Unauthorized, Unavailable, seconds
from loomlog.meters import Traffic
from loomlog.net.address import split_address
from loomlog.net.connection import Connection, Damaged, Handler
from loomlog.net.credentials import HandshakeFailed, explain_tls
from loomlog.net.frames import Codec, F
from loomlog.net.listener import Listener
from loomlog.net.notices import Notices
from loomlog.net.tls_handshake import connect_tls

logger = logging.getLogger(__name__)

T = TypeVar("T")

Wanted: TypeAlias = tuple[Kind, int]  # the peer that a certificate must state; number 0: any


def _made(codec: Codec[F], handler: Handler[F], *others: Any, **options: Any) -> Connection[F]:
    tracer = tracing.active()
    if tracer is None:
        return Connection(codec, handler, *others, **options)
    from loomlog.net.traced_connection import TracedConnection

    return TracedConnection(tracer, codec, handler, *others, **options)


async def _detached(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine outside of the caller's span. A connection outlives the request for which it
    was made, and its callbacks inherit the context in which it was made."""
    if tracing.active() is None:
        return await work
    return await asyncio.get_running_loop().create_task(work, context=Context())


async def connect(
    address: str,
    codec: Codec[F],
    handler: Handler[F],
    timeout_s: float = limits.CONNECT_TIMEOUT_S,
    *,
    wanted: Wanted | None = None,
) -> Connection[F]:
    """Connect and greet. Raise Unavailable, Timeout, VersionMismatch or, if the peer's certificate
    belongs to another cluster or server, Unauthorized."""
    host, port = split_address(address)
    loop = asyncio.get_running_loop()
    made: list[Connection[F]] = []

    def make() -> Connection[F]:
        made.append(_made(codec, handler, peer=address))
        return made[-1]

    try:
        async with asyncio.timeout(timeout_s):
            if codec.credentials is None:
                _, connected = await _detached(loop.create_connection(make, host, port))
            else:
                tls = codec.credentials.connecting()
                connected = await _detached(connect_tls(host, port, make, tls))
            await asyncio.shield(connected.greeted)
        if wanted is not None:
            connected.require(*wanted)
        made.clear()
        return connected
    except TimeoutError:
        error: LoomError = Timeout(f"{address} did not answer within {seconds(timeout_s)}")
    except (ssl.SSLError, ssl.CertificateError) as cause:
        reason = explain_tls(cause, accepted=False)
        error = HandshakeFailed(f"no TLS with {address}: {reason}")
    except OSError as cause:
        error = Unavailable(f"cannot reach {address}: {cause.strerror or cause}")
    finally:
        for connection in made:  # the caller does not get it, even after the greeting
            await connection.give_up(Unavailable(f"the connection to {address} was given up"))
    raise error


async def is_refused(address: str, timeout_s: float) -> bool:
    """Return whether the machine answers that no process listens at the address, so that one that
    did must have ended. Return False if there is no such answer."""
    host, port = split_address(address)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            transport, _ = await loop.create_connection(asyncio.Protocol, host, port)
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        return False
    transport.abort()
    return False


class Links(Generic[F]):
    """One connection per address; all share one handler."""

    def __init__(self, codec: Codec[F], handler: Handler[F]) -> None:
        self._codec = codec
        self._handler = handler
        self._connections: dict[str, Connection[F]] = {}
        self._connecting: dict[str, asyncio.Lock] = {}

    def get(self, address: str) -> Connection[F] | None:
        """Return the open connection to an address, if any."""
        connection = self._connections.get(address)
        return None if connection is None or connection.closed else connection

    async def connect(self, address: str, wanted: Wanted) -> Connection[F]:
        """Return the open connection to the address of a server, or a new one."""
        async with self._connecting.setdefault(address, asyncio.Lock()):
            connection = self.get(address)
            if connection is None:
                connection = await connect(address, self._codec, self._handler, wanted=wanted)
                self._connections[address] = connection
            return connection

    def forget(self, connection: Connection[F]) -> str | None:
        """Remove a closed connection; return its address, or None if it was already replaced."""
        for address, known in self._connections.items():
            if known is connection:
                del self._connections[address]
                return address
        return None

    def close(self) -> None:
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close()


class Server(Generic[F]):
    """Listens, and owns every accepted connection until it is lost.

    A peer has to greet within GREETING_S. If too many have not greeted, the oldest one is
    disconnected. Connections beyond the limit of open files are refused. If clients use more than
    CLIENTS_BYTES_MAX of memory together, those that use most are disconnected.
    """

    def __init__(
        self,
        codec: Codec[F],
        handler: Handler[F],
        admit: Callable[[Connection[F]], None] = lambda connection: None,
        traffic: Traffic | None = None,
    ) -> None:
        """`admit` raises if a peer that greets over TLS is not accepted."""
        self._traffic = traffic
        self._codec = codec
        self._handler = handler
        self._admit = admit
        self._connections: dict[Connection[F], int] = {}  # with bytes held by clients; oldest first
        self._held_bytes = 0  # their sum
        self._ungreeted: dict[Connection[F], asyncio.TimerHandle] = {}  # oldest first
        self._connections_max = 0
        self._notices = Notices(logger)
        self._listener = Listener(self._connection, codec.credentials)
        self.frame_received = handler.frame_received  # frames go straight to the handler

    @property
    def address(self) -> str:
        return self._listener.address

    async def start(self, address: str) -> None:
        self._connections_max = _connections_max()
        await self._listener.start(address)

    async def stop(self) -> None:
        await self._listener.stop()
        for connection in list(self._connections):
            connection.close()
        self._connections.clear()
        self._held_bytes = 0
        if self._codec.credentials is not None:
            await self._codec.credentials.wait_closed()

    def disconnect(self, roles: Collection[str]) -> None:
        """Close the connections of peers that have these roles, have not greeted, or have a
        certificate that is not a server's, whatever their role."""
        for connection in list(self._connections):
            is_server = connection.principal.kind in ("node", "metadata")
            if (
                connection in self._ungreeted
                or connection.greeted.result() in roles
                or (connection.is_encrypted and not is_server)
            ):
                connection.close()

    @property
    def connections(self) -> list[Connection[F]]:
        """The connections that are open and have greeted."""
        return [each for each in self._connections if each not in self._ungreeted]

    # ---- new connections

    def _connection(self) -> Connection[F]:
        return _made(
            *(self._codec, self, self._accept, self._admit),
            traffic=self._traffic,
            watch=self._measure,
        )

    def _accept(self, connection: Connection[F]) -> None:
        if len(self._connections) >= self._connections_max:
            self._notices.log(
                "full",
                "refused a connection, %d are open: raise the limit of open files (ulimit -n)",
                len(self._connections),
            )
            connection.abort(Unavailable("too many connections"))
            return
        if len(self._ungreeted) >= limits.UNGREETED_MAX:
            oldest = next(iter(self._ungreeted))
            self._greeting_ended(oldest)
            oldest.abort(Damaged("too many peers connect and do not greet"))
        loop = asyncio.get_running_loop()
        self._connections[connection] = 0
        self._ungreeted[connection] = loop.call_later(limits.GREETING_S, self._late, connection)
        connection.greeted.add_done_callback(lambda _: self._greeting_ended(connection))

    def _greeting_ended(self, connection: Connection[F]) -> None:
        if (timer := self._ungreeted.pop(connection, None)) is not None:
            timer.cancel()

    def _late(self, connection: Connection[F]) -> None:
        connection.abort(Damaged(f"{connection.peer} did not greet in {limits.GREETING_S:g} s"))

    # ---- memory

    def _measure(self, connection: Connection[F]) -> None:
        """Called every few seconds for each connection. The memory of servers is not limited."""
        if connection not in self._connections or _is_server(connection):
            return
        held = connection.held_bytes
        self._held_bytes += held - self._connections[connection]
        self._connections[connection] = held
        if self._held_bytes > limits.CLIENTS_BYTES_MAX:
            self._cut_largest()

    def _cut_largest(self) -> None:
        clients = [each for each in self.connections if not _is_server(each)]
        for each in clients:
            self._connections[each] = each.held_bytes
        self._held_bytes = sum(self._connections.values())
        for each in sorted(clients, key=self._connections.__getitem__, reverse=True):
            if self._held_bytes <= limits.CLIENTS_BYTES_MAX * 3 // 4:
                return
            held = self._connections[each] // limits.MIB
            text = f"{each.peer} holds {held} MiB, and all clients too much: connection cut"
            self._notices.log("memory", "%s", text)
            each.abort(Busy(text))

    # ---- closed connections

    def connection_closed(self, connection: Connection[F], error: LoomError) -> None:
        held = self._connections.pop(connection, None)
        if held is None:
            return  # it was refused
        self._held_bytes -= held
        if isinstance(error, Damaged):
            self._note(error)
        elif isinstance(error, Unauthorized):
            self._notices.log("unauthorized", "refused %s: %s", connection.peer, error)
        self._handler.connection_closed(connection, error)

    def _note(self, error: Damaged) -> None:
        cause = error.__cause__
        if isinstance(cause, Exception):
            self._notices.log("unexpected", "%s", error, error=cause)
        else:
            self._notices.log("damaged", "closed a connection: %s", error)


def _is_server(connection: Connection[Any]) -> bool:
    """Return whether the peer is a server of the cluster: by its certificate or, without TLS, by
    its greeting."""
    if connection.is_encrypted:
        return connection.principal.kind in ("node", "metadata")
    return connection.greeted.result() in ("vsn", "vmr")


def _connections_max() -> int:
    """Return half of this process's limit of open files; the other half is for its data."""
    import resource

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if files == resource.RLIM_INFINITY else files // 2
