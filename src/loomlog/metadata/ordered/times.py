"""Find where a time begins in an `ordered` segment, by asking one replica of each stream."""

from __future__ import annotations

import asyncio
from typing import Final

from loomlog.core.segments import Segment
from loomlog.errors import LoomError, NotFound, Unavailable
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.catalog.records import LogRecord, StreamRecord
from loomlog.metadata.nodes.connected_nodes import ConnectedNodes
from loomlog.metadata.ordered.committer import Committer
from loomlog.types import Glsn
from loomlog.wire import loomlog_pb2 as pb

ANSWER_TIMEOUT_S: Final = 5.0  # of a node that looks into its index, perhaps from a busy disk


class OrderedTimes:
    """Asks one replica of each stream where a time begins."""

    def __init__(self, catalog: Catalog, committer: Committer, members: ConnectedNodes) -> None:
        self._catalog = catalog
        self._committer = committer
        self._members = members

    async def find_time(
        self, log: LogRecord, segment: Segment, timestamp_us: int, first: Glsn
    ) -> Glsn:
        last = self._high_watermark(log) if segment.end is None else segment.end
        streams = self._streams(log, segment)
        found = await asyncio.gather(
            *(self._find_in(stream, timestamp_us, first, last) for stream in streams)
        )
        return min((last + 1, *(position for position in found if position)))

    def _high_watermark(self, log: LogRecord) -> Glsn:
        rounds = self._committer.logs.get(log.log_id)
        if rounds is None:
            raise NotFound(f"log {log.name!r} was deleted")
        self._committer.check_whole(log.log_id, log.name)
        return rounds.high_watermark

    def _streams(self, log: LogRecord, segment: Segment) -> list[StreamRecord]:
        """Return the streams of a segment that a trim has not removed meanwhile."""
        found = (self._catalog.streams.get(stream_id) for stream_id in log.streams)
        return [stream for stream in found if stream and stream.loglet == segment.loglet]

    async def _find_in(
        self, stream: StreamRecord, timestamp_us: int, first: Glsn, last: Glsn
    ) -> Glsn:
        """Return where a time begins in a stream; 0 if all entries up to `last` are older."""
        question = pb.FindTime(
            log_stream_id=stream.stream_id, timestamp_us=timestamp_us, first_glsn=first
        )
        doubt: LoomError = Unavailable(f"stream {stream.stream_id} has no replica")
        for node in stream.replicas:
            try:
                answer = await self._members.request(
                    node, pb.Frame(find_time=question), ANSWER_TIMEOUT_S
                )
            except LoomError as error:
                doubt = error
                continue
            found = answer.found_time
            if found.position or found.high_watermark >= last:
                return int(found.position)
            doubt = Unavailable(f"node {node} does not know all of stream {stream.stream_id} yet")
        raise doubt
