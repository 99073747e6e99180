"""Finds entries of copyset segments by their positions, and the tail of a log.

An entry is first asked of single nodes that are likely to hold it: in a small nodeset most do, and
asking one is much cheaper than asking all. A record that a node returns is valid; that it has none
proves nothing, and then a reader (reader_driver.py) has to find out.

The sequencer knows what was acknowledged in its epoch, the metadata repository what was recovered
before. Asking the sequencer first and then the repository shows whether a newer sequencer may have
acknowledged more.
"""

from __future__ import annotations

import asyncio
from typing import Final

from loomlog.batch import read_header
from loomlog.client.context import Client, Retries
from loomlog.client.loglets.copyset.part import lost
from loomlog.client.loglets.copyset.reader_driver import RunningReader
from loomlog.client.loglets.copyset.segments import Segments, Sequencers, View
from loomlog.client.loglets.views import SegmentGoneError
from loomlog.client.subscribe.pieces import Single, decode_one
from loomlog.core.copyset.effects import Deliver, GapKind, ReadGap
from loomlog.core.copyset.landmarks import SequencerTail, tail
from loomlog.core.copyset.log_state import awaited
from loomlog.core.copyset.messages import Delivered, Read
from loomlog.core.copyset.nodeset import node_of
from loomlog.core.copyset.record import Kind, Lsn, Record, epoch_of
from loomlog.errors import (
    LoomError,
    NotFound,
    NotYetWritten,
    Retryable,
    Sealed,
    Timeout,
    Trimmed,
    Unavailable,
)
from loomlog.limits import KIB
from loomlog.protocol_names import COPYSET
from loomlog.types import Glsn, ShardId, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.copyset import answer_from_wire, request_to_wire
from loomlog.wire.link import Connection

SHOWN_S: Final = 1.0  # far longer than nodes take to answer
ROOM_BYTES: Final = 64 * KIB  # at least one batch is always sent
HOPELESS_S: Final = 1.0  # how long to try while nodes are missing that are needed to find it
ANSWER_S: Final = 2.0  # until a silent sequencer is looked for elsewhere
GUESSES_MAX: Final = 3  # in nodesets that need more, guessing does not pay off
GUESS_S: Final = 0.05  # until a silent node is given up
AVOIDED_S: Final = 5.0  # for which a silent node is not asked first again


class CopysetFinder:
    """Reads from the copyset segments of one log by position."""

    def __init__(self, segments: Segments, tails: CopysetTail) -> None:
        self._segments = segments
        self._tails = tails
        self._guessing = LikelyHolders(segments)
        self._name = segments.log.name
        self._written: dict[StreamId, Glsn] = {}  # the last known position of each stream

    async def read(self, stream: StreamId, position: Glsn, deadline_s: float) -> Single | LoomError:
        """Implement Loglet.read."""
        found = await self._read(stream, position, deadline_s)
        return found or Unavailable(f"position {position} is in another segment by now")

    async def _read(self, stream: StreamId, position: Glsn, deadline_s: float) -> Single | None:
        """Return the entry; None if the segment ends before it, or that cannot be found out."""
        view = self._segments.view(stream)
        if (record := await self._guessing.find(view, position, ROOM_BYTES)) is not None:
            return _entry(record, position)
        if position > max(view.state.tail, self._written.get(stream, 0)):
            last = await self._tails.find(view)
            view = self._segments.view(stream)
            if last is None:
                return await self._take_shown(view, position)
            if position > last:
                self._require_written(view, position, last)
                return None
            self._written[stream] = last
        found = await self._take(view, position, deadline_s)
        if isinstance(found, Deliver):
            return _entry(found.record, position)
        raise self._nothing(found, position)

    async def _take_shown(self, view: View, position: Glsn) -> Single | None:
        """Return the entry if nodes show it although the segment's tail is unknown."""
        deadline_s = asyncio.get_running_loop().time() + SHOWN_S
        try:
            found = await self._take(view, position, deadline_s)
        except Timeout:
            return None
        return _entry(found.record, position) if isinstance(found, Deliver) else None

    def _require_written(self, view: View, position: Glsn, last: Glsn) -> None:
        """Raise NotYetWritten unless the segment has ended, so that the next one may have it."""
        if tail(view.state, None) is None:
            raise NotYetWritten(
                f"position {position} of log {self._name!r} is not written yet; the last one is "
                f"{last}"
            )

    async def _take(
        self, view: View, position: Glsn, deadline_s: float
    ) -> Deliver | ReadGap | None:
        changed = asyncio.Event()
        reading = RunningReader(
            self._segments, view, position, position, changed.set, room_bytes=ROOM_BYTES
        )
        try:
            async with asyncio.timeout_at(deadline_s):
                while (found := reading.take()) is None and not reading.finished:
                    if reading.failure is not None:
                        raise reading.failure
                    changed.clear()
                    await changed.wait()
                return found
        except TimeoutError:
            raise Timeout(
                f"position {position} of log {self._name!r} could not be read in time: too few "
                "nodes answer; try again, and see `loom status`"
            ) from None
        finally:
            reading.close()

    def _nothing(self, gap: ReadGap | None, position: Glsn) -> LoomError:
        if gap is not None and gap.kind is GapKind.TRIM:
            return Trimmed(f"position {position} of log {self._name!r} was trimmed")
        if gap is not None and gap.kind is GapKind.DATALOSS:
            return lost(self._name, gap)
        return NotFound(
            f"position {position} of log {self._name!r} has no entry and never will: skip it"
        )


def _entry(record: Record, position: Glsn) -> Single:
    return decode_one(record.batch, read_header(record.batch), position - record.first)


class LikelyHolders:
    """Reads single records of the copyset segments of one log from likely holders."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._avoided: dict[ShardId, float] = {}  # until this time of the loop's clock

    async def find(self, view: View, position: Lsn, room_bytes: int) -> Record | None:
        """Return the record that covers the position; None if no node asked has it."""
        if position <= view.state.trimmed:
            return None
        for shard in _holders(view, position):
            connection = self._connection(view, shard)
            if connection is None:
                continue
            record = await self._ask(view, shard, connection, position, room_bytes)
            if record is not None:
                return record
        return None

    def _connection(self, view: View, shard: ShardId) -> Connection | None:
        """Return an open connection; opening one may take too long."""
        if asyncio.get_running_loop().time() < self._avoided.get(shard, 0.0):
            return None
        return self._segments.connected(view, shard)

    async def _ask(
        self, view: View, shard: ShardId, connection: Connection, position: Lsn, room_bytes: int
    ) -> Record | None:
        read = Read(view.loglet, position, position, room_bytes, everything=True)
        message, _ = request_to_wire(shard, read, view.state.stamp)
        try:
            reply, payload = await connection.request(
                pb.Frame(copyset_request=message), timeout_s=GUESS_S
            )
            answer = answer_from_wire(reply.copyset_answer, payload)
        except LoomError:
            self._avoided[shard] = asyncio.get_running_loop().time() + AVOIDED_S
            return None
        for record in answer.records if isinstance(answer, Delivered) else ():
            if record.kind is Kind.DATA and record.first <= position <= record.last:
                return record
        return None


def _holders(view: View, position: Lsn) -> list[ShardId]:
    """Return enough shards that one holds the record unless it was lost, rotated by position."""
    state, epoch = view.state, epoch_of(position)
    if not state.history or epoch < state.history[0].since:
        return []
    metadata = state.metadata_of(epoch)
    shards = sorted(metadata.shards)
    count = min(len(shards) - metadata.replication + 1, GUESSES_MAX)
    first = position % len(shards)
    return (shards[first:] + shards[:first])[:count]


class CopysetTail:
    """Finds the tail of one log."""

    def __init__(self, segments: Segments, sequencers: Sequencers, client: Client) -> None:
        self._segments = segments
        self._sequencers = sequencers
        self._timeout_s = client.settings.request_timeout_s
        self._rng = client.rng

    async def complete(self, log: pb.Log) -> pb.Log:
        """Return the current log with its tail."""
        hopeless_s = asyncio.get_running_loop().time() + HOPELESS_S
        retries = Retries(self._rng, self._timeout_s)
        while (stream := _active(log)) is not None:
            doubt: LoomError | None = None
            known: SequencerTail | None = None
            try:
                known = await self._ask(self._segments.view(stream))
            except (Retryable, Sealed, NotFound, SegmentGoneError) as error:
                doubt = error
            log = await self._segments.log.fetch()
            if (found := self._tail(log, known)) is not None:
                log.tail = max(log.tail, found)
                log.tail_unknown = False
                return log
            if self._waits_for_nodes(log):
                retries.deadline_s = min(retries.deadline_s, hopeless_s)
            if not await retries.pause():
                why = _condition(log) or str(doubt or "old epochs are being recovered")
                raise Unavailable(
                    f"the tail of log {log.name!r} is not known now: {why}; try again, and see "
                    "`loom status`"
                )
        return log

    async def find(self, view: View) -> Glsn | None:
        """Return the tail of one segment; None if it cannot be found now."""
        try:
            known: SequencerTail | None = await self._ask(view)
        except (Retryable, Sealed, NotFound):
            known = None
        await self._segments.log.fetch()  # after the sequencer's answer, so not shared
        return tail(self._segments.view(view.stream).state, known)

    async def _ask(self, view: View) -> SequencerTail | None:
        if view.state.closed:
            return None
        question = pb.Frame(find_copyset_tail=pb.FindCopysetTail(loglet_id=view.loglet))
        answer = (await self._sequencers.ask(view, question, ANSWER_S)).copyset_tail
        return SequencerTail(answer.epoch, answer.tail)

    def _tail(self, log: pb.Log, known: SequencerTail | None) -> Glsn | None:
        stream = _active(log)
        if stream is None:
            return log.tail
        try:
            return tail(self._segments.view(stream).state, known)
        except SegmentGoneError:
            return None

    def _waits_for_nodes(self, log: pb.Log) -> bool:
        """Return whether nodes must be started before the tail can be found."""
        stream = _active(log)
        if stream is None:
            return False
        try:
            state, nodes = self._segments.view(stream)[2:4]
        except SegmentGoneError:
            return False
        alive = {node.node_id for node in nodes.values() if node.alive}
        over = state.epoch if state.sequencer not in alive else state.epoch - 1
        there = [shard for shard in state.all_shards if node_of(shard) in alive]
        return bool(awaited(state, there, over))


def _condition(log: pb.Log) -> str:
    """Return the condition of the active stream, e.g. which nodes it waits for."""
    active = _active(log)
    return next((str(s.condition) for s in log.streams if s.log_stream_id == active), "")


def _active(log: pb.Log) -> StreamId | None:
    """Return the stream of the active segment if its protocol is `copyset`."""
    if log.segments[-1].protocol != COPYSET:
        return None
    loglet = log.segments[-1].loglet_id
    streams = (stream for stream in log.streams if stream.loglet_id == loglet)
    return next((s.log_stream_id for s in streams if s.HasField("copyset")), None)
