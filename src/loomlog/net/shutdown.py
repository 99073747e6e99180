"""The end of a connection, from closing its transport until the transport is gone.

With TLS, the peer has to confirm the end within TLS_SHUTDOWN_S. asyncio does not enforce this
if reading was paused when the peer left, nor on a second close.
"""

from __future__ import annotations

import asyncio

from loomlog.net.credentials import Credentials
from loomlog.net.tls_handshake import TLS_SHUTDOWN_S


class Shutdown:
    """The end of one connection."""

    def __init__(self, credentials: Credentials | None) -> None:
        self._credentials = credentials
        self._cut: asyncio.TimerHandle | None = None  # aborts if the peer does not confirm in time
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
        """Called when the transport is gone."""
        self._is_over = True
        if self._cut is not None:
            self._cut.cancel()
        if self._credentials is not None:
            self._credentials.closing.discard(self)
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(None)

    async def wait_closed(self) -> None:
        """Wait until the transport is gone."""
        if self._is_over:
            return
        self._lost = self._lost or asyncio.get_running_loop().create_future()
        await asyncio.shield(self._lost)
