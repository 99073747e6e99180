"""The blocking client: the async one in a thread of its own, behind the same names.

Safe for several threads; their concurrent appends travel together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from loomlog.archive.record import ArchiveInfo
from loomlog.client import cluster as asynchronous
from loomlog.client.archived import Pieces
from loomlog.client.blocking_landmarks import BlockingLandmarks
from loomlog.client.blocking_registers import BlockingLease, BlockingRegister
from loomlog.client.blocking_subscriptions import arrow, entries, iterate
from loomlog.client.blocking_writer import BlockingWriter
from loomlog.client.info import ClusterStatus, LogInfo
from loomlog.client.leases import LeaseInfo
from loomlog.client.log import Log
from loomlog.client.loop_thread import LoopThread
from loomlog.client.operator import Change
from loomlog.client.registers import Versioned
from loomlog.client.staging import Staged, portions
from loomlog.errors import Unavailable
from loomlog.types import Buffer, Entry, Gap, Glsn, Llsn, NodeId, Position, StreamId

if TYPE_CHECKING:
    import pyarrow as pa


def connect_sync(addresses: str | Iterable[str], **settings: Any) -> BlockingCluster:
    """Like `connect`, for programs without an event loop."""
    thread = LoopThread()
    try:
        return BlockingCluster(thread, thread.run(asynchronous.connect(addresses, **settings)))
    except BaseException:
        thread.stop()
        raise


class BlockingCluster:
    """A connection to a cluster; `with` closes it."""

    def __init__(self, thread: LoopThread, cluster: asynchronous.Cluster) -> None:
        self._thread = thread
        self._cluster = cluster

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; fine to call twice."""
        try:
            self._thread.run(self._cluster.close())
        except Unavailable:
            return
        self._thread.stop()

    def create_log(
        self,
        name: str,
        protocol: str = "ordered",
        streams: int = 1,
        replicas: int = 3,
        *,
        nodeset: int | None = None,
        retention: str | float | None = None,
    ) -> BlockingLog:
        """Make a new log; raises AlreadyExists. With `retention` ("7d", or seconds) entries go when
        they are so old; else they stay. Of protocol "copyset", entries lie on any `replicas` of the
        nodes of a nodeset, which has so many."""
        log = self._thread.run(
            self._cluster.create_log(
                name, protocol, streams, replicas, nodeset=nodeset, retention=retention
            )
        )
        return BlockingLog(self._thread, log)

    def log(self, name: str) -> BlockingLog:
        """The log of this name; whether it exists shows when it is used."""

        async def find() -> Log:
            return self._cluster.log(name)

        return BlockingLog(self._thread, self._thread.run(find()))

    def logs(self) -> list[LogInfo]:
        return self._thread.run(self._cluster.logs())

    def delete_log(self, name: str) -> None:
        """Delete a log, all its entries, its checkpoints, and what was staged for it."""
        self._thread.run(self._cluster.delete_log(name))

    def status(self) -> ClusterStatus:
        return self._thread.run(self._cluster.status())

    # ---- registers and leases

    def register(self, name: str) -> BlockingRegister:
        """The register of this name; it exists once something was swapped in."""
        return BlockingRegister(self._thread, self._cluster.register(name))

    def registers(self, prefix: str = "") -> dict[str, Versioned]:
        """All whose name begins with `prefix`, by name."""
        return self._thread.run(self._cluster.registers(prefix))

    def acquire_lease(self, name: str, holder: str, ttl_s: float) -> BlockingLease | None:
        """Get a lease that nobody has, or whose holder did not renew it in time; None: another
        has it. A holder that asks again gets a new epoch: its old life is fenced off."""
        lease = self._thread.run(self._cluster.acquire_lease(name, holder, ttl_s))
        return BlockingLease(self._thread, lease) if lease else None

    def lease(self, name: str) -> LeaseInfo | None:
        """Who has it; None: nobody ever had."""
        return self._thread.run(self._cluster.lease(name))

    def leases(self, prefix: str = "") -> list[LeaseInfo]:
        """All whose name begins with `prefix`, by name."""
        return self._thread.run(self._cluster.leases(prefix))

    # ---- what operators do

    def seal_stream(self, stream: StreamId) -> Change:
        """Take no more appends until it is unsealed; it stays readable."""
        return self._thread.run(self._cluster.seal_stream(stream))

    def unseal_stream(self, stream: StreamId) -> Change:
        """Let it run again."""
        return self._thread.run(self._cluster.unseal_stream(stream))

    def add_stream(self, log: str) -> Change:
        """One more stream for a log; `Change.stream` is its id."""
        return self._thread.run(self._cluster.add_stream(log))

    def move_stream(
        self, stream: StreamId, from_node: NodeId, to_node: NodeId | None = None
    ) -> Change:
        """Its replica on `from_node` moves to `to_node` (None: to the best node)."""
        return self._thread.run(self._cluster.move_stream(stream, from_node, to_node))

    def unregister_replica(self, stream: StreamId, node: NodeId) -> Change:
        """The replica leaves the stream; its data stays on the node's disk."""
        return self._thread.run(self._cluster.unregister_replica(stream, node))

    def add_replica(self, stream: StreamId, node: NodeId | None = None) -> Change:
        """One more replica, on `node` (None: on the best one)."""
        return self._thread.run(self._cluster.add_replica(stream, node))

    def scrub_stream(self, stream: StreamId, *, tell_only: bool = False) -> Change:
        """Check all that is stored of it, repair from peers; `tell_only`: only how far that is."""
        return self._thread.run(self._cluster.scrub_stream(stream, tell_only=tell_only))

    def switch_log(
        self,
        log: str,
        *,
        protocol: str | None = None,
        streams: int | None = None,
        replicas: int | None = None,
        nodeset: int | None = None,
    ) -> Change:
        """Run a log with other settings from now on; what is not given stays as it is."""
        return self._thread.run(
            self._cluster.switch_log(
                log, protocol=protocol, streams=streams, replicas=replicas, nodeset=nodeset
            )
        )

    def drain_node(self, node: NodeId) -> Change:
        """Move everything away from it, give it nothing new."""
        return self._thread.run(self._cluster.drain_node(node))

    def undrain_node(self, node: NodeId) -> Change:
        """Use it again."""
        return self._thread.run(self._cluster.undrain_node(node))

    def remove_node(self, node: NodeId, force: bool = False) -> Change:
        """Forget an empty node; with `force` also one that is dead and not empty."""
        return self._thread.run(self._cluster.remove_node(node, force))

    def cleanup_node(self, node: NodeId) -> Change:
        """Delete its data of replicas that the cluster does not know (any more)."""
        return self._thread.run(self._cluster.cleanup_node(node))

    def add_metadata(self, member: int, address: str) -> Change:
        """One more metadata repository, which runs there already."""
        return self._thread.run(self._cluster.add_metadata(member, address))

    def remove_metadata(self, member: int) -> Change:
        """One metadata repository less. Stop it afterwards."""
        return self._thread.run(self._cluster.remove_metadata(member))


class BlockingLog(BlockingLandmarks):
    """One log of a cluster."""

    def __init__(self, thread: LoopThread, log: Log) -> None:
        self.name = log.name
        self._thread = thread
        self._log = log

    def __repr__(self) -> str:
        return f"<BlockingLog {self.name!r}>"

    def append(
        self, value: Buffer, key: Buffer | None = None, *, stream: StreamId | None = None
    ) -> Position:
        """Append one entry and wait for its position."""

        async def append() -> Position:
            return await self._log.append(value, key, stream=stream)

        return self._thread.run(append())

    def append_many(
        self,
        values: Iterable[Buffer],
        keys: Iterable[Buffer | None] | None = None,
        *,
        stream: StreamId | None = None,
    ) -> list[Position]:
        """Append all or none, at consecutive positions."""
        return self._thread.run(self._log.append_many(list(values), keys, stream=stream))

    def append_arrow(
        self, records: pa.RecordBatch, *, stream: StreamId | None = None
    ) -> list[Position]:
        """Append the rows of an Arrow batch; all or none, at consecutive positions."""
        return self._thread.run(self._log.append_arrow(records, stream=stream))

    def stage(self, records: pa.RecordBatch | Iterable[pa.RecordBatch]) -> Staged:
        """Store rows that nobody sees until they are published; they keep their order."""
        stager = self._thread.run(self._log.stager())
        try:
            for portion in portions(records):
                self._thread.run(stager.add(portion))
            return self._thread.run(stager.finish())
        finally:
            self._thread.run(stager.close())

    def writer(self, name: str, lease: BlockingLease | None = None) -> BlockingWriter:
        """The writer of this name, which publishes what was staged. Make it before anything is
        staged for it. With a `lease` it publishes only while that is held."""
        held = lease.held if lease else None
        return BlockingWriter(self._thread, self._thread.run(self._log.writer(name, held)))

    def read(self, position: Glsn) -> Entry:
        """The entry at `position`, from the archive if it was trimmed; raises Trimmed if it is not
        there, either, or NotYetWritten."""
        return self._thread.run(self._log.read(position))

    @overload
    def subscribe(
        self,
        start: Glsn | str = 1,
        stop: Glsn | None = None,
        gaps: Literal[False] = False,
        *,
        payloads: bool = True,
    ) -> Iterator[Entry]: ...

    @overload
    def subscribe(
        self,
        start: Glsn | str = 1,
        stop: Glsn | None = None,
        *,
        gaps: bool,
        payloads: bool = True,
    ) -> Iterator[Entry | Gap]: ...

    def subscribe(
        self,
        start: Glsn | str = 1,
        stop: Glsn | None = None,
        gaps: bool = False,
        *,
        payloads: bool = True,
    ) -> Iterator[Any]:
        """Every entry from `start` on, in order, to `stop` inclusive or for ever; with `gaps` also
        positions that have no entry and never will, as `Gap`; without `payloads` with empty values
        and no keys."""
        subscription = self._subscription(start, stop, gaps=gaps, payloads=payloads)
        return iterate(self._thread, self.name, subscription, entries)

    def subscribe_arrow(
        self,
        start: Glsn | str = 1,
        stop: Glsn | None = None,
        *,
        archived: bool = True,
        gaps: bool = False,
        payloads: bool = True,
        timeout_s: float | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Like `subscribe`, as Arrow batches of loomlog.columns.SCHEMA, with `Gap`s between them if
        asked for; raises Timeout when nothing came for `timeout_s`. Without `archived` only what
        the log itself has."""
        subscription = self._subscription(
            start, stop, archived=archived, gaps=gaps, payloads=payloads
        )
        return iterate(self._thread, self.name, subscription, arrow, timeout_s)

    def subscribe_stream(
        self, stream: StreamId, start_llsn: Llsn = 1, stop_llsn: Llsn | None = None
    ) -> Iterator[Entry]:
        """Every entry of one log stream, by its place in that stream."""

        async def make() -> Pieces:
            return self._log.open_stream_subscription(stream, start_llsn, stop_llsn)

        return iterate(self._thread, self.name, self._thread.run(make()), entries)

    def subscribe_stream_arrow(
        self,
        stream: StreamId,
        start_llsn: Llsn = 1,
        stop_llsn: Llsn | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Like `subscribe_stream`, as Arrow batches of loomlog.columns.SCHEMA; raises Timeout when
        nothing came for `timeout_s`."""

        async def make() -> Pieces:
            return self._log.open_stream_subscription(stream, start_llsn, stop_llsn)

        subscription = self._thread.run(make())
        return iterate(self._thread, self.name, subscription, arrow, timeout_s)

    def archive(self) -> ArchiveInfo | None:
        """Where its archive is and how far it reaches; None if it has none."""
        return self._thread.run(self._log.archive())

    def trim(self, position: Glsn) -> None:
        """Drop everything up to and with `position`, and what was staged for that part only."""
        self._thread.run(self._log.trim(position))

    def set_retention(self, retention: str | float | None) -> LogInfo:
        """How long entries stay from now on: "7d", seconds, or None for ever."""
        return self._thread.run(self._log.set_retention(retention))

    def describe(self) -> LogInfo:
        return self._thread.run(self._log.describe())

    def _subscription(self, start: Glsn | str, stop: Glsn | None, **choices: bool) -> Pieces:
        async def make() -> Pieces:
            return self._log.open_subscription(start, stop, **choices)

        return self._thread.run(make())
