"""A log as a client holds it: append, read, follow, trim."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Iterable
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, overload

from loomlog import limits
from loomlog.archive.record import ArchiveInfo
from loomlog.client.appender import Appender
from loomlog.client.archived import ArchivedLog, OneSequence, Pieces
from loomlog.client.bare import BarePieces
from loomlog.client.checkpoints import Checkpoints
from loomlog.client.consuming import arrow, entries
from loomlog.client.expanding import Expanded, Single
from loomlog.client.info import LogInfo, log_info
from loomlog.client.landmarks import Landmarks
from loomlog.client.leases import Lease
from loomlog.client.metadata import CachedLog, Metadata
from loomlog.client.moments import retention_s
from loomlog.client.orders import ByLlsn, ByPosition, Order
from loomlog.client.outgoing import arrow_encoder, positions, records_encoder
from loomlog.client.pieces import Piece, Referred
from loomlog.client.protocols import Protocols
from loomlog.client.publications import Publications
from loomlog.client.publishing import Writer
from loomlog.client.reader import Reader
from loomlog.client.staging import Staged, Stager, portions
from loomlog.client.subscription import Subscription
from loomlog.client.time_search import TimeSearch
from loomlog.errors import InvalidArgument, Trimmed
from loomlog.types import Buffer, Entry, Gap, Glsn, Llsn, LogId, Position, StreamId
from loomlog.wire import loomlog_pb2 as pb

if TYPE_CHECKING:
    import pyarrow as pa

_NUMBER_MAX: Final = (1 << 63) - 1
_STARTS: Final = ("earliest", "latest")
_ROW_READ_AHEAD_BYTES: Final = limits.KIB  # one batch comes in any case


class Subscribe(Protocol):
    """Makes a subscription that ends with its client."""

    def __call__(
        self,
        log: Log,
        order: Order,
        start: int | str,
        stop: int | None,
        *,
        read_ahead_bytes: int | None = None,
        gaps: bool = False,
        payloads: bool = True,
    ) -> Subscription: ...


class Log(Landmarks):
    """One log of a cluster. `Cluster.log` and `Cluster.create_log` make it."""

    def __init__(
        self,
        cached: CachedLog,
        metadata: Metadata,
        appender: Appender,
        reader: Reader,
        subscribe: Subscribe,
        archived: ArchivedLog,
        publications: Publications,
        protocols: Protocols,
        times: TimeSearch,
        checkpoints: Checkpoints,
    ) -> None:
        self.name = cached.name
        self.cached = cached
        self.protocols = protocols
        self._metadata = metadata
        self.appender = appender
        self._reader = reader
        self._make_subscription = subscribe
        self._archived = archived
        self._times = times
        self._checkpoints = checkpoints
        self._publications = publications

    def __repr__(self) -> str:
        return f"<Log {self.name!r}>"

    # ---- writing

    def append(
        self, value: Buffer, key: Buffer | None = None, *, stream: StreamId | None = None
    ) -> Awaitable[Position]:
        """Append one entry; await the result for its position.

        Concurrent calls travel together, so do not await one before making the next unless its
        order or outcome matters. Cancelling the wait does not undo the append. With much already
        waiting to be sent, the entry waits for room first."""
        return self.appender.append(value, key, stream)

    async def append_many(
        self,
        values: Iterable[Buffer],
        keys: Iterable[Buffer | None] | None = None,
        *,
        stream: StreamId | None = None,
    ) -> list[Position]:
        """Append all or none, at consecutive positions."""
        values = list(values)
        keys = None if keys is None else list(keys)
        if not values:
            return []
        size = _size(self.name, values) + _size(self.name, filter(None, keys or ()))
        encoder = records_encoder(values, keys)
        first = await self.appender.append_whole(encoder, len(values), size, stream)
        return list(positions(first, len(values)))

    async def append_arrow(
        self, records: pa.RecordBatch, *, stream: StreamId | None = None
    ) -> list[Position]:
        """Append the rows of an Arrow batch with a column `value`, and optionally `key`,
        `timestamp` and `attributes`; all or none, at consecutive positions."""
        if not records.num_rows:
            return []
        first = await self.appender.append_whole(
            arrow_encoder(records), records.num_rows, records.nbytes, stream
        )
        return list(positions(first, records.num_rows))

    async def stage(self, records: pa.RecordBatch | Iterable[pa.RecordBatch]) -> Staged:
        """Store rows, as many as you like, that nobody sees until they are published; columns as
        for `append_arrow`. They keep their order."""
        stager = await self.stager()
        try:
            for portion in portions(records):
                await stager.add(portion)
            return await stager.finish()
        finally:
            await stager.close()

    async def stager(self) -> Stager:
        """What `stage` and its likes write with; not part of the public surface."""
        return await self._publications.stager(self)

    async def writer(self, name: str, lease: Lease | None = None) -> Writer:
        """The writer of this name, which publishes what was staged. Make it before anything is
        staged for it. With a `lease` it publishes only while that is held."""
        return await self._publications.writer(self, name, lease)

    async def published(self) -> None:
        """Part of publishing."""
        await self._publications.published(self)

    async def trim(self, position: Glsn) -> None:
        """Drop everything up to and with `position`, and what was staged for that part only."""
        _check_number("position", position)
        frame = pb.Frame(trim_log=pb.TrimLog(name=self.name, position=position))

        async def cut() -> None:
            await self._metadata.request(frame)

        await self._publications.trim(self, position, cut)

    # ---- reading

    async def read(self, position: Glsn) -> Entry:
        """The entry at `position`, from the archive if it was trimmed; raises Trimmed if it is not
        there, either, NotYetWritten, or NotFound where nothing stands and never will."""
        _check_number("position", position)
        try:
            found = await self._reader.read(position)
            return found if isinstance(found, Entry) else await self._staged_row(found)
        except Trimmed:
            entry = await self._archived.read(position)
            if entry is None:
                raise
            return entry

    @overload
    def subscribe(
        self,
        start: Glsn | str = 1,
        stop: Glsn | None = None,
        gaps: Literal[False] = False,
        *,
        payloads: bool = True,
    ) -> AsyncGenerator[Entry, None]: ...

    @overload
    def subscribe(
        self,
        start: Glsn | str = 1,
        stop: Glsn | None = None,
        *,
        gaps: bool,
        payloads: bool = True,
    ) -> AsyncGenerator[Entry | Gap, None]: ...

    def subscribe(
        self,
        start: Glsn | str = 1,
        stop: Glsn | None = None,
        gaps: bool = False,
        *,
        payloads: bool = True,
    ) -> AsyncGenerator[Any, None]:
        """Every entry from `start` on, in order, to `stop` inclusive or for ever. What was trimmed
        comes from the log's archive, if it has one.

        `start` is a position, "earliest" (the first one kept) or "latest" (what comes from now
        on). With `gaps` positions that have no entry and never will come, too, as `Gap`, those of
        the archive excepted: what was trimmed, what was never written (protocol `ordered` leaves
        none), and what protocol `copyset` has lost. Without, the first raises Trimmed, the last
        DataLoss.

        Without `payloads` entries come with empty values and no keys; a `copyset` log then does not
        even read them, and entries have the time at which they were stored."""
        return entries(self.open_subscription(start, stop, gaps=gaps, payloads=payloads))

    def subscribe_arrow(
        self,
        start: Glsn | str = 1,
        stop: Glsn | None = None,
        *,
        archived: bool = True,
        gaps: bool = False,
        payloads: bool = True,
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Like `subscribe`, as Arrow batches of loomlog.columns.SCHEMA, with `Gap`s between them if
        asked for. Without `archived` only what the log itself has."""
        return arrow(
            self.open_subscription(start, stop, archived=archived, gaps=gaps, payloads=payloads)
        )

    def subscribe_stream(
        self, stream: StreamId, start_llsn: Llsn = 1, stop_llsn: Llsn | None = None
    ) -> AsyncGenerator[Entry, None]:
        """Every entry of one log stream, by its place in that stream."""
        return entries(self.open_stream_subscription(stream, start_llsn, stop_llsn))

    def subscribe_stream_arrow(
        self, stream: StreamId, start_llsn: Llsn = 1, stop_llsn: Llsn | None = None
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Like `subscribe_stream`, as Arrow batches of loomlog.columns.SCHEMA."""
        return arrow(self.open_stream_subscription(stream, start_llsn, stop_llsn))

    def open_subscription(
        self,
        start: Glsn | str,
        stop: Glsn | None,
        *,
        archived: bool = True,
        gaps: bool = False,
        payloads: bool = True,
    ) -> Pieces:
        """What `subscribe` and its likes read from; not part of the public surface."""
        if start not in _STARTS:
            _check_number("start", start)
        if stop is not None and not isinstance(stop, int):
            raise InvalidArgument(f"stop must be a position or None, not {stop!r}")

        def from_log(start: Glsn | str) -> Pieces:
            return self._expanded(self.open_stored(start, stop, gaps=gaps, payloads=payloads))

        if archived:
            pieces: Pieces = OneSequence(self._archived, from_log, start, stop, gaps=gaps)
        else:
            pieces = from_log(start)
        return pieces if payloads else BarePieces(pieces)

    def open_stream_subscription(
        self, stream: StreamId, start_llsn: Llsn, stop_llsn: Llsn | None
    ) -> Pieces:
        """Likewise for one stream."""
        return self._expanded(self.open_stored_stream(stream, start_llsn, stop_llsn))

    # ---- reading, inside: references are expanded where somebody reads rows

    def open_stored(
        self,
        start: Glsn | str,
        stop: Glsn | None,
        *,
        gaps: bool = False,
        payloads: bool = True,
    ) -> Subscription:
        """Batches as they are stored, references among them."""
        return self._make_subscription(
            self, ByPosition(), start, stop, gaps=gaps, payloads=payloads
        )

    def open_stored_stream(
        self,
        stream: StreamId,
        start_llsn: Llsn,
        stop_llsn: Llsn | None,
        read_ahead_bytes: int | None = None,
    ) -> Subscription:
        """Likewise for one stream."""
        _check_number("start_llsn", start_llsn)
        order = ByLlsn(stream)
        return self._make_subscription(
            self, order, start_llsn, stop_llsn, read_ahead_bytes=read_ahead_bytes
        )

    def _expanded(self, subscription: Subscription) -> Expanded:
        def open_staged(staging: str, stream: StreamId, first: Llsn) -> Subscription:
            log = self._publications.staging_log(staging)
            return log.open_stored_stream(stream, first, None)

        return Expanded(subscription, self.name, self.head, open_staged)

    async def _staged_row(self, referred: Referred) -> Entry:
        """The row that a reference names."""

        def open_staged(staging: str, stream: StreamId, first: Llsn) -> Subscription:
            log = self._publications.staging_log(staging)
            return log.open_stored_stream(stream, first, first, _ROW_READ_AHEAD_BYTES)

        expanded = Expanded(Single(referred), self.name, self.head, open_staged)
        try:
            piece = await expanded.next()
            assert isinstance(piece, Piece)
            return piece.entries()[0]
        finally:
            expanded.close()

    # ---- asking

    async def archive(self) -> ArchiveInfo | None:
        """Where its archive is and how far it reaches; None if it has none."""
        return await self._archived.info()

    async def locate(self, position: Glsn) -> dict[StreamId, Llsn]:
        """Where `position` falls in each stream: the LLSN of the stream's first entry at or after
        it, one past its last if there is none. Up to one past the tail; raises Trimmed below the
        head and NotYetWritten above. Where LLSNs are positions (every protocol but `ordered`), it
        may be that of a gap before that entry."""
        _check_number("position", position)
        return await self._reader.locate(position)

    async def describe(self) -> LogInfo:
        return log_info(await self.cached.describe())

    async def set_retention(self, retention: str | float | None) -> LogInfo:
        """How long entries stay from now on: "7d", seconds, or None for ever."""
        request = pb.SetRetention(name=self.name, retention_s=retention_s(retention))
        return log_info((await self._metadata.request(pb.Frame(set_retention=request))).log)

    async def forget_checkpoints(self, log_id: LogId) -> None:
        """Part of deleting the log."""
        await self._checkpoints.forget(log_id)

    async def close(self) -> None:
        """Part of closing its Cluster."""
        await self.appender.close()
        await self.protocols.close()
        await self.cached.close()


def _check_number(name: str, number: object) -> None:
    if not isinstance(number, int) or not 1 <= number <= _NUMBER_MAX:
        raise InvalidArgument(f"{name} must be a number from 1 on, not {number!r}")


def _size(log: str, items: Iterable[Any]) -> int:
    try:
        return sum(map(len, items))
    except TypeError:
        raise InvalidArgument(
            f"append to log {log!r}: values and keys must be bytes; encode them first"
        ) from None
