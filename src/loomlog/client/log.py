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
from loomlog.client.append.encoders import encode_arrow_rows, encode_rows, encoded_headers
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
from loomlog.errors import InvalidArgument, shown
from loomlog.types import Buffer, Entry, Gap, Glsn, Llsn, Position, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.info import LogInfo, log_info

if TYPE_CHECKING:
    import pyarrow as pa


class Log:
    """One log of a cluster, as returned by `Cluster.log` and `Cluster.create_log`.

    All methods raise NotFound if the log does not exist, PermissionDenied if the caller lacks a
    permission, InvalidArgument for an invalid argument, and a Retryable error (Timeout,
    Unavailable, …) if servers did not answer in time."""

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

        When it completes, the entry is durable on all its replicas. Concurrent appends share
        batches, so for throughput start several before you await the first; if their order
        matters, use `append_many` or `pipeline` instead. While the client's append buffer is full,
        new appends wait. Cancelling the wait does not undo the append.

        Keyword arguments:

        - `headers`: small named values that are stored with the entry.
        - `timestamp`: a datetime, or seconds since 1970, to use instead of the current time.
        - `stream`, `streams`: append to this log stream, or to any of these (default: to any).
        - `expected_tail`: append only if no entry has a position above this one, usually an
          earlier result of `tail`; otherwise raise Conflict.
        - `timeout_s`: give up after this time (default: `append_timeout_s` of `connect`).
        - `fail_fast`: try once and raise the first refusal, instead of retrying until the timeout.

        An entry with `streams` or one of the last three is sent as a batch of its own.

        Raise AppendUnknown if the entry may or may not have been appended. After any other error
        it was not; Sealed means that the streams do not accept appends at present."""
        if not arguments:  # the fast path: defaults of keyword arguments would cost more than this
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
        """Append several entries atomically and return their positions, which are consecutive.

        `keys`, `headers` and `timestamps`, if given, have one item for each of `values`, which may
        be None for keys and headers. The other arguments and the errors are those of `append`.
        Raise InvalidArgument if the entries do not fit into one batch (32 MiB)."""
        options = AppendOptions.of(stream, streams, timeout_s, expected_tail, fail_fast=fail_fast)
        if not isinstance(values, Iterable):
            raise InvalidArgument(f"values must be a list of bytes, not {shown(values)}")
        for name, some in (("keys", keys), ("headers", headers), ("timestamps", timestamps)):
            if some is not None and not isinstance(some, Iterable):
                raise InvalidArgument(f"{name} must be a list, one per value, not {shown(some)}")
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
        size = _size(self.name, values)
        if keys is not None or encoded is not None:
            optional = (*(keys or ()), *(encoded or ()))
            size += _size(self.name, filter(None, optional))
        encoder = partial(encode_rows, values, keys, encoded, times)
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
        """Append the rows of an Arrow batch atomically and return their positions, which are
        consecutive.

        `records` has a column `value`, and optionally `key`, `timestamp` and `headers`. The other
        arguments and the errors are those of `append_many`."""
        options = AppendOptions.of(stream, streams, timeout_s, expected_tail, fail_fast=fail_fast)
        if not hasattr(records, "num_rows") or not hasattr(records, "schema"):
            raise InvalidArgument(f"records must be a pyarrow.RecordBatch, not {shown(records)}")
        if not records.num_rows:
            return []
        encoder = partial(encode_arrow_rows, records)
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
        """Return a pipeline: its appends keep the order of calls without waiting for each other, as
        in `async with log.pipeline() as p: p.append(a); p.append(b)`.

        After a failure it appends nothing more. With `expected_tail`, no other entry may come
        between that position and the pipeline's entries, nor among them; otherwise it fails with
        Conflict. The other arguments are those of `append`."""
        options = AppendOptions.of(stream, streams, timeout_s, expected_tail, fail_fast=fail_fast)
        return Pipeline(self.name, self._append_whole, options)

    async def stage(self, records: pa.RecordBatch | Iterable[pa.RecordBatch]) -> Staged:
        """Store any number of rows, which stay invisible until `Writer.publish` publishes them in
        this order. Return a handle to pass to it.

        `records` is an Arrow batch, or an iterable of them, with the columns of `append_arrow`."""
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
        """Return the writer of this name, which publishes staged rows exactly once.

        Call this before you stage rows for it. With a `lease`, it publishes only while that is
        held."""
        return await self._publications.writer(self._parts, name, lease)

    async def trim(self, position: Glsn) -> None:
        """Delete all entries up to and including `position`, and the staged rows that only they
        refer to."""
        check_number("position", position)
        await self._publications.trim(self._parts, position)

    # ---- reading

    async def read(self, position: Glsn) -> Entry:
        """Return the entry at `position`; if it was trimmed, from the log's archive.

        Raise Trimmed if it was trimmed and not archived, NotYetWritten if `position` is beyond the
        tail, NotFound if it is a permanent gap, and DataLoss or Corrupt if no copy of the entry can
        be read."""
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
        """Yield every entry from `start` to `stop` inclusive, in order. Without `stop`, wait for
        new entries forever. Trimmed entries are read from the log's archive, if there is one.

        `start` is a position, "earliest" (the first position kept) or "latest" (new entries only).

        With `gaps`, positions without an entry are yielded as `Gap`: those that were trimmed, lost,
        or never written (in an `ordered` log, only by failed transactions; unwritten positions in
        the archive are skipped). Without `gaps`, a trimmed position raises Trimmed, a lost one
        DataLoss, and unwritten ones are skipped.

        With `payloads=False`, entries have empty values and no keys."""
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
        """Like `subscribe`, but yield Arrow batches of schema loomlog.columns.SCHEMA, and `Gap`s
        between them. With `archived=False`, do not read the archive."""
        return arrow(
            self._parts.pieces.rows(start, stop, archived=archived, gaps=gaps, payloads=payloads)
        )

    def subscribe_stream(
        self, stream: StreamId, start_llsn: Llsn = 1, stop_llsn: Llsn | None = None
    ) -> AsyncGenerator[Entry, None]:
        """Yield the entries of one log stream from `start_llsn` to `stop_llsn` inclusive, in the
        order of the stream. Without `stop_llsn`, wait for new entries forever."""
        return entries(self._parts.pieces.stream_rows(stream, start_llsn, stop_llsn))

    def subscribe_stream_arrow(
        self, stream: StreamId, start_llsn: Llsn = 1, stop_llsn: Llsn | None = None
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Like `subscribe_stream`, but yield Arrow batches of schema loomlog.columns.SCHEMA."""
        return arrow(self._parts.pieces.stream_rows(stream, start_llsn, stop_llsn))

    # ---- bounds, times and checkpoints

    async def tail(self) -> Glsn:
        """Return the last acknowledged position, or 0 if there is none."""
        return await self._parts.tail()

    async def head(self) -> Glsn:
        """Return the first position that is not trimmed."""
        return await self._parts.head()

    async def is_empty(self) -> bool:
        """Return whether the log holds no entries; archived entries do not count."""
        bounds = await self._parts.bounds()
        return bool(bounds.head > bounds.tail)

    async def earliest(self) -> Glsn:
        """Return the first position that can be read, from the log or its archive."""
        return await self._parts.archived.earliest()

    async def find_time(self, moment: datetime | float) -> Glsn:
        """Return the position of the first entry whose timestamp is at or after `moment`, or one
        past the tail if there is none. Trimmed entries are not searched.

        `moment` is a datetime with a time zone, or seconds since 1970. Writers set the timestamps.
        If these do not grow with positions, the result is still the first such entry in an
        `ordered` log; with other protocols it may be a later one."""
        return await self._parts.find_time(timestamp_us(moment))

    async def find_last(self, count: int, stop: Glsn | None = None) -> Glsn:
        """Return the position of the first of the last `count` entries up to `stop` (default: up to
        the tail), or one past `stop` if there are none. Archived entries count."""
        check_number("count", count)
        if stop is not None:
            check_tail(stop, "stop")
        last = await self.tail() if stop is None else stop
        rows = partial(self.subscribe, gaps=True, payloads=False)
        return await find_last(count, await self.earliest(), last, rows)

    def checkpoint(self, name: str) -> Checkpoint:
        """Return a handle for the checkpoint of this name; it is created when it is first set."""
        return self._parts.checkpoints.checkpoint(name)

    async def checkpoints(self) -> dict[str, CheckpointInfo]:
        """Return all checkpoints of this log, by name."""
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
        """Return a consumer group, whose members share the entries of this log. Join it with
        `async with log.group("billing") as group`; the first member creates it.

        - `shards`: the number of shards of a new group (default: 16). It cannot be changed later.
        - `start`: where a new group begins: a position, a datetime, "earliest" or "latest".
        - `session_timeout_s`: a member that is silent for this long is replaced.
        - `commit_every_s`: commit this often, and on exit; an entry counts as processed once the
          next one is requested. Without it, call `Group.commit`.
        - `member`: a name for this member, shown to operators."""
        options = GroupOptions(shards, start, session_timeout_s, commit_every_s, member)
        return self._parts.groups.group(name, options)

    async def groups(self) -> dict[str, GroupInfo]:
        """Return all consumer groups of this log, by name."""
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
        """Return a work queue, whose members take the entries of this log as jobs, one by one. Join
        it with `async with log.queue("jobs") as queue`; the first member creates it. A new queue
        begins at the first entry.

        - `visibility_timeout_s`: a job that is not acknowledged within this time is delivered
          again.
        - `attempts_max`: after this many deliveries, the entry is appended to the log
          `LOG.dead-letters` instead.
        - `prefetch`: take up to this many new jobs at once; use 1 if jobs take long.
        - `session_timeout_s`: a member that is silent for this long loses its jobs.
        - `member`: a name for this member, shown to operators."""
        options = QueueOptions(
            visibility_timeout_s, attempts_max, prefetch, session_timeout_s, member
        )
        return self._parts.queues.queue(name, options)

    async def queues(self) -> dict[str, QueueInfo]:
        """Return all work queues of this log, by name."""
        return await self._parts.queues.all()

    # ---- description

    async def archive(self) -> ArchiveInfo | None:
        """Return the location and extent of the log's archive, or None if it has no archive."""
        return await self._parts.archived.info()

    async def locate(self, position: Glsn) -> dict[StreamId, Llsn]:
        """Return, for each stream, the LLSN of its first entry at or after `position`, or one past
        its last entry if there is none.

        With protocols other than `ordered`, LLSNs are positions, and the result may be in a gap
        before that entry. Raise Trimmed if `position` is below the head, and NotYetWritten if it
        is more than one past the tail."""
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
        """Change how long entries are kept, and return the new description of the log.

        `retention` is the longest age: a duration such as "7d", seconds, or None for no limit.
        `retention_bytes` is how much of the newest entries is kept at least: a size such as "10G",
        bytes, or None for no limit. An argument that is left out does not change."""
        request = pb.SetRetention(name=self.name)
        if not isinstance(retention, EllipsisType):
            request.retention_s = retention_s(retention)
        if not isinstance(retention_bytes, EllipsisType):
            request.retention_bytes = bytes_kept(retention_bytes)
        return log_info((await self._parts.metadata.request(pb.Frame(set_retention=request))).log)


async def _first(append_many: Callable[[], Awaitable[list[Position]]]) -> Position:
    return (await append_many())[0]


def _size(log: str, items: Iterable[Any]) -> int:
    try:
        return sum(map(len, items))
    except TypeError:
        raise InvalidArgument(
            f"append to log {log!r}: values and keys must be bytes; encode them first"
        ) from None
