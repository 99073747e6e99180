"""Accepts connections, with TLS if there are credentials.

With TLS a connection exists once its handshake is done, for which it has GREETING_S. Each handshake
uses the newest credentials. If too many are under way, the oldest is given up.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol

from loomlog import limits
from loomlog.errors import InvalidArgument
from loomlog.net.address import join_address, split_address
from loomlog.net.credentials import explain_tls
from loomlog.net.notices import Notices
from loomlog.net.tls_handshake import TLS_SHUTDOWN_S, accept_tls

logger = logging.getLogger(__name__)

_BACKLOG: Final = 128
_PAUSE_S: Final = 1.0  # when no file can be opened
_NO_ROOM: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Accepting(Protocol):
    """The side of TLS that accepts connections (net.credentials.Credentials)."""

    def accepting(self) -> ssl.SSLContext:
        """Return the context for the next handshake."""
        ...


class Listener:
    """Listens at one address, and gives each connection a protocol."""

    def __init__(
        self, protocol: Callable[[], asyncio.BaseProtocol], credentials: Accepting | None
    ) -> None:
        self._protocol = protocol
        self._credentials = credentials
        self._plain: Any = None  # asyncio's server, without TLS
        self._sockets: list[socket.socket] = []  # with TLS
        self._handshakes: dict[asyncio.Task[None], socket.socket] = {}  # oldest first
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
                self._sockets = await bind(host, port)
                bound = self._sockets[0].getsockname()
        except OSError as error:
            # asyncio writes the address into the text of an error, too.
            number = error.errno or 0
            reason = os.strerror(number) if number > 0 else error.strerror or error
            raise InvalidArgument(
                f"cannot listen on {address}: {reason}; choose another address or stop what uses it"
            ) from error
        self.address = join_address(bound[0], bound[1])
        for listening in self._sockets:
            self._listen(listening)

    async def stop(self) -> None:
        """Stop listening; connections stay open. Does nothing if it never started."""
        if self._plain is not None:
            await stop_listening(self._plain)
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            loop.remove_reader(listening)
            listening.close()
        await asyncio.sleep(0)  # a handshake that has not begun would not close its socket
        handshakes = dict(self._handshakes)
        for task in handshakes:
            task.cancel()
        await asyncio.gather(*handshakes, return_exceptions=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(TLS_SHUTDOWN_S):
                while any(each.fileno() >= 0 for each in handshakes.values()):  # noqa: ASYNC110
                    await asyncio.sleep(0)  # asyncio closes it in one of its next turns

    # ---- TLS

    def _listen(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            accepted, address = listening.accept()
        except OSError as error:
            if error.errno in _NO_ROOM:
                self._notices.log("accept", "cannot accept a connection: %s", error.strerror)
                loop.remove_reader(listening)
                loop.call_later(_PAUSE_S, self._listen, listening)
            return
        accepted.setblocking(False)
        if len(self._handshakes) >= limits.UNGREETED_MAX:
            next(iter(self._handshakes)).cancel()
        task = loop.create_task(self._handshake(accepted, join_address(*address[:2])))
        self._handshakes[task] = accepted
        task.add_done_callback(self._handshakes.pop)

    async def _handshake(self, accepted: socket.socket, peer: str) -> None:
        assert self._credentials is not None
        try:
            context = self._credentials.accepting()
            await accept_tls(accepted, self._protocol, context, limits.GREETING_S)
        except ssl.SSLError as error:
            reason = explain_tls(error, accepted=True)
            self._notices.log("tls", "refused a connection of %s: %s", peer, reason)
        except (ConnectionAbortedError, TimeoutError):
            self._notices.log("tls", "refused a connection of %s: its TLS handshake hung", peer)
        except OSError:  # a peer that refuses us may close before its alert arrives
            notice = "%s left in the TLS handshake; if it does not trust this server, it says why"
            self._notices.log("left", notice, peer)


async def bind(host: str, port: int) -> list[socket.socket]:
    """Return sockets that listen, one for each address of the host."""
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
    """Close a server after all accepted connections were passed to their protocols. asyncio needs
    two iterations of the loop for this; if it is closed in between, it forgets a connection and
    leaves it open (Python 3.11)."""
    try:
        if isinstance(server, asyncio.Server):
            for listener in server.sockets:
                server.get_loop().remove_reader(listener)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
    finally:
        server.close()
