"""The end of a connection: its transport is closed, and later nothing is left of it.

With TLS the peer has to confirm the end, within a moment. asyncio does not look at the time if
reading was paused when the peer left, nor on a second close.
"""

from __future__ import annotations

import asyncio

from loomlog.net.credentials import Credentials
from loomlog.net.tls_handshake import TLS_SHUTDOWN_S


class Shutdown:
    """The end of one connection."""

    def __init__(self, credentials: Credentials | None) -> None:
        self._credentials = credentials
        self._cut: asyncio.TimerHandle | None = None  # when the peer is not waited for any more
        self._lost: asyncio.Future[None] | None = None  # while a caller waits for the end
        self._is_over = False

    def begin(self, transport: asyncio.Transport) -> None:
        """Close the transport."""
        if self._credentials is not None and self._cut is None:
            loop = asyncio.get_running_loop()
            self._cut = loop.call_later(TLS_SHUTDOWN_S, transport.abort)
            self._credentials.closing.add(self)
        if not transport.is_closing():
            transport.close()

    def end(self) -> None:
        """Called when nothing is left of the connection."""
        self._is_over = True
        if self._cut is not None:
            self._cut.cancel()
        if self._credentials is not None:
            self._credentials.closing.discard(self)
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(None)

    async def wait_closed(self) -> None:
        """Wait until nothing is left of the connection."""
        if self._is_over:
            return
        self._lost = self._lost or asyncio.get_running_loop().create_future()
        await asyncio.shield(self._lost)
