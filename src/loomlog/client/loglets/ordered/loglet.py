"""A client's access to the `ordered` segments of one log."""

from __future__ import annotations

from collections.abc import Sequence

from loomlog.client.append.carriers import Carrier, Outcomes
from loomlog.client.loglets.contract import Confirm, Context, Fixed, FollowOptions, RowsFrom
from loomlog.client.loglets.ordered.carrier import OrderedCarrier
from loomlog.client.loglets.ordered.feed import Source
from loomlog.client.loglets.ordered.finder import OrderedFinder
from loomlog.client.loglets.ordered.fixed_append import FixedAppend
from loomlog.client.loglets.ordered.part import OrderedPart
from loomlog.client.subscribe.numbering import Run
from loomlog.client.subscribe.part import Part
from loomlog.client.subscribe.pieces import Referred
from loomlog.errors import LoomError
from loomlog.types import Entry, Glsn, Llsn, StreamId
from loomlog.wire import loomlog_pb2 as pb


class OrderedLoglet:
    """The loglet of protocol `ordered`: the metadata repository commits and knows the tail."""

    joins_neighbours = True
    counts_llsns = True
    finds_fixed = False

    def __init__(self, context: Context) -> None:
        self._context = context
        self._log = context.log
        settings = context.settings
        self._finder = OrderedFinder(
            self._log.name, context.connections, settings.request_timeout_s, context.rng
        )
        self._fixed = FixedAppend(
            self._log, context.connections, settings.append_timeout_s, context.rng
        )

    def carrier(self, outcomes: Outcomes) -> Carrier:
        context = self._context
        return OrderedCarrier(
            context.connections,
            context.producer,
            context.settings.compression,
            outcomes,
            context.rng,
            context.loop,
        )

    async def read(
        self, run: Run, position: Glsn, deadline_s: float
    ) -> Entry | Referred | LoomError:
        return await self._finder.read(run.streams, position)

    def follow(self, options: FollowOptions, log: pb.Log, start: int, stop: int | None) -> Part:
        context = self._context
        source = Source(
            self._log,
            context.connections,
            options.window_bytes,
            context.rng,
            options.numbering,
            options.gaps,
        )
        return OrderedPart(source, log, start, stop)

    async def tail(self, log: pb.Log, *, fresh: bool) -> pb.Log:
        return log if fresh else await self._log.fetch()

    async def locate(self, stream: pb.LogStream, position: Glsn) -> Llsn:
        return await self._finder.locate(stream, position)

    async def find_time(
        self,
        streams: Sequence[pb.LogStream],
        timestamp_us: int,
        first: Glsn,
        last: Glsn,
        rows_from: RowsFrom,
    ) -> Glsn | None:
        return await self._finder.find_time(streams, timestamp_us, first, last, rows_from)

    async def reserve(self, stream: StreamId, tail: Glsn, rows: int) -> Fixed:
        return self._fixed.reserve(stream, tail)

    async def append_fixed(self, fixed: Fixed, batch: bytearray, confirm: Confirm) -> Glsn:
        return await self._fixed.append(fixed, batch, confirm)

    async def close(self) -> None:
        pass
