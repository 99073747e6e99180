"""An append whose number is given, to a stream that is given: repeated until it is known.

delivery.py numbers a client's own batches as it sends them. Here the same batch may be sent by
several processes, one after the other or at once, and must be appended once: so its producer and
sequence are always the same, and it always goes to the same stream, which recognises it. In
whatever epoch it is sent again, either the stream has it or it was never taken.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

from loomlog.client import backoff
from loomlog.client.metadata import CachedLog
from loomlog.client.nodes import Connections
from loomlog.errors import LoomError, NotFound, Retryable, Sealed, Unavailable
from loomlog.types import Buffer, Position, StreamId
from loomlog.wire import loomlog_pb2 as pb

_ANSWER_S: Final = 2.0  # then the metadata is looked at, and the same is sent again


class SegmentEndedError(LoomError):
    """The stream takes nothing any more, for good: what it has not now it never will."""


class PinnedAppends:
    """Such appends of one client to one log."""

    def __init__(
        self, log: CachedLog, connections: Connections, timeout_s: float, rng: random.Random
    ) -> None:
        self._log = log
        self._connections = connections
        self._timeout_s = timeout_s
        self._rng = rng

    async def append(
        self, stream: StreamId, batch: Buffer, confirm: Callable[[], Awaitable[None]]
    ) -> Position:
        """The position of the batch's first record. `confirm` raises if others went on without us.
        It is asked each time, between learning the stream's epoch and sending: what another process
        appended before is known in that epoch, and in a later one this append is refused.
        SegmentEndedError: the stream will not take it any more."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._timeout_s
        attempts = 0
        while True:
            target = await self._find(stream)
            await confirm()
            try:
                return await self._send(target, batch)
            except (Retryable, Sealed, NotFound) as error:
                wait_s = backoff.delay_s(attempts, self._rng)
                if loop.time() + wait_s >= deadline_s:
                    raise self._overdue(target, error) from error
            await asyncio.sleep(wait_s)
            attempts += 1

    async def _find(self, stream: StreamId) -> pb.LogStream:
        log = await self._log.describe()
        for found in log.streams:
            if found.log_stream_id == stream:
                _require_active(log, found)
                return found
        raise SegmentEndedError(f"log {self._log.name!r} has no stream {stream} any more")

    async def _send(self, target: pb.LogStream, batch: Buffer) -> Position:
        if target.state != pb.RUNNING or not target.replicas:
            raise Sealed(target.condition or "it does not run")
        connection = await self._connections.connect(target.replicas[0].address)
        request = pb.Append(log_stream_id=target.log_stream_id, seal_epoch=target.seal_epoch)
        answer, _ = await connection.request(
            pb.Frame(append=request), (batch,), timeout_s=_ANSWER_S
        )
        place = answer.appended
        if not place.first_glsn:
            raise Unavailable(f"{connection.peer} gave no position")
        return Position(place.first_glsn, target.log_stream_id, place.first_llsn)

    def _overdue(self, target: pb.LogStream, error: LoomError) -> LoomError:
        return Unavailable(
            f"log {self._log.name!r}: stream {target.log_stream_id} took no append for "
            f"{self._timeout_s:g} s ({error}); see `loom stream list`, unseal it if it was sealed "
            "by hand, and publish again: nothing is lost or doubled by that"
        )


def _require_active(log: pb.Log, stream: pb.LogStream) -> None:
    ended = {segment.loglet_id for segment in log.segments if segment.HasField("end")}
    if stream.loglet_id in ended:
        raise SegmentEndedError(f"stream {stream.log_stream_id} is of a segment that has ended")
