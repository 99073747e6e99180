"""A client's access to the `chained` segments of one log."""

from __future__ import annotations

from collections.abc import Sequence

from loomlog.client.append.carriers import Carrier, Outcomes
from loomlog.client.loglets.chained.carrier import ChainedCarrier
from loomlog.client.loglets.chained.chains import Chains
from loomlog.client.loglets.chained.finder import ChainedFinder, ChainedTail
from loomlog.client.loglets.chained.fixed_append import FixedAppend
from loomlog.client.loglets.chained.part import ChainedPart, Source
from loomlog.client.loglets.contract import Confirm, Context, Fixed, FollowOptions, RowsFrom
from loomlog.client.loglets.times import find_by_halves
from loomlog.client.subscribe.numbering import Run
from loomlog.client.subscribe.part import Part
from loomlog.client.subscribe.pieces import Referred
from loomlog.errors import LoomError
from loomlog.types import Entry, Glsn, Llsn, StreamId
from loomlog.wire import loomlog_pb2 as pb


class ChainedLoglet:
    """The loglet of protocol `chained`: clients drive the chains; a segment has one stream."""

    joins_neighbours = False
    counts_llsns = False
    finds_fixed = True

    def __init__(self, context: Context) -> None:
        self._context = context
        self._log = context.log
        settings = context.settings
        self.chains = Chains(self._log, context.metadata, context.connections, context.rng)
        self._finder = ChainedFinder(self.chains, self._log.name, settings.hole_timeout_s)
        self._tail = ChainedTail(self._log, self.chains, settings.request_timeout_s)
        self._fixed = FixedAppend(self.chains)

    def carrier(self, outcomes: Outcomes) -> Carrier:
        context = self._context
        return ChainedCarrier(
            self.chains,
            context.producer,
            context.settings.compression,
            outcomes,
            context.loop,
            context.spinning,
            at_once=context.settings.retry == "at-once",
        )

    async def read(
        self, run: Run, position: Glsn, deadline_s: float
    ) -> Entry | Referred | LoomError:
        [stream] = run.streams
        return await self._finder.read(stream.log_stream_id, position, deadline_s)

    def follow(self, options: FollowOptions, log: pb.Log, start: int, stop: int | None) -> Part:
        source = Source(
            self._log,
            self.chains,
            options.window_bytes,
            self._context.settings.hole_timeout_s,
            options.numbering,
            options.gaps,
        )
        return ChainedPart(source, log, start, stop)

    async def tail(self, log: pb.Log, *, fresh: bool) -> pb.Log:
        return await self._tail.complete()

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
        return await self._fixed.reserve(stream, rows)

    async def append_fixed(self, fixed: Fixed, batch: bytearray, confirm: Confirm) -> Glsn:
        return await self._fixed.append(fixed, batch)

    async def close(self) -> None:
        await self.chains.close()
