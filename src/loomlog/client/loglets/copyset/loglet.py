"""A client's access to the `copyset` segments of one log."""

from __future__ import annotations

from collections.abc import Sequence

from loomlog.client.append.carriers import Outcomes
from loomlog.client.cached_log import CachedLog
from loomlog.client.context import Client
from loomlog.client.loglets.contract import Confirm, Fixed, FollowOptions, Loglet
from loomlog.client.loglets.copyset.acknowledged import Acknowledgements
from loomlog.client.loglets.copyset.carrier import CopysetCarrier
from loomlog.client.loglets.copyset.finder import CopysetFinder, CopysetTail
from loomlog.client.loglets.copyset.fixed_append import FixedAppend
from loomlog.client.loglets.copyset.part import CopysetPart
from loomlog.client.loglets.copyset.segments import Segments, Sequencers
from loomlog.client.subscribe.numbering import Run
from loomlog.client.subscribe.pieces import Single
from loomlog.core.copyset.record import epoch_of, make
from loomlog.errors import LoomError
from loomlog.types import Glsn, StreamId
from loomlog.wire import loomlog_pb2 as pb


class CopysetLoglet(Loglet):
    """The loglet of protocol `copyset`: a sequencer takes appends; a segment has one stream."""

    @staticmethod
    def gap_ends(first: Glsn, last: Glsn) -> Sequence[Glsn]:
        return range(make(epoch_of(first) + 1, 0), last + 1, make(1, 0))  # the epochs' beginnings

    def __init__(self, log: CachedLog, client: Client) -> None:
        super().__init__(log, client)
        self.segments = Segments(log, client.connections)
        self._sequencers = Sequencers(self.segments)
        self.tails = CopysetTail(self.segments, self._sequencers, client)
        self._finder = CopysetFinder(self.segments, self.tails)
        self._acknowledgements = Acknowledgements(self.segments, client)
        self._fixed = FixedAppend(self.segments, self._sequencers, self._acknowledgements, client)

    def carrier(self, outcomes: Outcomes) -> CopysetCarrier:
        return CopysetCarrier(
            self.segments, self._sequencers, self._acknowledgements, self._client, outcomes
        )

    async def read(self, run: Run, position: Glsn, deadline_s: float) -> Single | LoomError:
        [stream] = run.streams
        return await self._finder.read(stream.log_stream_id, position, deadline_s)

    def follow(
        self, options: FollowOptions, log: pb.Log, start: int, stop: int | None
    ) -> CopysetPart:
        return CopysetPart(self.segments, options, log, start, stop)

    async def tail(self, log: pb.Log, *, fresh: bool) -> pb.Log:
        return await self.tails.complete(log)

    async def reserve(self, stream: StreamId, tail: Glsn, rows: int) -> Fixed:
        return await self._fixed.reserve(stream, tail)

    async def append_fixed(self, fixed: Fixed, batch: bytearray, confirm: Confirm) -> Glsn:
        return await self._fixed.append(fixed, batch, confirm)

    async def close(self) -> None:
        await self._acknowledgements.close()
