"""Reading one entry by its position, and finding a position in every stream.

The protocol of the segment that holds the position says how. In an `ordered` one nobody but the
streams knows which of them holds a position, so all are asked, one replica each; the stream that
had the last one is asked first. A "no" counts only when it is certain: a replica that lags is not
believed, and only the metadata repository says what is trimmed or not yet written.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Protocol

from loomlog import batch as batches
from loomlog.client import backoff
from loomlog.client.metadata import CachedLog
from loomlog.client.nodes import Connections
from loomlog.client.orders import ORDERED, ByPosition, Stretch, protocol_of
from loomlog.client.pieces import Referred, decode, refers
from loomlog.errors import (
    Corrupt,
    DataLoss,
    LoomError,
    NotFound,
    NotYetWritten,
    Retryable,
    Timeout,
    Trimmed,
    Unavailable,
    VersionMismatch,
)
from loomlog.types import Entry, Glsn, Llsn, StreamId
from loomlog.wire import loomlog_pb2 as pb

_ELSEWHERE = (Retryable, Corrupt, DataLoss)  # another replica may do better


class Finder(Protocol):
    """Reads from segments of one protocol, which have one stream."""

    async def read(
        self, stream: StreamId, position: Glsn, deadline_s: float
    ) -> Entry | Referred | None:
        """None: the segment has ended before that position. NotFound: nothing will be there."""


class Reader:
    """Reads of one client from one log."""

    def __init__(
        self,
        log: CachedLog,
        connections: Connections,
        request_timeout_s: float,
        rng: random.Random,
        finders: Mapping[str, Finder],
    ) -> None:
        """`finders`: by protocol, of all but `ordered`."""
        self._finders = finders
        self._log = log
        self._connections = connections
        self._timeout_s = request_timeout_s
        self._rng = rng
        self._last_hit: StreamId = 0

    async def read(self, position: Glsn) -> Entry | Referred:
        deadline_s = asyncio.get_running_loop().time() + self._timeout_s
        log = await self._log.get()
        attempts = 0
        while True:
            self._check_trimmed(log, position)  # no segment that is left knows anything of it
            stretch = ByPosition().stretch(log, position)
            if stretch.protocol == ORDERED:
                error = await self._try(stretch.streams, position)
            else:
                error = await self._find(stretch, position, deadline_s)
            if not isinstance(error, LoomError):
                return error
            # Every stream said no, or somebody could not say: who is right?
            log = await self._log.describe()
            self._check_bounds(log, position)
            await self._pause(error, position, attempts, deadline_s)
            attempts += 1

    async def _try(
        self, streams: list[pb.LogStream], position: Glsn
    ) -> Entry | Referred | LoomError:
        """The entry, or why it is worth to look again."""
        try:
            return await self._ask_all(streams, position)
        except (NotFound, *_ELSEWHERE) as error:
            return error

    async def _find(
        self, stretch: Stretch, position: Glsn, deadline_s: float
    ) -> Entry | Referred | LoomError:
        """The same, where a segment has one stream that knows."""
        finder = self._finders.get(stretch.protocol)
        if finder is None:
            raise VersionMismatch(
                f"position {position} of log {self._log.name!r} is kept by protocol "
                f"{stretch.protocol!r}, which this client does not know; upgrade it"
            )
        found: Entry | Referred | None = None
        for stream in stretch.streams:
            found = await finder.read(stream.log_stream_id, position, deadline_s)
        return found or Unavailable(f"position {position} is in another segment by now")

    async def locate(self, position: Glsn) -> dict[StreamId, Llsn]:
        """Where `position` falls in each stream: the LLSN of the first entry at or after it."""
        deadline_s = asyncio.get_running_loop().time() + self._timeout_s
        attempts = 0
        while True:
            # A stream that is not in it yet has nothing at or below the tail.
            log = await self._log.describe()
            self._check_bounds(log, position, beyond=1)
            answers = await asyncio.gather(
                *(self._locate_in(log, stream, position) for stream in log.streams),
                return_exceptions=True,
            )
            failures = [answer for answer in answers if isinstance(answer, BaseException)]
            if not failures:
                streams = [stream.log_stream_id for stream in log.streams]
                return {s: a for s, a in zip(streams, answers, strict=True) if isinstance(a, int)}
            error = failures[0]
            if not isinstance(error, (NotFound, *_ELSEWHERE)):
                raise error
            await self._pause(error, position, attempts, deadline_s)
            attempts += 1

    async def _locate_in(self, log: pb.Log, stream: pb.LogStream, position: Glsn) -> Llsn:
        """Only streams of the segment that holds the position need to be asked."""
        counted = protocol_of(stream) == ORDERED  # else LLSNs are positions
        for segment in log.segments:
            if segment.loglet_id != stream.loglet_id:
                continue
            if position <= segment.start:
                return 1 if counted else segment.start
            if segment.HasField("end") and position > segment.end:
                return stream.entries + 1 if counted else segment.end + 1
        if not counted:
            return position
        return await self._ask_place(stream, position)

    async def _ask_place(self, stream: pb.LogStream, position: Glsn) -> Llsn:
        replicas = list(stream.replicas)
        self._rng.shuffle(replicas)
        request = pb.Locate(log_stream_id=stream.log_stream_id, glsn=position)
        error: LoomError = Unavailable(f"stream {stream.log_stream_id} has no replica")
        for replica in replicas:
            try:
                connection = await self._connections.connect(replica.address)
                answer, _ = await connection.request(
                    pb.Frame(locate=request), timeout_s=self._timeout_s
                )
                return int(answer.located.llsn)
            except (NotFound, *_ELSEWHERE) as doubt:  # NotFound: the replica just left that node
                error = doubt
        raise error

    async def _ask_all(self, streams: list[pb.LogStream], position: Glsn) -> Entry | Referred:
        first = [s for s in streams if s.log_stream_id == self._last_hit]
        others = [s for s in streams if s.log_stream_id != self._last_hit]
        doubt: LoomError | None = None
        for some in (first, others):
            if not some:
                continue
            found, error = await self._ask_streams(some, position)
            if found is not None:
                return found
            doubt = doubt or error
        raise doubt or NotFound(f"no stream of log {self._log.name!r} holds position {position}")

    async def _ask_streams(
        self, streams: Sequence[pb.LogStream], position: Glsn
    ) -> tuple[Entry | Referred | None, LoomError | None]:
        """The entry if one of them has it, or why that is not certain."""
        answers = await asyncio.gather(
            *(self._ask_stream(stream, position) for stream in streams), return_exceptions=True
        )
        doubt: LoomError | None = None
        for answer in answers:
            if isinstance(answer, Entry | Referred):
                self._last_hit = _stream_of(answer)
                return answer, None
            if isinstance(answer, _ELSEWHERE):
                doubt = answer
            elif not isinstance(answer, NotFound):
                raise answer
        return None, doubt

    async def _ask_stream(self, stream: pb.LogStream, position: Glsn) -> Entry | Referred:
        """One replica after the other, from a random one on, until one is certain."""
        replicas = list(stream.replicas)
        self._rng.shuffle(replicas)
        error: LoomError = Unavailable(f"stream {stream.log_stream_id} has no replica")
        for replica in replicas:
            try:
                return await self._ask(replica.address, stream.log_stream_id, position)
            except _ELSEWHERE as doubt:
                error = doubt
        raise error

    async def _ask(self, address: str, stream: StreamId, position: Glsn) -> Entry | Referred:
        connection = await self._connections.connect(address)
        frame = pb.Frame(read=pb.Read(log_stream_id=stream, glsn=position))
        _, payload = await connection.request(frame, timeout_s=self._timeout_s)
        header = batches.read_header(payload)
        index = position - header.first_position
        if not 0 <= index < header.count:
            raise Corrupt(f"stream {stream} at {address} answered another than {position}")
        piece = decode(payload, refers(header), index, 1)
        return piece if isinstance(piece, Referred) else piece.batch.entry(index)

    def _check_trimmed(self, log: pb.Log, position: Glsn) -> None:
        if position < log.head:
            raise Trimmed(
                f"position {position} of log {self._log.name!r} was trimmed; "
                f"the first one kept is {log.head}"
            )

    def _check_bounds(self, log: pb.Log, position: Glsn, beyond: int = 0) -> None:
        self._check_trimmed(log, position)
        if position > log.tail + beyond:
            raise NotYetWritten(
                f"position {position} of log {self._log.name!r} is not written yet; "
                f"the last one is {log.tail}"
            )

    async def _pause(
        self, error: LoomError, position: Glsn, attempts: int, deadline_s: float
    ) -> None:
        wait_s = backoff.delay_s(attempts, self._rng)
        if asyncio.get_running_loop().time() + wait_s < deadline_s:
            await asyncio.sleep(wait_s)
            return
        kind = type(error) if isinstance(error, Corrupt | DataLoss | Unavailable) else Timeout
        raise kind(
            f"position {position} of log {self._log.name!r} could not be read within "
            f"{self._timeout_s:g} s, last: {error}; try again, and see `loom status`"
        ) from error


def _stream_of(found: Entry | Referred) -> StreamId:
    return found.stream if isinstance(found, Entry) else found.header.stream_id
