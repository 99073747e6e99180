"""Batches of appends to copyset streams: to the node that sequences, a task for each batch.

A batch that may have been taken keeps its bytes and its number, and goes to whoever sequences by
then, who finds out what became of it; nothing new goes to the stream meanwhile. It is sent for one
epoch. So if it arrives late, after it was repeated, nobody takes it any more.
"""

from __future__ import annotations

import asyncio
from typing import Final

from loomlog import limits
from loomlog.client.carrying import Carrying
from loomlog.client.copyset.segments import SegmentGoneError, Segments, View
from loomlog.client.copyset.sequencers import HOPS_MAX, Sequencers
from loomlog.client.outgoing import Batch, Producer
from loomlog.client.sending import Outcomes
from loomlog.client.targets import Stream
from loomlog.errors import (
    AppendUnknown,
    LoomError,
    NotFound,
    NotLeader,
    Retryable,
    Sealed,
    Timeout,
    Unavailable,
)
from loomlog.net.connection import Connection
from loomlog.types import Glsn
from loomlog.wire import loomlog_pb2 as pb

ANSWER_S: Final = 2.0  # a sequencer that says nothing for so long may be dead: ask who sequences
BYTES_PER_S_MIN: Final = 4 * limits.MIB  # large batches are given more time


class CopysetCarrier(Carrying):
    """To copyset streams."""

    def __init__(
        self,
        segments: Segments,
        sequencers: Sequencers,
        producer: Producer,
        compression: str,
        outcomes: Outcomes,
        loop: asyncio.AbstractEventLoop,
        *,
        at_once: bool,
    ) -> None:
        super().__init__(producer, compression, outcomes, loop, at_once=at_once)
        self._segments = segments
        self._sequencers = sequencers

    async def _carry(self, batch: Batch, attempt: int, target: Stream) -> None:
        batch.waiting = asyncio.current_task()
        try:
            first = await self._append(batch, target)
        except LoomError as error:
            batch.waiting = batch.writing = None
            self._failed(batch, error)
        else:
            batch.waiting = batch.writing = None
            self._outcomes.appended(batch, first, first)

    def _failed(self, batch: Batch, error: LoomError) -> None:
        if not batch.lost:
            certain = NotFound(str(error)) if isinstance(error, SegmentGoneError) else error
            self._outcomes.refused(batch, certain)
        elif self._at_once:
            self._outcomes.lost(batch, batch.lost)
        elif isinstance(error, Sealed):
            self._outcomes.gone(batch)
        else:
            self._outcomes.unknown(batch, error)

    async def _append(self, batch: Batch, target: Stream) -> Glsn:
        """Its first position."""
        batch.sequence = self._producer.next_sequence()
        batch.payload = batch.encode(self._producer.id, batch.sequence, self._compression)
        failures = hops = 0
        while True:
            view = self._segments.view(target.id)
            connection: Connection | None = None
            try:
                address = self._sequencers.address(view)
                connection = await self._segments.connect_to(address)
                if not self._is_repeated(batch):
                    batch.epoch = self._sequencers.epoch(view, address)
                if first := await self._send(batch, view, connection, address):
                    return first
                if not self._is_repeated(batch) and hops < HOPS_MAX:
                    hops += 1
                    continue
                raise Unavailable(f"who sequences stream {target.id} is being decided")
            except Retryable as error:
                self._sequencers.failed(view, error)
                self._doubt(batch, connection, error)
                if isinstance(error, NotLeader) and hops < HOPS_MAX:
                    hops += 1
                    continue
                if not batch.lost or self._at_once:
                    raise
            await self._look_again(target, failures)
            failures, hops = failures + 1, 0

    async def _send(self, batch: Batch, view: View, connection: Connection, address: str) -> Glsn:
        """0: it was not taken; there or elsewhere another epoch has begun."""
        batch.writing = asyncio.current_task()
        request = pb.CopysetAppend(
            loglet_id=view.loglet, repeated=self._is_repeated(batch), epoch=batch.epoch
        )
        timeout_s = ANSWER_S + batch.size / BYTES_PER_S_MIN
        reply, _ = await connection.request(
            pb.Frame(copyset_append=request), (batch.payload,), timeout_s=timeout_s
        )
        if reply.HasField("copyset_tail"):
            self._sequencers.told_epoch(view, address, reply.copyset_tail.epoch)
            return 0
        first = int(reply.appended.first_glsn)
        if not first:
            raise AppendUnknown(f"{connection.peer} gave no position")
        return first

    def _is_repeated(self, batch: Batch) -> bool:
        """This stream may have it; else it was lost elsewhere, and is new here."""
        return bool(batch.lost) and not self._at_once

    def _doubt(self, batch: Batch, connection: Connection | None, error: Retryable) -> None:
        """Note whether it may have been taken by who did not answer."""
        sent = connection is not None and (connection.closed or isinstance(error, Timeout))
        if sent and not batch.lost:
            batch.lost = str(error)
            batch.doubt()
        if not batch.lost:
            batch.writing = None

    async def _look_again(self, target: Stream, failures: int) -> None:
        """Who sequences by now?"""
        await asyncio.sleep(self._sequencers.pause_s(failures))
        try:
            await self._segments.refresh(target.id)
        except Retryable:
            pass  # then as far as is known
