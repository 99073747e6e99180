"""Connections to servers: one per address, shared, opened on demand.

Concurrent callers share one attempt per address. After a failed attempt, callers get the same
error at once for a short time, so that they can turn to another server.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any, NamedTuple

from loomlog.client.servers.backoff import BACKOFF
from loomlog.errors import LoomError, Unavailable
from loomlog.net import endpoints
from loomlog.wire.link import Codec, Connection


class _Failure(NamedTuple):
    error: LoomError
    attempts: int
    until_s: float


class Connections:
    """All connections of one client."""

    def __init__(self, codec: Codec, rng: random.Random, connect_timeout_s: float) -> None:
        self._codec = codec
        self._rng = rng
        self._connect_timeout_s = connect_timeout_s
        self._open: dict[str, Connection] = {}
        self._attempts: dict[str, asyncio.Task[Connection]] = {}
        self._failures: dict[str, _Failure] = {}
        self.closed = False

    def get(self, address: str) -> Connection | None:
        """Return the open connection; None if there is none."""
        connection = self._open.get(address)
        return None if connection is None or connection.closed else connection

    async def connect(self, address: str) -> Connection:
        """Return an open or a new connection; raise Unavailable, Timeout or VersionMismatch."""
        connection = self.get(address)
        if connection is not None:
            return connection
        attempt = self._attempts.get(address) or self._start(address)
        return await asyncio.shield(attempt)

    async def close(self) -> None:
        self.closed = True
        attempts = list(self._attempts.values())
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)
        for connection in list(self._open.values()):
            connection.close(Unavailable("this client was closed"))
        self._open.clear()

    def _start(self, address: str) -> asyncio.Task[Connection]:
        loop = asyncio.get_running_loop()
        if self.closed:
            raise Unavailable("this client was closed")
        failure = self._failures.get(address)
        if failure is not None and loop.time() < failure.until_s:
            raise type(failure.error)(*failure.error.args)
        attempt = loop.create_task(self._attempt(address))
        self._attempts[address] = attempt
        attempt.add_done_callback(_retrieve)
        return attempt

    async def _attempt(self, address: str) -> Connection:
        try:
            connection = await endpoints.connect(
                address, self._codec, self, self._connect_timeout_s
            )
        except LoomError as error:
            self._remember(address, error)
            raise
        finally:
            self._attempts.pop(address, None)
        self._failures.pop(address, None)
        self._open[address] = connection
        return connection

    def _remember(self, address: str, error: LoomError) -> None:
        before = self._failures.get(address)
        attempts = before.attempts + 1 if before else 0
        until_s = asyncio.get_running_loop().time() + BACKOFF.delay_s(attempts, self._rng)
        self._failures[address] = _Failure(error, attempts, until_s)

    # Handler

    def frame_received(self, connection: Connection, frame: Any, payload: memoryview) -> None:
        """Ignore the frame: servers send clients no requests, unless they are newer."""

    def connection_closed(self, connection: Connection, error: LoomError) -> None:
        if self._open.get(connection.peer) is connection:
            del self._open[connection.peer]


def _retrieve(attempt: asyncio.Task[Connection]) -> None:
    """Mark the exception as retrieved: callers that still wait get it, and if none does, a
    warning of asyncio would be noise."""
    if not attempt.cancelled():
        attempt.exception()
