"""Finds positions and times in `ordered` streams.

Only the streams know which of them holds a position, so all are asked; the one that had the last
position read is asked first. A negative answer of a replica that lags does not count, and only the
metadata repository decides what is trimmed or not yet written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from loomlog import batch as batches
from loomlog.client.context import Client
from loomlog.client.loglets.times import (
    TimeQuery,
    certain,
    find_by_halves,
    first_at,
    last_position,
)
from loomlog.client.subscribe.pieces import Piece, Referred, Single, decode_one
from loomlog.errors import Corrupt, DataLoss, LoomError, NotFound, Retryable, Unavailable
from loomlog.types import Entry, Glsn, Llsn, StreamId
from loomlog.wire import loomlog_pb2 as pb

_DAMAGE: Final = (Corrupt, DataLoss)
_ELSEWHERE: Final = (Retryable, *_DAMAGE)  # try another replica
_GONE: Final = (*_ELSEWHERE, NotFound)  # NotFound: the replica has just left that node


class OrderedFinder:
    """Looks up positions and times in the `ordered` streams of one log."""

    def __init__(self, log: str, client: Client) -> None:
        self._log = log
        self._connections = client.connections
        self._timeout_s = client.settings.request_timeout_s
        self._rng = client.rng
        self._last_hit: StreamId = 0

    # ---- an entry

    async def read(self, streams: Sequence[pb.LogStream], position: Glsn) -> Single | LoomError:
        """Return the entry, or an error if a retry may succeed. It is DataLoss only if no replica
        of a stream has the entry whole."""
        first = [s for s in streams if s.log_stream_id == self._last_hit]
        others = [s for s in streams if s.log_stream_id != self._last_hit]
        doubts: list[LoomError] = []
        for some in filter(None, (first, others)):
            found, errors = await self._ask_streams(some, position)
            if found is not None:
                return found
            doubts += errors
        if doubts:
            return _least_certain(doubts)
        if any(_is_lost(stream, position) for stream in streams):
            return DataLoss("it was acknowledged, and all its replicas are gone")
        return NotFound(f"no stream of log {self._log!r} holds position {position}")

    async def _ask_streams(
        self, streams: Sequence[pb.LogStream], position: Glsn
    ) -> tuple[Single | None, list[LoomError]]:
        """Return the entry if a stream has it, and the errors of streams that may have it."""
        answers = await asyncio.gather(
            *(self._ask_stream(stream, position) for stream in streams), return_exceptions=True
        )
        doubts: list[LoomError] = []
        for answer in answers:
            if isinstance(answer, Entry | Referred | Piece):
                self._last_hit = _stream_of(answer)
                return answer, []
            if isinstance(answer, _ELSEWHERE):
                doubts.append(answer)
            elif not isinstance(answer, NotFound):
                raise answer
        return None, doubts

    async def _ask_stream(self, stream: pb.LogStream, position: Glsn) -> Single:
        """Ask one replica after the other until one gives a definite answer."""
        errors: list[LoomError] = []
        for address in self._addresses(stream):
            try:
                return await self._ask(address, stream.log_stream_id, position)
            except _ELSEWHERE as error:
                errors.append(error)
        if _is_lost(stream, position):
            raise NotFound(
                f"stream {stream.log_stream_id} has lost entries and does not reach that position"
            )
        raise _least_certain(errors or [_no_replica(stream)])

    async def _ask(self, address: str, stream: StreamId, position: Glsn) -> Single:
        connection = await self._connections.connect(address)
        frame = pb.Frame(read=pb.Read(log_stream_id=stream, glsn=position))
        _, payload = await connection.request(frame, timeout_s=self._timeout_s)
        header = batches.read_header(payload)
        index = position - header.first_position
        if not 0 <= index < header.count:
            raise Corrupt(f"stream {stream} at {address} sent another position than {position}")
        return decode_one(payload, header, index)

    # ---- a position in a stream

    async def locate(self, stream: pb.LogStream, position: Glsn) -> Llsn:
        if _is_lost(stream, position):
            raise DataLoss(f"stream {stream.log_stream_id} lost entries before that position")
        request = pb.Locate(log_stream_id=stream.log_stream_id, glsn=position)
        errors: list[LoomError] = []
        for address in self._addresses(stream):
            try:
                return int((await self._request(address, pb.Frame(locate=request))).located.llsn)
            except _GONE as error:
                errors.append(error)
        raise _least_certain(errors or [_no_replica(stream)])

    # ---- a time

    async def find_time(self, streams: Sequence[pb.LogStream], query: TimeQuery) -> Glsn | None:
        """Search the headers of batches, then their rows: exact for any order of timestamps."""
        timestamp_us, first, last, rows_from = query
        if any(stream.lost_from for stream in streams):
            return await find_by_halves(query)  # the entries of a lost stream are nowhere
        while first <= last:
            asked = (self._ask_time(stream, timestamp_us, first, last) for stream in streams)
            begins = [position for position in await asyncio.gather(*asked) if position]
            if not begins or min(begins) > last:
                return None
            following = await rows_from(min(begins), last)
            found = certain(first_at(following, timestamp_us))
            if found is not None or following.rows is None:
                return found
            first = last_position(following.rows) + 1  # the header covers rows before `first`
        return None

    async def _ask_time(
        self, stream: pb.LogStream, timestamp_us: int, first: Glsn, last: Glsn
    ) -> Glsn:
        """Return the position of the stream's first batch with such an entry; 0 if there is none
        up to `last`."""
        request = pb.FindTime(
            log_stream_id=stream.log_stream_id, timestamp_us=timestamp_us, first_glsn=first
        )
        errors: list[LoomError] = []
        for address in self._addresses(stream):
            try:
                found = (await self._request(address, pb.Frame(find_time=request))).found_time
            except _GONE as error:
                errors.append(error)
                continue
            if found.position or found.high_watermark >= last:
                return int(found.position)
            errors.append(Unavailable(f"{address} does not know all positions up to {last} yet"))
        raise _least_certain(errors or [_no_replica(stream)])

    # ---- replicas

    def _addresses(self, stream: pb.LogStream) -> list[str]:
        addresses = [replica.address for replica in stream.replicas]
        self._rng.shuffle(addresses)
        return addresses

    async def _request(self, address: str, frame: pb.Frame) -> pb.Frame:
        connection = await self._connections.connect(address)
        answer: pb.Frame
        answer, _ = await connection.request(frame, timeout_s=self._timeout_s)
        return answer


def _is_lost(stream: pb.LogStream, position: Glsn) -> bool:
    """Return whether the stream has lost the entry at this position, if it had it."""
    return bool(stream.lost_from) and position > stream.lost_after


def _no_replica(stream: pb.LogStream) -> LoomError:
    return Unavailable(f"stream {stream.log_stream_id} has no replica")


def _least_certain(errors: Sequence[LoomError]) -> LoomError:
    """Return a temporary error, if there is one, because that replica may have entries that others
    lost. Entries that are damaged on all replicas are lost."""
    error = next((each for each in errors if not isinstance(each, _DAMAGE)), errors[-1])
    return DataLoss(f"no replica has it whole: {error}") if isinstance(error, Corrupt) else error


def _stream_of(found: Single) -> StreamId:
    return found.stream if isinstance(found, Entry) else found.header.stream_id
