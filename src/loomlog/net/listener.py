"""Accepts connections, with TLS if there are credentials.

With TLS a connection exists once its handshake is done, for which it has GREETING_S. Each handshake
uses the newest credentials. If too many are under way, the oldest is given up.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from loomlog import limits
from loomlog.errors import InvalidArgument
from loomlog.net.address import join_address, split_address
from loomlog.net.credentials import Credentials, explain_tls
from loomlog.net.notices import Notices

logger = logging.getLogger(__name__)

TLS_SHUTDOWN_S: Final = 2.0  # a peer that does not confirm the end of TLS is cut off
_BACKLOG: Final = 128
_PAUSE_S: Final = 1.0  # when no file can be opened
_NO_ROOM: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Listener:
    """Listens at one address, and gives each connection a protocol."""

    def __init__(
        self, protocol: Callable[[], asyncio.BaseProtocol], credentials: Credentials | None
    ) -> None:
        self._protocol = protocol
        self._credentials = credentials
        self._plain: Any = None  # asyncio's server, without TLS
        self._sockets: list[socket.socket] = []  # with TLS
        self._accepting: list[asyncio.Task[None]] = []
        self._handshakes: dict[asyncio.Task[None], None] = {}  # oldest first
        self._notices = Notices(logger)
        self.address = ""

    async def start(self, address: str) -> None:
        """Listen; port 0 picks a free one. Raise InvalidArgument if the address is taken."""
        host, port = split_address(address)
        loop = asyncio.get_running_loop()
        try:
            if self._credentials is None:
                self._plain = await loop.create_server(self._protocol, host, port)
                bound = self._plain.sockets[0].getsockname()
            else:
                self._sockets = await _bind(host, port)
                bound = self._sockets[0].getsockname()
        except OSError as error:
            raise InvalidArgument(
                f"cannot listen on {address}: {error.strerror or error}; "
                "choose another address or stop what uses it"
            ) from error
        self.address = join_address(bound[0], bound[1])
        self._accepting = [loop.create_task(self._accept(each)) for each in self._sockets]

    async def stop(self) -> None:
        """Stop listening; what is connected stays so. Does nothing if never started."""
        if self._plain is not None:
            await stop_listening(self._plain)
        tasks = [*self._accepting, *self._handshakes]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in self._sockets:
            each.close()

    # ---- TLS

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listening)
            except OSError as error:
                if error.errno in _NO_ROOM:
                    self._notices.log("accept", "cannot accept a connection: %s", error.strerror)
                    await asyncio.sleep(_PAUSE_S)
                continue
            if len(self._handshakes) >= limits.UNGREETED_MAX:
                next(iter(self._handshakes)).cancel()
            task = loop.create_task(self._handshake(accepted, join_address(*address[:2])))
            self._handshakes[task] = None
            task.add_done_callback(lambda done: self._handshakes.pop(done, None))

    async def _handshake(self, accepted: socket.socket, peer: str) -> None:
        assert self._credentials is not None
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                self._protocol,
                accepted,
                ssl=self._credentials.accepting(),
                ssl_handshake_timeout=limits.GREETING_S,
                ssl_shutdown_timeout=TLS_SHUTDOWN_S,
            )
        except ssl.SSLError as error:
            reason = explain_tls(error, accepted=True)
            self._notices.log("tls", "refused a connection of %s: %s", peer, reason)
        except (ConnectionAbortedError, TimeoutError):
            self._notices.log("tls", "refused a connection of %s: its TLS handshake hung", peer)
        except OSError:  # the alert of one that refuses us does not arrive
            notice = "%s left in the TLS handshake; if it does not trust this server, it says why"
            self._notices.log("left", notice, peer)
        except asyncio.CancelledError:
            accepted.close()
            raise


async def _bind(host: str, port: int) -> list[socket.socket]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            listening = socket.socket(family, kind, protocol)
            sockets.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind(address)
            listening.listen(_BACKLOG)
            listening.setblocking(False)
    except BaseException:
        for each in sockets:
            each.close()
        raise
    return sockets


async def stop_listening(server: asyncio.AbstractServer) -> None:
    """Close a server after everything that it has accepted was passed to its protocols. asyncio
    needs two turns of the loop for that; closed in between, it forgets a connection and leaves it
    open (Python 3.11)."""
    try:
        if isinstance(server, asyncio.Server):
            for listener in server.sockets:
                server.get_loop().remove_reader(listener)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
    finally:
        server.close()
