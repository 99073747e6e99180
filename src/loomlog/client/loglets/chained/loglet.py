"""A client's access to the `chained` segments of one log."""

from __future__ import annotations

from loomlog.client.append.carriers import Outcomes
from loomlog.client.cached_log import CachedLog
from loomlog.client.context import Client
from loomlog.client.loglets.chained.carrier import ChainedCarrier
from loomlog.client.loglets.chained.chains import Chains
from loomlog.client.loglets.chained.finder import ChainedFinder, ChainedTail
from loomlog.client.loglets.chained.fixed_append import append_fixed, reserve, settle
from loomlog.client.loglets.chained.part import ChainedPart
from loomlog.client.loglets.contract import Confirm, Fixed, FollowOptions, Loglet
from loomlog.client.subscribe.numbering import Run
from loomlog.client.subscribe.pieces import Single
from loomlog.errors import LoomError
from loomlog.types import Glsn, StreamId
from loomlog.wire import loomlog_pb2 as pb


class ChainedLoglet(Loglet):
    """The loglet of protocol `chained`: clients drive the chains; a segment has one stream."""

    finds_fixed = True
    settles = True

    def __init__(self, log: CachedLog, client: Client) -> None:
        super().__init__(log, client)
        self.chains = Chains(log, client)
        self._hole_timeout_s = client.settings.hole_timeout_s
        self._finder = ChainedFinder(self.chains, log.name, self._hole_timeout_s)
        self._tail = ChainedTail(log, self.chains, client.settings.request_timeout_s)

    def carrier(self, outcomes: Outcomes) -> ChainedCarrier:
        return ChainedCarrier(self.chains, self._client, outcomes)

    async def read(self, run: Run, position: Glsn, deadline_s: float) -> Single | LoomError:
        [stream] = run.streams
        return await self._finder.read(stream.log_stream_id, position, deadline_s)

    def follow(
        self, options: FollowOptions, log: pb.Log, start: int, stop: int | None
    ) -> ChainedPart:
        return ChainedPart(self.chains, options, self._hole_timeout_s, log, start, stop)

    async def tail(self, log: pb.Log, *, fresh: bool) -> pb.Log:
        return await self._tail.complete()

    async def reserve(self, stream: StreamId, tail: Glsn, rows: int) -> Fixed:
        return await reserve(self.chains, stream, rows)

    async def append_fixed(self, fixed: Fixed, batch: bytearray, confirm: Confirm) -> Glsn:
        return await append_fixed(self.chains, fixed, batch)

    async def settle(self, fixed: Fixed, producer_id: int, patience_s: float) -> bool:
        deadline_s = patience_s + self._client.settings.request_timeout_s
        return await settle(self.chains, fixed, producer_id, patience_s, deadline_s)

    async def close(self) -> None:
        await self.chains.close()
