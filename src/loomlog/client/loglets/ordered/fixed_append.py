"""Appends to `ordered` streams with a given producer and sequence number, for publications.

delivery.py numbers a client's own batches as it sends them. Here several processes may send the
same batch, which must be stored once: so its producer, sequence number and stream are fixed, and
the stream detects a repeat. In any later epoch, either the stream has it or it was never taken.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final

from loomlog.client.append.carriers import retryable_if_sound
from loomlog.client.loglets.contract import Confirm, Fixed
from loomlog.client.servers import BACKOFF, CachedLog, Connections
from loomlog.errors import (
    AppendUnknown,
    Corrupt,
    LoomError,
    NotFound,
    Retryable,
    RolledBack,
    Sealed,
    Unavailable,
    seconds,
)
from loomlog.protocol_names import ORDERED
from loomlog.types import Buffer, Glsn, StreamId
from loomlog.wire import loomlog_pb2 as pb

_ANSWER_S: Final = 2.0  # then the metadata is refreshed and the batch sent again


class SegmentEndedError(LoomError):
    """The stream permanently takes no more appends: its content is final."""


class FixedAppend:
    """Appends with fixed numbers to the `ordered` streams of one log."""

    def __init__(
        self, log: CachedLog, connections: Connections, timeout_s: float, rng: random.Random
    ) -> None:
        self._log = log
        self._connections = connections
        self._timeout_s = timeout_s
        self._rng = rng

    def reserve(self, stream: StreamId, tail: Glsn) -> Fixed:
        return Fixed(ORDERED, stream, tail)

    async def append(self, fixed: Fixed, batch: Buffer, confirm: Confirm) -> Glsn:
        """Return the batch's first position; 0 if the stream takes no more appends."""
        try:
            return await self._insist(fixed.stream, batch, confirm)
        except SegmentEndedError:
            return 0
        except AppendUnknown:
            await confirm()
            raise

    async def _insist(self, stream: StreamId, batch: Buffer, confirm: Confirm) -> Glsn:
        """Send the batch until it is answered. `confirm` is called each time between learning the
        stream's epoch and sending: an earlier append of another process is known in that epoch, and
        in a later epoch this one is refused."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._timeout_s
        attempts = 0
        while True:
            target = await self._find(stream)
            await confirm()
            try:
                return await self._send(target, batch)
            except (Retryable, Sealed, NotFound) as error:
                wait_s = BACKOFF.delay_s(attempts, self._rng)
                if loop.time() + wait_s >= deadline_s:
                    raise self._overdue(target, error) from error
            await asyncio.sleep(wait_s)
            attempts += 1

    async def _find(self, stream: StreamId) -> pb.LogStream:
        log = await self._log.fetch()
        for found in log.streams:
            if found.log_stream_id == stream:
                _require_active(log, found)
                return found
        raise SegmentEndedError(f"log {self._log.name!r} no longer has stream {stream}")

    async def _send(self, target: pb.LogStream, batch: Buffer) -> Glsn:
        if target.rolled_back:
            raise RolledBack(f"log {self._log.name!r}: {target.condition}")
        if target.state != pb.RUNNING or not target.replicas:
            raise Sealed(target.condition or "it does not run")
        connection = await self._connections.connect(target.replicas[0].address)
        request = pb.Append(log_stream_id=target.log_stream_id, seal_epoch=target.seal_epoch)
        try:
            answer, _ = await connection.request(
                pb.Frame(append=request), (batch,), timeout_s=_ANSWER_S
            )
        except Corrupt as error:
            raise retryable_if_sound(error, batch) from error
        if not answer.appended.first_glsn:
            raise Unavailable(f"{connection.peer} gave no position")
        return int(answer.appended.first_glsn)

    def _overdue(self, target: pb.LogStream, error: LoomError) -> LoomError:
        return Unavailable(
            f"log {self._log.name!r}: stream {target.log_stream_id} took no append for "
            f"{seconds(self._timeout_s)} ({error}); see `loom stream list`, unseal it if it was "
            "sealed by hand, and publish again: nothing is lost or doubled by that"
        )


def _require_active(log: pb.Log, stream: pb.LogStream) -> None:
    ended = {segment.loglet_id for segment in log.segments if segment.HasField("end")}
    if stream.loglet_id in ended:
        raise SegmentEndedError(f"the segment of stream {stream.log_stream_id} has ended")
