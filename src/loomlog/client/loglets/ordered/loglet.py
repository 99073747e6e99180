"""A client's access to the `ordered` segments of one log."""

from __future__ import annotations

from collections.abc import Sequence

from loomlog.client.append.carriers import Outcomes
from loomlog.client.cached_log import CachedLog
from loomlog.client.context import Client
from loomlog.client.loglets.contract import Confirm, Fixed, FollowOptions, Loglet
from loomlog.client.loglets.ordered.carrier import OrderedCarrier
from loomlog.client.loglets.ordered.feed import Source
from loomlog.client.loglets.ordered.finder import OrderedFinder
from loomlog.client.loglets.ordered.fixed_append import append_fixed
from loomlog.client.loglets.ordered.part import OrderedPart
from loomlog.client.loglets.times import TimeQuery
from loomlog.client.subscribe.numbering import Run
from loomlog.client.subscribe.pieces import Single
from loomlog.errors import LoomError
from loomlog.protocol_names import ORDERED
from loomlog.types import Glsn, Llsn, StreamId
from loomlog.wire import loomlog_pb2 as pb


class OrderedLoglet(Loglet):
    """The loglet of protocol `ordered`: the metadata repository commits and knows the tail."""

    joins_neighbours = True
    counts_llsns = True

    def __init__(self, log: CachedLog, client: Client) -> None:
        super().__init__(log, client)
        self._finder = OrderedFinder(log.name, client)

    def carrier(self, outcomes: Outcomes) -> OrderedCarrier:
        return OrderedCarrier(self._client, outcomes)

    async def read(self, run: Run, position: Glsn, deadline_s: float) -> Single | LoomError:
        return await self._finder.read(run.streams, position)

    def follow(
        self, options: FollowOptions, log: pb.Log, start: int, stop: int | None
    ) -> OrderedPart:
        source = Source(self._log, self._client.connections, self._client.rng, options)
        return OrderedPart(source, log, start, stop)

    async def tail(self, log: pb.Log, *, fresh: bool) -> pb.Log:
        found = log if fresh else await self._log.fetch()
        if found.tail_unknown:
            found.tail, found.tail_unknown = (await self._log.bounds()).tail, False
        return found

    async def locate(self, stream: pb.LogStream, position: Glsn) -> Llsn:
        return await self._finder.locate(stream, position)

    async def find_time(self, streams: Sequence[pb.LogStream], query: TimeQuery) -> Glsn | None:
        return await self._finder.find_time(streams, query)

    async def reserve(self, stream: StreamId, tail: Glsn, rows: int) -> Fixed:
        return Fixed(ORDERED, stream, tail)

    async def append_fixed(self, fixed: Fixed, batch: bytearray, confirm: Confirm) -> Glsn:
        return await append_fixed(self._log, self._client, fixed, batch, confirm)
