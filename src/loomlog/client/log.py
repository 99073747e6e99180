"""The public class Log: append, read, subscribe, publish, trim."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from loomlog import limits
from loomlog.archive.record import ArchiveInfo
from loomlog.client.append.appender import positions
from loomlog.client.append.options import AppendArguments, AppendOptions
from loomlog.client.append.pipeline import Pipeline
from loomlog.client.arguments import check_number, check_tail, retention_s, timestamp_us
from loomlog.client.arguments import retention_bytes as bytes_kept
from loomlog.client.groups.group import Group, GroupInfo, GroupOptions
from loomlog.client.kv.checkpoints import Checkpoint, CheckpointInfo
from loomlog.client.kv.leases import Lease
from loomlog.client.last_entries import find_last
from loomlog.client.log_parts import LogParts
from loomlog.client.publish.publications import Publications
from loomlog.client.publish.stager import Staged, Stager, portions
from loomlog.client.publish.writer import Writer
from loomlog.client.queues.queue import Queue, QueueInfo, QueueOptions
from loomlog.client.subscribe.pieces import arrow, entries
from loomlog.errors import InvalidArgument
from loomlog.types import Buffer, Entry, Gap, Glsn, Llsn, Position, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.info import LogInfo, log_info

if TYPE_CHECKING:
    import pyarrow as pa


class Log:
    """One log of a cluster, as returned by `Cluster.log` and `Cluster.create_log`."""

    def __init__(self, parts: LogParts, publications: Publications) -> None:
        self.name = parts.name
        self._parts = parts
        self._append = parts.appender.append
        self._publications = publications

    def __repr__(self) -> str:
        return f"<Log {self.name!r}>"

    # ---- writing

    def append(
        self, value: Buffer, key: Buffer | None = None, **arguments: Unpack[AppendArguments]
    ) -> Awaitable[Position]:
        """Append one entry and return an awaitable of its position.

        Concurrent appends are sent in batches, so for throughput start several before awaiting
        the first, unless their order matters. Cancelling the wait does not undo the append. When
        the append buffer is full, the entry first waits for room. `stream` chooses a log stream.
        `headers` are small values beside the value; `timestamp` (seconds since 1970, or a datetime)
        replaces the present time.

        With `expected_tail`, raise Conflict and append nothing if any entry stands behind that
        position, such as an earlier result of `tail`. The append is given up after `timeout_s`, by
        default that of `connect`. `streams` are those that may take the entry. With `fail_fast`, it
        is tried once, and what refuses it is raised. An append with one of these four is a batch of
        its own."""
        if not arguments:  # defaults of arguments by name would take longer than all of this
            return self._append(value, key, None)
        return self._append_with(value, key, **arguments)

    def _append_with(
        self,
        value: Buffer,
        key: Buffer | None,
        *,
        stream: StreamId | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp: datetime | float | None = None,
        expected_tail: Glsn | None = None,
        timeout_s: float | None = None,
        streams: Iterable[StreamId] | None = None,
        fail_fast: bool = False,
    ) -> Awaitable[Position]:
        if not (expected_tail is None and timeout_s is None and streams is None and not fail_fast):
            append_many = partial(
                self.append_many,
                [value],
                None if key is None else [key],
                stream=stream,
                headers=None if headers is None else [headers],
                timestamps=None if timestamp is None else [timestamp],
                expected_tail=expected_tail,
                timeout_s=timeout_s,
                streams=streams,
                fail_fast=fail_fast,
            )
            return asyncio.ensure_future(_first(append_many))
        if stream is not None:
            check_number("stream", stream)
        if headers is None and timestamp is None:
            return self._append(value, key, stream)
        return self._parts.appender.append_special(
            value,
            key,
            stream,
            encoded_headers(headers),
            None if timestamp is None else timestamp_us(timestamp),
        )

    async def append_many(
        self,
        values: Iterable[Buffer],
        keys: Iterable[Buffer | None] | None = None,
        *,
        stream: StreamId | None = None,
        headers: Iterable[Mapping[str, bytes] | None] | None = None,
        timestamps: Iterable[datetime | float] | None = None,
        expected_tail: Glsn | None = None,
        timeout_s: float | None = None,
        streams: Iterable[StreamId] | None = None,
        fail_fast: bool = False,
    ) -> list[Position]:
        """Append several entries atomically, at consecutive positions. `keys`, `headers` and
        `timestamps` are as many as `values`; the other arguments are those of `append`."""
        options = AppendOptions.of(stream, streams, timeout_s, expected_tail, fail_fast=fail_fast)
        if not isinstance(values, Iterable):
            raise InvalidArgument(f"values must be a list of bytes, not {values!r:.100}")
        for name, some in (("keys", keys), ("headers", headers), ("timestamps", timestamps)):
            if some is not None and not isinstance(some, Iterable):
                raise InvalidArgument(f"{name} must be a list, one per value, not {some!r:.100}")
        values = list(values)
        keys = None if keys is None else list(keys)
        if not values:
            return []
        encoded = None if headers is None else [encoded_headers(each) for each in headers]
        times = None if timestamps is None else [*map(timestamp_us, timestamps)]
        for name, given in (("keys", keys), ("headers", encoded), ("timestamps", times)):
            if given is not None and len(given) != len(values):
                raise InvalidArgument(
                    f"{name}: {len(given)} given for {len(values)} values; give one for each"
                )
        size = sum(_size(self.name, filter(None, some or ())) for some in (values, keys, encoded))
        encoder = partial(_encode, values, keys, encoded, times)
        first = await self._append_whole(encoder, len(values), size, options)
        return list(positions(first, len(values)))

    async def _append_whole(
        self, encoder: Callable[..., Buffer], count: int, size: int, options: AppendOptions
    ) -> Position:
        if (expected_tail := options.expected_tail) is None:
            return await self._parts.appender.append_whole(encoder, count, size, options)
        return await self._parts.conditional.append(encoder, count, size, options, expected_tail)

    async def append_arrow(
        self,
        records: pa.RecordBatch,
        *,
        stream: StreamId | None = None,
        expected_tail: Glsn | None = None,
        timeout_s: float | None = None,
        streams: Iterable[StreamId] | None = None,
        fail_fast: bool = False,
    ) -> list[Position]:
        """Append the rows of an Arrow batch atomically, at consecutive positions. The batch has a
        column `value`, and optionally `key`, `timestamp` and `headers`. The other arguments are
        those of `append`."""
        options = AppendOptions.of(stream, streams, timeout_s, expected_tail, fail_fast=fail_fast)
        if not hasattr(records, "num_rows") or not hasattr(records, "schema"):
            raise InvalidArgument(f"records must be a pyarrow.RecordBatch, not {records!r:.100}")
        if not records.num_rows:
            return []
        encoder = partial(_encode_arrow, records)
        first = await self._append_whole(encoder, records.num_rows, records.nbytes, options)
        return list(positions(first, records.num_rows))

    def pipeline(
        self,
        *,
        stream: StreamId | None = None,
        timeout_s: float | None = None,
        expected_tail: Glsn | None = None,
        streams: Iterable[StreamId] | None = None,
        fail_fast: bool = False,
    ) -> Pipeline:
        """Return a pipeline, whose appends keep the order of calls without waiting for each:
        `async with log.pipeline() as p: p.append(a); p.append(b)`.

        After a failure it appends nothing more. With `expected_tail`, its entries stand directly
        behind that position and each other, or it fails with Conflict. The other arguments are
        those of `append`."""
        options = AppendOptions.of(stream, streams, timeout_s, expected_tail, fail_fast=fail_fast)
        return Pipeline(self.name, self._append_whole, options)

    async def stage(self, records: pa.RecordBatch | Iterable[pa.RecordBatch]) -> Staged:
        """Store any number of rows, in order, that stay invisible until `Writer.publish`. The
        columns are those of `append_arrow`."""
        stager = await self._stager()
        try:
            for portion in portions(records):
                await stager.add(portion)
            return await stager.finish()
        finally:
            await stager.close()

    async def _stager(self) -> Stager:
        return await self._publications.stager(self._parts)

    async def writer(self, name: str, lease: Lease | None = None) -> Writer:
        """Return the writer of this name, which publishes staged rows. Call this before staging
        rows for it. With a `lease`, it publishes only while the lease is held."""
        return await self._publications.writer(self._parts, name, lease)

    async def trim(self, position: Glsn) -> None:
        """Delete all entries up to and including `position`, and staged rows only they need."""
        check_number("position", position)
        await self._publications.trim(self._parts, position)

    # ---- reading

    async def read(self, position: Glsn) -> Entry:
        """Return the entry at `position`, from the archive if it was trimmed. Raise Trimmed if it
        is not archived either, NotYetWritten beyond the tail, and NotFound in a permanent gap."""
        check_number("position", position)
        return await self._parts.read(position)

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
        """Yield every entry from `start` to `stop` inclusive, in order; without `stop`, forever.
        Trimmed entries are read from the log's archive, if there is one.

        `start` is a position, "earliest" (the first position kept) or "latest" (new entries only).

        With `gaps`, positions that have no entry are yielded as `Gap`: those that were trimmed,
        never written (with protocol `ordered`, only by transactions that failed; those in the
        archive are skipped), or lost. Without `gaps`, a trimmed position raises Trimmed, a lost
        one DataLoss, and one that was never written is skipped.

        Without `payloads`, entries have empty values and no keys."""
        return entries(self._parts.pieces.rows(start, stop, gaps=gaps, payloads=payloads))

    def subscribe_arrow(
        self,
        start: Glsn | str = 1,
        stop: Glsn | None = None,
        *,
        archived: bool = True,
        gaps: bool = False,
        payloads: bool = True,
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Like `subscribe`, but yield Arrow batches of loomlog.columns.SCHEMA, with any `Gap`s
        between them. Without `archived`, the archive is not read."""
        return arrow(
            self._parts.pieces.rows(start, stop, archived=archived, gaps=gaps, payloads=payloads)
        )

    def subscribe_stream(
        self, stream: StreamId, start_llsn: Llsn = 1, stop_llsn: Llsn | None = None
    ) -> AsyncGenerator[Entry, None]:
        """Yield the entries of one log stream from `start_llsn` to `stop_llsn` inclusive, in the
        stream's own order; without `stop_llsn`, forever."""
        return entries(self._parts.pieces.stream_rows(stream, start_llsn, stop_llsn))

    def subscribe_stream_arrow(
        self, stream: StreamId, start_llsn: Llsn = 1, stop_llsn: Llsn | None = None
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Like `subscribe_stream`, but yield Arrow batches of loomlog.columns.SCHEMA."""
        return arrow(self._parts.pieces.stream_rows(stream, start_llsn, stop_llsn))

    # ---- bounds, times and checkpoints

    async def tail(self) -> Glsn:
        """Return the last committed position; 0 if there is none."""
        return await self._parts.tail()

    async def head(self) -> Glsn:
        """Return the first position that is not trimmed."""
        return await self._parts.head()

    async def is_empty(self) -> bool:
        """Return whether the log holds no entries; archived entries do not count."""
        bounds = await self._parts.bounds()
        return bool(bounds.head > bounds.tail)

    async def earliest(self) -> Glsn:
        """Return the first position that can be read, from the archive or the log."""
        return await self._parts.archived.earliest()

    async def find_time(self, moment: datetime | float) -> Glsn:
        """Return the first position whose entry has this timestamp or a later one, or one past the
        tail if there is none. A float is seconds since 1970. Trimmed entries are not searched.

        Timestamps are set by writers. If they do not grow with positions, the result is still the
        first such entry of an `ordered` log; with other protocols it may be a later one."""
        return await self._parts.find_time(timestamp_us(moment))

    async def find_last(self, count: int, stop: Glsn | None = None) -> Glsn:
        """Return the position where the last `count` entries up to `stop` begin, or one past it if
        there are none; without `stop`, up to the tail. Archived entries count."""
        check_number("count", count)
        if stop is not None:
            check_tail(stop, "stop")
        last = await self.tail() if stop is None else stop
        rows = partial(self.subscribe, gaps=True, payloads=False)
        return await find_last(count, await self.earliest(), last, rows)

    def checkpoint(self, name: str) -> Checkpoint:
        """Return a handle for the checkpoint of this name, which exists once it is set."""
        return self._parts.checkpoints.checkpoint(name)

    async def checkpoints(self) -> dict[str, CheckpointInfo]:
        """Return all checkpoints of this log by name."""
        return await self._parts.checkpoints.all()

    def group(
        self,
        name: str,
        shards: int | None = None,
        *,
        start: Glsn | str | datetime = "earliest",
        session_timeout_s: float = limits.GROUP_SESSION_S,
        commit_every_s: float | None = None,
        member: str | None = None,
    ) -> Group:
        """Return a consumer group, whose members share the entries of this log:
        `async with log.group("billing") as group` joins it.

        A new group has this many `shards` (16 by default) and begins at `start`: a position, a
        time, "earliest" or "latest". A member that is silent for `session_timeout_s` is replaced.
        With `commit_every_s`, entries are committed when the next one is asked for, this often,
        and at the end; without it, call `Group.commit`. People see `member` as a name."""
        options = GroupOptions(shards, start, session_timeout_s, commit_every_s, member)
        return self._parts.groups.group(name, options)

    async def groups(self) -> dict[str, GroupInfo]:
        """Return all consumer groups of this log by name."""
        return await self._parts.groups.all()

    def queue(
        self,
        name: str,
        *,
        visibility_timeout_s: float = 30.0,
        attempts_max: int = 5,
        prefetch: int = 10,
        session_timeout_s: float = limits.GROUP_SESSION_S,
        member: str | None = None,
    ) -> Queue:
        """Return a work queue, whose members take entries of this log as jobs, one by one:
        `async with log.queue("jobs") as queue` joins it. It begins at the first entry.

        A job that is not acknowledged within `visibility_timeout_s` is handed out again; after
        `attempts_max` times its entry goes to the log `NAME.dead-letters`. A member takes up to
        `prefetch` new jobs at once; use 1 if jobs take long. A member that is silent for
        `session_timeout_s` loses its jobs. People see `member` as a name."""
        options = QueueOptions(
            visibility_timeout_s, attempts_max, prefetch, session_timeout_s, member
        )
        return self._parts.queues.queue(name, options)

    async def queues(self) -> dict[str, QueueInfo]:
        """Return all work queues of this log by name."""
        return await self._parts.queues.all()

    # ---- description

    async def archive(self) -> ArchiveInfo | None:
        """Return the location and extent of the log's archive; None if there is none."""
        return await self._parts.archived.info()

    async def locate(self, position: Glsn) -> dict[StreamId, Llsn]:
        """Return, for each stream, the LLSN of its first entry at or after `position`, or one past
        its last entry if there is none. Raise Trimmed below the head, and NotYetWritten more than
        one past the tail. With protocols other than `ordered`, LLSNs are positions, and the result
        may be in a gap before that entry."""
        check_number("position", position)
        return await self._parts.reader.locate(position)

    async def describe(self) -> LogInfo:
        """Return the log's settings, bounds, segments and streams."""
        return await self._parts.describe()

    async def set_retention(
        self,
        retention: str | float | EllipsisType | None = ...,
        *,
        retention_bytes: str | int | EllipsisType | None = ...,
    ) -> LogInfo:
        """Set how long entries are kept: a duration such as "7d", seconds, or None forever; and how
        many bytes of the newest ones: a size such as "10G", bytes, or None for all. What is left
        out stays as it is."""
        request = pb.SetRetention(name=self.name)
        if not isinstance(retention, EllipsisType):
            request.retention_s = retention_s(retention)
        if not isinstance(retention_bytes, EllipsisType):
            request.retention_bytes = bytes_kept(retention_bytes)
        return log_info((await self._parts.metadata.request(pb.Frame(set_retention=request))).log)


async def _first(append_many: Callable[[], Awaitable[list[Position]]]) -> Position:
    return (await append_many())[0]


def _encode(
    values: list[Buffer],
    keys: list[Buffer | None] | None,
    headers: list[bytes | None] | None = None,
    own_timestamps_us: list[int] | None = None,
    **stamps: Any,
) -> Buffer:
    from loomlog.columns.writer import encode

    if own_timestamps_us is not None:
        stamps["timestamps_us"] = own_timestamps_us
    return encode(values, keys=keys, headers=headers, **stamps)


def encoded_headers(headers: Mapping[str, bytes] | None) -> bytes | None:
    from loomlog.columns.headers import encode_headers

    return encode_headers(headers)


def _encode_arrow(records: pa.RecordBatch, **stamps: Any) -> Buffer:
    from loomlog.columns.writer import encode_arrow

    return encode_arrow(records, **stamps)


def _size(log: str, items: Iterable[Any]) -> int:
    try:
        return sum(map(len, items))
    except TypeError:
        raise InvalidArgument(
            f"append to log {log!r}: values and keys must be bytes; encode them first"
        ) from None
