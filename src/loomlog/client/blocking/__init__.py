"""The blocking client: the same methods as the async client, which it runs in a background thread.

It is thread-safe; concurrent appends of several threads share batches.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, overload

from loomlog import limits
from loomlog.client.append.options import AppendArguments
from loomlog.client.append.pipeline import Pipeline
from loomlog.client.blocking.coded_log import BlockingCodedLog
from loomlog.client.blocking.contexts import (
    BlockingGroup,
    BlockingPipeline,
    BlockingQueue,
    BlockingTransaction,
)
from loomlog.client.blocking.kv import BlockingCheckpoint, BlockingLease, BlockingRegister, held_by
from loomlog.client.blocking.loop_thread import BlockingFace, LoopThread, blocking, blocking_as
from loomlog.client.blocking.subscriptions import BlockingSubscription, arrow, entries
from loomlog.client.cluster import Cluster, connect
from loomlog.client.log import Log
from loomlog.client.publish.stager import Staged, portions
from loomlog.client.publish.writer import Writer
from loomlog.client.settings import ClientOptions
from loomlog.client.subscribe.pieces import Pieces, Shown
from loomlog.client.transactions.transaction import Transaction
from loomlog.codecs import Codec
from loomlog.errors import Unavailable
from loomlog.types import Buffer, Entry, Gap, Glsn, Llsn, Position, StreamId

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class BlockingWriter(BlockingFace[Writer]):
    """A durable identity that publishes to one log, in the order of its sequence numbers; the
    blocking form of `Writer`."""

    def __init__(self, thread: LoopThread, writer: Writer) -> None:
        super().__init__(thread, writer)
        self.name = writer.name

    def __repr__(self) -> str:
        return f"<BlockingWriter {self.name!r}>"

    sequence = blocking(Writer.sequence)
    publish = blocking(Writer.publish)
    forget = blocking(Writer.forget)


class BlockingLog(BlockingFace[Log]):
    """One log of a cluster; the blocking form of `Log`."""

    def __init__(self, thread: LoopThread, log: Log) -> None:
        super().__init__(thread, log)
        self.name = log.name

    def __repr__(self) -> str:
        return f"<BlockingLog {self.name!r}>"

    append_many = blocking(Log.append_many)
    append_arrow = blocking(Log.append_arrow)
    read = blocking(Log.read)
    trim = blocking(Log.trim)
    tail = blocking(Log.tail)
    head = blocking(Log.head)
    is_empty = blocking(Log.is_empty)
    earliest = blocking(Log.earliest)
    locate = blocking(Log.locate)
    find_time = blocking(Log.find_time)
    find_last = blocking(Log.find_last)
    checkpoints = blocking(Log.checkpoints)
    groups = blocking(Log.groups)
    queues = blocking(Log.queues)
    archive = blocking(Log.archive)
    set_retention = blocking(Log.set_retention)
    describe = blocking(Log.describe)

    def checkpoint(self, name: str) -> BlockingCheckpoint:
        """Return a handle for the checkpoint of this name; it is created when it is first set."""
        return BlockingCheckpoint(self._thread, self._target.checkpoint(name))

    def group(
        self,
        name: str,
        shards: int | None = None,
        *,
        start: Glsn | str | datetime = "earliest",
        session_timeout_s: float = limits.GROUP_SESSION_S,
        commit_every_s: float | None = None,
        member: str | None = None,
    ) -> BlockingGroup:
        """Return a consumer group, whose members share the entries of this log. Join it with
        `with log.group("billing") as group`. The arguments are those of `Log.group`."""
        group = self._target.group(
            name,
            shards,
            start=start,
            session_timeout_s=session_timeout_s,
            commit_every_s=commit_every_s,
            member=member,
        )
        return BlockingGroup(self._thread, group)

    def queue(
        self,
        name: str,
        *,
        visibility_timeout_s: float = 30.0,
        attempts_max: int = 5,
        prefetch: int = 10,
        session_timeout_s: float = limits.GROUP_SESSION_S,
        member: str | None = None,
    ) -> BlockingQueue:
        """Return a work queue, whose members take the entries of this log as jobs, one by one. Join
        it with `with log.queue("jobs") as queue`. The arguments are those of `Log.queue`."""
        queue = self._target.queue(
            name,
            visibility_timeout_s=visibility_timeout_s,
            attempts_max=attempts_max,
            prefetch=prefetch,
            session_timeout_s=session_timeout_s,
            member=member,
        )
        return BlockingQueue(self._thread, queue)

    def append(
        self, value: Buffer, key: Buffer | None = None, **arguments: Unpack[AppendArguments]
    ) -> Position:
        """Append one entry and return its position. The other arguments and the errors are those of
        `Log.append`."""

        async def append() -> Position:
            return await self._target.append(value, key, **arguments)

        return self._thread.run(append())

    def pipeline(
        self,
        *,
        stream: StreamId | None = None,
        timeout_s: float | None = None,
        expected_tail: Glsn | None = None,
        streams: Iterable[StreamId] | None = None,
        fail_fast: bool = False,
    ) -> BlockingPipeline:
        """Return a pipeline, whose appends keep the order of calls without waiting for each other;
        see `Log.pipeline`."""

        async def make() -> Pipeline:
            return self._target.pipeline(
                stream=stream,
                timeout_s=timeout_s,
                expected_tail=expected_tail,
                streams=streams,
                fail_fast=fail_fast,
            )

        return BlockingPipeline(self._thread, self._thread.run(make()))

    def stage(self, records: pa.RecordBatch | Iterable[pa.RecordBatch]) -> Staged:
        """Store any number of rows, which stay invisible until `BlockingWriter.publish` publishes
        them in this order; see `Log.stage`."""
        stager = self._thread.run(self._target._stager())
        try:
            for portion in portions(records):
                self._thread.run(stager.add(portion))
            return self._thread.run(stager.finish())
        finally:
            self._thread.run(stager.close())

    def writer(self, name: str, lease: BlockingLease | None = None) -> BlockingWriter:
        """Return the writer of this name, which publishes staged rows exactly once. Call this
        before you stage rows for it. With a `lease`, it publishes only while that is held."""
        held = held_by(lease)
        return BlockingWriter(self._thread, self._thread.run(self._target.writer(name, held)))

    @overload
    def subscribe(
        self,
        start: Glsn | str = 1,
        stop: Glsn | None = None,
        gaps: Literal[False] = False,
        *,
        payloads: bool = True,
        timeout_s: float | None = None,
    ) -> BlockingSubscription[Entry]: ...

    @overload
    def subscribe(
        self,
        start: Glsn | str = 1,
        stop: Glsn | None = None,
        *,
        gaps: bool,
        payloads: bool = True,
        timeout_s: float | None = None,
    ) -> BlockingSubscription[Entry | Gap]: ...

    def subscribe(
        self,
        start: Glsn | str = 1,
        stop: Glsn | None = None,
        gaps: bool = False,
        *,
        payloads: bool = True,
        timeout_s: float | None = None,
    ) -> BlockingSubscription[Any]:
        """Iterate over every entry from `start` to `stop` inclusive, in order. The other arguments
        and the errors are those of `Log.subscribe`.

        The iteration raises Timeout if nothing arrives for `timeout_s`, and can be continued then.
        Any thread may end it with `close()`."""
        subscription = self._subscription(start, stop, gaps=gaps, payloads=payloads)
        return BlockingSubscription(self._thread, self.name, subscription, entries, timeout_s)

    def subscribe_arrow(
        self,
        start: Glsn | str = 1,
        stop: Glsn | None = None,
        *,
        archived: bool = True,
        gaps: bool = False,
        payloads: bool = True,
        timeout_s: float | None = None,
    ) -> BlockingSubscription[pa.RecordBatch]:
        """Like `subscribe`, but iterate over Arrow batches of schema loomlog.columns.SCHEMA, and
        `Gap`s between them. With `archived=False`, do not read the archive."""
        subscription = self._subscription(
            start, stop, archived=archived, gaps=gaps, payloads=payloads
        )
        return BlockingSubscription(self._thread, self.name, subscription, arrow, timeout_s)

    def subscribe_stream(
        self,
        stream: StreamId,
        start_llsn: Llsn = 1,
        stop_llsn: Llsn | None = None,
        *,
        timeout_s: float | None = None,
    ) -> BlockingSubscription[Entry]:
        """Iterate over the entries of one log stream from `start_llsn` to `stop_llsn` inclusive, in
        the order of the stream; see `Log.subscribe_stream`. The iteration raises Timeout if nothing
        arrives for `timeout_s`."""

        subscription = self._stream(stream, start_llsn, stop_llsn)
        return BlockingSubscription(self._thread, self.name, subscription, entries, timeout_s)

    def subscribe_stream_arrow(
        self,
        stream: StreamId,
        start_llsn: Llsn = 1,
        stop_llsn: Llsn | None = None,
        *,
        timeout_s: float | None = None,
    ) -> BlockingSubscription[pa.RecordBatch]:
        """Like `subscribe_stream`, but iterate over Arrow batches of loomlog.columns.SCHEMA."""

        subscription = self._stream(stream, start_llsn, stop_llsn)
        return BlockingSubscription(self._thread, self.name, subscription, arrow, timeout_s)

    def _stream(self, stream: StreamId, start: Llsn, stop: Llsn | None) -> Pieces[Shown]:
        async def make() -> Pieces[Shown]:
            return self._target._parts.pieces.stream_rows(stream, start, stop)

        return self._thread.run(make())

    def _subscription(self, start: Glsn | str, stop: Glsn | None, **choices: bool) -> Pieces[Shown]:
        async def make() -> Pieces[Shown]:
            return self._target._parts.pieces.rows(start, stop, **choices)

        return self._thread.run(make())


class BlockingCluster(BlockingFace[Cluster]):
    """A connection to a cluster, as returned by `connect_sync`; the blocking form of `Cluster`. A
    context manager that closes it on exit. All methods are thread-safe."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. Calling it again does nothing."""
        try:
            self._thread.run(self._target.close())
        except Unavailable:
            return
        self._thread.stop()

    create_log = blocking_as(BlockingLog, Cluster.create_log)
    delete_log = blocking(Cluster.delete_log)
    make_staging_log = blocking(Cluster.make_staging_log)
    logs = blocking(Cluster.logs)
    status = blocking(Cluster.status)
    events = blocking(Cluster.events)

    @overload
    def log(self, name: str, codec: None = None) -> BlockingLog: ...

    @overload
    def log(self, name: str, codec: Codec[T]) -> BlockingCodedLog[T]: ...

    def log(self, name: str, codec: Codec[T] | None = None) -> BlockingLog | BlockingCodedLog[T]:
        """Return a handle for the log of this name, without checking that the log exists. With a
        `codec` (see loomlog.codecs), values are objects instead of bytes."""

        async def find() -> Log:
            return self._target.log(name)

        log = BlockingLog(self._thread, self._thread.run(find()))
        return log if codec is None else BlockingCodedLog(log, codec)

    def transaction(self, *, timeout_s: float | None = None) -> BlockingTransaction:
        """Return a transaction, whose entries become visible in all their logs or in none; see
        `Cluster.transaction`."""

        async def make() -> Transaction:
            return self._target.transaction(timeout_s=timeout_s)

        return BlockingTransaction(self._thread, self._thread.run(make()))

    # ---- registers and leases

    registers = blocking(Cluster.registers)
    lease = blocking(Cluster.lease)
    leases = blocking(Cluster.leases)

    def register(self, name: str) -> BlockingRegister:
        """Return a handle for the register of this name, without checking that it exists."""
        return BlockingRegister(self._thread, self._target.register(name))

    def acquire_lease(self, name: str, holder: str, ttl_s: float) -> BlockingLease | None:
        """Acquire the lease `name` for `holder`, or return None if another holder has it; see
        `Cluster.acquire_lease`."""
        lease = self._thread.run(self._target.acquire_lease(name, holder, ttl_s))
        return BlockingLease(self._thread, lease) if lease else None

    # ---- operators

    seal_stream = blocking(Cluster.seal_stream)
    unseal_stream = blocking(Cluster.unseal_stream)
    add_stream = blocking(Cluster.add_stream)
    move_stream = blocking(Cluster.move_stream)
    renew_stream = blocking(Cluster.renew_stream)
    plan_rebalance = blocking(Cluster.plan_rebalance)
    remove_stream = blocking(Cluster.remove_stream)
    add_replica = blocking(Cluster.add_replica)
    unregister_replica = blocking(Cluster.unregister_replica)
    set_primary = blocking(Cluster.set_primary)
    sync_replica = blocking(Cluster.sync_replica)
    describe_stream = blocking(Cluster.describe_stream)
    scrub_stream = blocking(Cluster.scrub_stream)
    scrub_log = blocking(Cluster.scrub_log)
    switch_log = blocking(Cluster.switch_log)
    check_nodes = blocking(Cluster.check_nodes)
    drain_node = blocking(Cluster.drain_node)
    drain_volume = blocking(Cluster.drain_volume)
    undrain_volume = blocking(Cluster.undrain_volume)
    undrain_node = blocking(Cluster.undrain_node)
    remove_node = blocking(Cluster.remove_node)
    replace_node = blocking(Cluster.replace_node)
    replace_volume = blocking(Cluster.replace_volume)
    restart_node = blocking(Cluster.restart_node)
    cleanup_node = blocking(Cluster.cleanup_node)
    mark_unrecoverable = blocking(Cluster.mark_unrecoverable)
    add_metadata = blocking(Cluster.add_metadata)
    remove_metadata = blocking(Cluster.remove_metadata)

    # ---- permissions and tokens

    access = blocking(Cluster.access)
    enforce_access = blocking(Cluster.enforce_access)
    grant = blocking(Cluster.grant)
    revoke = blocking(Cluster.revoke)
    create_token = blocking(Cluster.create_token)
    remove_subject = blocking(Cluster.remove_subject)
    revoke_tokens = blocking(Cluster.revoke_tokens)
    rotate_token_key = blocking(Cluster.rotate_token_key)


def connect_sync(
    addresses: str | Iterable[str], **settings: Unpack[ClientOptions]
) -> BlockingCluster:
    """Connect to a cluster and return it, for programs without an event loop; use it with `with`,
    or call its `close`. The arguments and errors are those of `connect`."""
    thread = LoopThread()
    try:
        return BlockingCluster(thread, thread.run(connect(addresses, **settings)))
    except BaseException:
        thread.stop()
        raise
