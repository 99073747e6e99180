"""A client's access to the `copyset` segments of one log."""

from __future__ import annotations

from collections.abc import Sequence

from loomlog.client.append.carriers import Carrier, Outcomes
from loomlog.client.loglets.contract import Confirm, Context, Fixed, FollowOptions, RowsFrom
from loomlog.client.loglets.copyset.carrier import CopysetCarrier
from loomlog.client.loglets.copyset.finder import CopysetFinder, CopysetTail
from loomlog.client.loglets.copyset.fixed_append import FixedAppend
from loomlog.client.loglets.copyset.part import CopysetPart, Source
from loomlog.client.loglets.copyset.segments import Segments, Sequencers
from loomlog.client.loglets.times import find_by_halves
from loomlog.client.subscribe.numbering import Run
from loomlog.client.subscribe.part import Part
from loomlog.client.subscribe.pieces import Referred
from loomlog.errors import LoomError
from loomlog.types import Entry, Glsn, Llsn, StreamId
from loomlog.wire import loomlog_pb2 as pb


class CopysetLoglet:
    """The loglet of protocol `copyset`: a sequencer takes appends; a segment has one stream."""

    joins_neighbours = False
    counts_llsns = False
    finds_fixed = False

    def __init__(self, context: Context) -> None:
        settings = context.settings
        self._context = context
        self.segments = Segments(context.log, context.connections)
        self._sequencers = Sequencers(self.segments, context.rng)
        self.tails = CopysetTail(self.segments, self._sequencers, settings.request_timeout_s)
        self._finder = CopysetFinder(self.segments, self.tails)
        self._fixed = FixedAppend(self.segments, self._sequencers, settings.append_timeout_s)

    def carrier(self, outcomes: Outcomes) -> Carrier:
        context = self._context
        return CopysetCarrier(
            self.segments,
            self._sequencers,
            context.producer,
            context.settings.compression,
            outcomes,
            context.loop,
        )

    async def read(
        self, run: Run, position: Glsn, deadline_s: float
    ) -> Entry | Referred | LoomError:
        [stream] = run.streams
        return await self._finder.read(stream.log_stream_id, position, deadline_s)

    def follow(self, options: FollowOptions, log: pb.Log, start: int, stop: int | None) -> Part:
        source = Source(
            self.segments,
            options.window_bytes,
            options.numbering,
            options.gaps,
            options.payloads,
        )
        return CopysetPart(source, log, start, stop)

    async def tail(self, log: pb.Log, *, fresh: bool) -> pb.Log:
        return await self.tails.complete(log)

    async def locate(self, stream: pb.LogStream, position: Glsn) -> Llsn:
        return position

    async def find_time(
        self,
        streams: Sequence[pb.LogStream],
        timestamp_us: int,
        first: Glsn,
        last: Glsn,
        rows_from: RowsFrom,
    ) -> Glsn | None:
        return await find_by_halves(timestamp_us, first, last, rows_from)

    async def reserve(self, stream: StreamId, tail: Glsn, rows: int) -> Fixed:
        return await self._fixed.reserve(stream, tail)

    async def append_fixed(self, fixed: Fixed, batch: bytearray, confirm: Confirm) -> Glsn:
        return await self._fixed.append(fixed, batch, confirm)

    async def close(self) -> None:
        pass
