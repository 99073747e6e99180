"""Where a time begins in a log: the first position whose entry has that timestamp or a later one.

An `ordered` segment knows it by the headers of its batches, exactly, in whatever order timestamps
are. A segment of another protocol is searched by halves, batch by batch, which finds the place as
far as timestamps grow with positions. The place within a batch is looked up in its rows, here.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from loomlog.client import backoff
from loomlog.client.metadata import CachedLog
from loomlog.client.nodes import Connections
from loomlog.client.orders import ORDERED
from loomlog.errors import Corrupt, DataLoss, LoomError, NotFound, Retryable, Trimmed, Unavailable
from loomlog.types import Glsn
from loomlog.wire import loomlog_pb2 as pb

if TYPE_CHECKING:
    import pyarrow as pa

RowsFrom: TypeAlias = Callable[[Glsn, Glsn], Awaitable["pa.RecordBatch | None"]]
"""The next rows of the log from a position on, none above another; None if there are none."""

_ELSEWHERE: Final = (Retryable, Corrupt, DataLoss, NotFound)  # another replica may do better


class TimeSearch:
    """Those of one client in one log."""

    def __init__(
        self,
        log: CachedLog,
        connections: Connections,
        request_timeout_s: float,
        rng: random.Random,
    ) -> None:
        self._log = log
        self._connections = connections
        self._timeout_s = request_timeout_s
        self._rng = rng

    async def find(self, timestamp_us: int, rows_from: RowsFrom) -> Glsn:
        """One past the tail if all entries are earlier."""
        deadline_s = asyncio.get_running_loop().time() + self._timeout_s
        attempts = 0
        while True:
            log = await self._log.describe()
            try:
                return await self._find(log, timestamp_us, rows_from)
            except (Trimmed, *_ELSEWHERE) as error:  # it was trimmed meanwhile, or nobody can say
                wait_s = backoff.delay_s(attempts, self._rng)
                if asyncio.get_running_loop().time() + wait_s > deadline_s:
                    raise Unavailable(
                        f"log {self._log.name!r} could not be searched within "
                        f"{self._timeout_s:g} s, last: {error}; try again, and see `loom status`"
                    ) from error
            await asyncio.sleep(wait_s)
            attempts += 1

    async def _find(self, log: pb.Log, timestamp_us: int, rows_from: RowsFrom) -> Glsn:
        for segment in log.segments:
            first = max(segment.start, log.head)
            last = segment.end if segment.HasField("end") else log.tail
            if first > last:
                continue
            search = self._by_headers if segment.protocol == ORDERED else self._by_halves
            streams = [s for s in log.streams if s.loglet_id == segment.loglet_id]
            found = await search(streams, timestamp_us, first, last, rows_from)
            if found is not None:
                return found
        return log.tail + 1

    # ---- ordered

    async def _by_headers(
        self,
        streams: list[pb.LogStream],
        timestamp_us: int,
        first: Glsn,
        last: Glsn,
        rows_from: RowsFrom,
    ) -> Glsn | None:
        while first <= last:
            asked = (self._ask_stream(stream, timestamp_us, first, last) for stream in streams)
            batches = [position for position in await asyncio.gather(*asked) if position]
            if not batches or min(batches) > last:
                return None
            rows = await rows_from(min(batches), last)
            if rows is None:
                return None
            found = _first_at(rows, timestamp_us)
            if found is not None:
                return found
            first = _last_position(rows) + 1  # the header spoke of rows before `first`
        return None

    async def _ask_stream(
        self, stream: pb.LogStream, timestamp_us: int, first: Glsn, last: Glsn
    ) -> Glsn:
        """Where its first batch begins that has such an entry; 0 if none up to `last` has."""
        replicas = list(stream.replicas)
        self._rng.shuffle(replicas)
        doubt: LoomError = Unavailable(f"stream {stream.log_stream_id} has no replica")
        question = pb.FindTime(
            log_stream_id=stream.log_stream_id, timestamp_us=timestamp_us, first_glsn=first
        )
        for replica in replicas:
            try:
                connection = await self._connections.connect(replica.address)
                answer, _ = await connection.request(
                    pb.Frame(find_time=question), timeout_s=self._timeout_s
                )
            except _ELSEWHERE as error:
                doubt = error
                continue
            found = answer.found_time
            if found.position or found.high_watermark >= last:
                return int(found.position)
            doubt = Unavailable(f"{replica.address} does not know all positions up to {last} yet")
        raise doubt

    # ---- others

    async def _by_halves(
        self,
        streams: list[pb.LogStream],
        timestamp_us: int,
        first: Glsn,
        last: Glsn,
        rows_from: RowsFrom,
    ) -> Glsn | None:
        """Invariant: all before `first` is earlier, and nothing behind `last` is to be found."""
        found: Glsn | None = None
        while first <= last:
            middle = (first + last) // 2
            rows = await rows_from(middle, last)
            here = None if rows is None else _first_at(rows, timestamp_us)
            if here is not None:
                found = here
            if rows is None or here is not None:
                last = middle - 1
            else:
                first = _last_position(rows) + 1
        return found


def _first_at(rows: pa.RecordBatch, timestamp_us: int) -> Glsn | None:
    """The position of the first row of that time or later."""
    import pyarrow as pa
    import pyarrow.compute as pc

    is_there = pc.greater_equal(rows.column("timestamp").cast(pa.int64()), timestamp_us)
    index = pc.index(is_there, pa.scalar(True)).as_py()
    return None if index < 0 else int(rows.column("position")[index].as_py())


def _last_position(rows: pa.RecordBatch) -> Glsn:
    return int(rows.column("position")[rows.num_rows - 1].as_py())
