"""`ordered` on a storage node: its replicas of log streams, appends, and the orders of the metadata
repository. Reads are in reader.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Iterator
from functools import partial
from typing import Any, Final

from loomlog import limits
from loomlog.core.backoff import Backoff
from loomlog.core.conditions import Condition, Kind
from loomlog.core.packed import LEAST
from loomlog.errors import (
    AlreadyExists,
    Conflict,
    InvalidArgument,
    LoomError,
    NotFound,
    Unavailable,
)
from loomlog.net.timers import Timers
from loomlog.node.ordered.copy_destination import CopyDestination
from loomlog.node.ordered.copy_source import OutgoingCopy
from loomlog.node.ordered.holds import append_held
from loomlog.node.ordered.mover import ReplicaMover
from loomlog.node.ordered.reader import OpenReplica, ReadRequests, ReplicaReader
from loomlog.node.ordered.repairer import Repairer, Scrub
from loomlog.node.ordered.replica import ReplicaDriver
from loomlog.node.ordered.replication import Backups
from loomlog.node.ordered.stores import StreamStores
from loomlog.node.protocol import NodeContext, NodeProtocol
from loomlog.node.scrubber import ScrubNotes
from loomlog.node.volume import Volume
from loomlog.node.workers import insist
from loomlog.storage.ordered.stream_store import StreamStore
from loomlog.types import LogId, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection, Frame, Route
from loomlog.wire.translate import commit_to_wire, commits_from_wire, pack_reports, report_to_wire

logger = logging.getLogger(__name__)

_REPAIR: Final = Backoff(1.0, 60.0)  # for batches that no peer could repair


class OrderedService(NodeProtocol):
    """Serves the replicas of log streams on this node."""

    def __init__(self, context: NodeContext) -> None:
        self._node_id = context.node_id
        self._disks = context.disks
        self._codec = context.codec
        self._link = context.link
        self._backups = Backups(context.codec, self._replication_failed, self._backup_paused)
        self._copies: dict[tuple[StreamId, str], OutgoingCopy] = {}  # by stream and address
        self._recoveries: set[asyncio.Task[None]] = set()
        self._timers = Timers()  # by volume: for replicas that could not be opened
        self._coming_and_going = asyncio.Lock()  # serializes additions and removals of replicas
        self._unreported: dict[StreamId, None] = {}  # an ordered set of changed replicas
        self._packs_reports = False  # the metadata repository accepts packed reports
        self.held: dict[StreamId, OpenReplica] = {}
        self._reads = ReadRequests(self.holding, context.requests, self.check_replica)
        self._stores = StreamStores(context.disks)
        self._mover = ReplicaMover(self._stores, context.disks)
        for store in self._stores.open.values():
            self._adopt(store)

    def routes(self) -> dict[str, Route]:
        return {
            "append": self._append,
            "resolve_append": self._resolve_append,
            "replicate": self._replicate,
            "open_replication": self._open_replication,
            "sync_start": self._sync_start,
            "sync_batches": self._sync_batches,
            **self._reads.routes(),
        }

    def loglet_of(self, stream: StreamId) -> LogId | None:
        held = self.held.get(stream)
        return None if held is None else held.driver.store.meta.log_id

    def connection_closed(self, connection: Connection) -> None:
        self._reads.connection_closed(connection)

    def begin_stop(self) -> None:
        """Close the connections to backups, so that a peer that stops at the same time does not
        count as a failure."""
        self._backups.close()

    async def stop(self) -> None:
        self._reads.stop()
        for held in self.held.values():
            await self._mover.end(held.driver)
        for recovery in self._recoveries:
            recovery.cancel()
        self._timers.stop()
        for copy in self._copies.values():
            await copy.stop()
        for held in self.held.values():
            held.driver.close()

    def holding(self, stream_id: StreamId) -> OpenReplica:
        held = self.held.get(stream_id)
        if held is None:
            if reason := self._stores.why_unopened(stream_id):
                raise Unavailable(f"node {self._node_id} does not serve its replica now: {reason}")
            raise NotFound(
                f"node {self._node_id} has no replica of stream {stream_id}: refresh the metadata"
            )
        return held

    def stamped(self, stream_id: StreamId, stamp: int) -> OpenReplica:
        """Return the replica for a request that may delete entries. Raise Conflict unless it names
        the creation stamp that is stored with them."""
        held = self.holding(stream_id)
        stored = held.driver.store.meta.stamp
        if stamp != stored:
            raise Conflict(
                f"node {self._node_id} keeps stream {stream_id}: its creation stamp is "
                f"{stored:016x}, the request is for {stamp:016x}"
            )
        return held

    def _adopt(self, store: StreamStore) -> StreamId:
        driver = ReplicaDriver(
            self._node_id,
            store,
            self._backups,
            self._disks.volume_of(store.path),
            self._changed,
            self._link.report,
        )
        repairer = Repairer(driver, self._disks.reader, self._codec)
        reader = ReplicaReader(driver, self._disks.reader, repairer)
        self.held[driver.stream_id] = OpenReplica(driver, reader, repairer, CopyDestination(driver))
        return driver.stream_id

    async def _let_go(self, stream_id: StreamId) -> None:
        """Stop serving a replica that is removed from this node."""
        await self._mover.end(self.held[stream_id].driver)
        self.held.pop(stream_id).driver.close()
        for copy in self._copies_of(stream_id):
            await copy.stop()

    def _copies_of(self, stream_id: StreamId) -> list[OutgoingCopy]:
        keys = [key for key in self._copies if key[0] == stream_id]
        return [self._copies.pop(key) for key in keys]

    def _replication_failed(self, stream_id: StreamId, reason: str) -> None:
        held = self.held.get(stream_id)
        if held is not None and held.driver.core.is_primary:  # otherwise it is from an old epoch
            held.driver.fail(f"replication failed: {reason}")

    def _backup_paused(self, stream_id: StreamId, backup: Connection, reason: str) -> None:
        held = self.held.get(stream_id)
        if held is not None:
            held.driver.space.backup_paused(backup, reason)

    def volume_changed(self, volume: Volume) -> None:
        """Called when a volume failed, lost directories, works again, or its space changed."""
        for held in list(self.held.values()):
            if self._disks.volume_of(held.driver.store.path) is volume:
                self._look_at(held.driver, volume)
        self._open_soon(volume)

    def _open_soon(self, volume: Volume) -> None:
        if volume.works and self._stores.unopened_on(volume):
            self._spawn(self._open_rest(volume))

    async def _open_rest(self, volume: Volume) -> None:
        async with self._coming_and_going:
            for store in await self._stores.open_rest(volume):
                self._changed(self._adopt(store))
        self._timers.set(volume, limits.REOPEN_S, partial(self._open_soon, volume))

    def _look_at(self, driver: ReplicaDriver, volume: Volume) -> None:
        driver.space.volume_changed()
        path = driver.store.path
        if path in volume.vanished:
            driver.damage(volume.problem_of(path))
        elif not volume.works and not volume.is_full:
            driver.fail(volume.condition)
        elif volume.works and driver.has_failed:
            self._spawn(self._recover(driver))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        recovery = asyncio.get_running_loop().create_task(work)
        self._recoveries.add(recovery)
        recovery.add_done_callback(self._recoveries.discard)

    async def _recover(self, driver: ReplicaDriver) -> None:
        """Recover a replica from the stored data, now that the disk works again. If a sync failed,
        a peer may fill it first; if none does, all acknowledged entries were synced before."""
        if driver.should_be_filled:
            await asyncio.sleep(limits.FILLED_S)
        async with driver.sealing:
            if driver.has_failed and driver.incoming is None:
                try:
                    await driver.recover()
                except LoomError as error:
                    logger.warning("stream %d does not recover yet: %s", driver.stream_id, error)
        driver.changed()

    # ---- reports to the metadata repository

    def register(self, message: pb.Register) -> None:
        for held in self.held.values():
            _report(held.driver, message.uncommit_reports.add())
        message.reads_packed = True
        log_id, stream_id = self._stores.highest_ids
        message.highest_log_id = max(message.highest_log_id, log_id)
        message.highest_stream_id = max(message.highest_stream_id, stream_id)

    def registered(self, answer: pb.Registered) -> None:
        self._packs_reports = answer.reads_packed
        for stream_id in self.held:
            self._changed(stream_id)  # it may have changed while the node registered

    def _changed(self, stream_id: StreamId) -> None:
        """Called when a replica has to be reported."""
        self._unreported[stream_id] = None
        self._link.report_soon(self.report)

    def report(self, message: pb.GetReportResponse) -> None:
        """Add the replicas that changed."""
        changed, self._unreported = self._unreported, {}
        for held in filter(None, map(self.held.get, changed)):
            _report(held.driver, message.uncommit_reports.add())
        if self._packs_reports and len(changed) >= LEAST:
            pack_reports(message)

    def conditions(self) -> list[Condition]:
        return [*self._stores.conditions, *self._vanished()]

    def restrictions(self, message: pb.NodeConditions) -> None:
        message.unserved.extend(sorted(self._stores.unserved(self.held)))
        message.full_streams.extend(
            pb.FullStream(log_stream_id=stream_id, reason=reason)
            for stream_id, held in self.held.items()
            if (reason := held.driver.space.refuses)
        )

    def _vanished(self) -> Iterator[Condition]:
        for held in self.held.values():
            path = held.driver.store.path
            volume = self._disks.volume_of(path)
            if volume.lacks(path):
                yield Condition(
                    Kind.DATA_REFUSED,
                    volume.problem_of(path),
                    "it is filled again from another replica; if none has all of it, bring it back",
                    stream=held.driver.stream_id,
                )

    async def list_holdings(self, message: pb.Holdings) -> None:
        message.streams.extend(
            pb.StreamHolding(
                log_stream_id=stream_id,
                log_id=held.driver.store.meta.log_id,
                trimmed=held.driver.trimmed,
            )
            for stream_id, held in self.held.items()
        )

    def stored(self) -> Iterator[pb.StoredReplica]:
        for stream_id, held in self.held.items():
            store = held.driver.store
            yield pb.StoredReplica(
                log_stream_id=stream_id, path=store.path, stored_bytes=store.stored_bytes
            )

    async def scrub(self, notes: ScrubNotes) -> None:
        for stream_id, held in list(self.held.items()):
            driver = held.driver
            if driver.closed or not notes.want_stream(stream_id):
                continue
            if driver.has_failed or driver.core.damaged:
                notes.not_checked(f"stream {stream_id}: its replica here has failed or is damaged")
            else:
                await Scrub(driver, held.repairer, self._disks, notes).run()

    # ---- appends

    def _append(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Awaitable[Frame] | None:
        held = self.holding(frame.append.log_stream_id)
        if frame.append.HasField("expected_tail") and held.driver.is_new(frame, payload):
            self._spawn(append_held(self._link, self.holding, connection, frame, payload))
            return None
        repeated = held.driver.append(connection, frame, payload, self._link.rolled_back)
        return None if repeated is None else held.reader.appended(repeated)

    async def _resolve_append(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Frame:
        order = frame.resolve_append
        held = self.holding(order.log_stream_id)
        answer = pb.AppendResolved()
        first_llsn = held.driver.resolve(order.seal_epoch, order.producer_id, order.sequence)
        if first_llsn:
            answer.appended, answer.first_llsn = True, first_llsn
            answer.first_glsn = (await held.reader.appended(first_llsn)).appended.first_glsn
        return pb.Frame(append_resolved=answer)

    # ---- requests of other replicas

    def _replicate(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        order = frame.replicate
        try:
            driver = self.holding(order.log_stream_id).driver
            driver.require_primary(connection)
            driver.replicate(order.seal_epoch, payload)
        except LoomError as error:
            refusal = pb.ReplicationRefused(
                log_stream_id=order.log_stream_id, seal_epoch=order.seal_epoch, reason=str(error)
            )
            connection.send(pb.Frame(replication_refused=refusal))

    async def _open_replication(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Frame:
        order = frame.open_replication
        driver = self.holding(order.log_stream_id).driver
        driver.core.check_primary(order.seal_epoch, order.next_llsn)
        driver.require_primary(connection)
        driver.space.serve_primary(connection)
        return pb.Frame(done=pb.Done())

    async def check_replica(self, connection: Connection, stream_id: StreamId) -> None:
        """Raise Unauthorized unless the peer is a node with a replica of the stream, Unavailable if
        the metadata repository cannot be asked. Without TLS, nothing is checked."""
        if connection.is_encrypted:
            node = connection.principal.number
            question = pb.CheckReplica(log_stream_id=stream_id, storage_node_id=node)
            await self._link.request(pb.Frame(check_replica=question))

    async def _sync_start(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        order = frame.sync_start
        await self.check_replica(connection, order.log_stream_id)
        destination = self.stamped(order.log_stream_id, order.stamp).destination
        return pb.Frame(sync_started=await destination.start(connection, order))

    def _sync_batches(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        destination = self.holding(frame.sync_batches.log_stream_id).destination
        destination.take(connection, frame, payload)

    # ---- orders of the metadata repository

    def orders(self) -> dict[str, Route]:
        return {
            "find_time": self._reads.find_time,
            "measure_stream": self._reads.measure,
            "commit": self._commit,
            "add_log_stream": self._add,
            "seal": self._seal,
            "unseal": self._unseal,
            "trim_log_stream": self._trim,
            "remove_log_stream": self._remove,
            "relocate_log_stream": self._relocate,
            "synchronise": self._synchronise,
            "list_commits": self._list_commits,
        }

    def _commit(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        for stream_id, commit in commits_from_wire(frame.commit):
            held = self.held.get(stream_id)
            if held is not None:
                held.driver.commit(commit)

    async def _add(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        order = frame.add_log_stream
        if not order.stamp or not order.birth:
            raise InvalidArgument(f"stream {order.log_stream_id}: an order to add it has no stamp")
        async with self._coming_and_going:
            held = self.held.get(order.log_stream_id)
            if held is None:
                self._changed(self._adopt(await self._create(order)))
            else:
                self._check_same(held.driver.store, order)
        return pb.Frame(done=pb.Done())

    def _check_same(self, store: StreamStore, order: pb.AddLogStream) -> None:
        """Accept a repeated order to add a replica that is still empty."""
        meta = store.meta
        if store.last_llsn or (meta.stamp, meta.birth) != (order.stamp, order.birth):
            raise AlreadyExists(
                f"node {self._node_id} has data of stream {meta.stream_id} at "
                f"{store.path}; if nobody needs it, remove it with "
                f"`loom node cleanup {self._node_id}`"
            )

    async def _create(self, order: pb.AddLogStream) -> StreamStore:
        stream_id = order.log_stream_id
        return await self._stores.create(order.log_id, stream_id, order.stamp, order.birth)

    async def _seal(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        order = frame.seal
        driver = self.stamped(order.log_stream_id, order.stamp).driver
        answer = await driver.seal(order.seal_epoch, order.last_committed_llsn)
        return pb.Frame(seal_response=answer)

    async def _unseal(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        order = frame.unseal
        driver = self.holding(order.log_stream_id).driver
        await driver.unseal(order.seal_epoch, order.replicas)
        if driver.store.broken:
            self._spawn(self._repair(driver.stream_id, driver.core.epoch))
        return pb.Frame(done=pb.Done())

    async def _repair(self, stream_id: StreamId, epoch: int) -> None:
        """Repair known damage, now that the peers are known. Retry, because a peer may be down."""

        async def attempt() -> bool | None:
            held = self.held.get(stream_id)
            if held is None or held.driver.core.epoch != epoch:
                return False
            try:
                return await held.repairer.repair_known() or None
            except LoomError as error:
                logger.warning("stream %d is not repaired yet: %s", stream_id, error)
                return None

        await insist(attempt, _REPAIR)

    async def _trim(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        order = frame.trim_log_stream
        await self.stamped(order.log_stream_id, order.stamp).driver.trim(order.glsn)
        return pb.Frame(done=pb.Done())

    async def _remove(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        order = frame.remove_log_stream
        async with self._coming_and_going:
            held = self.stamped(order.log_stream_id, order.stamp)
            self._check_birth(held.driver.store, order.birth)
            await self._let_go(order.log_stream_id)
            try:
                await self._stores.delete(held.driver.store)
            except LoomError:
                self.held[order.log_stream_id] = held  # the order will be repeated
                raise
            logger.info("stream %d left this node", order.log_stream_id)
        return pb.Frame(done=pb.Done())

    async def _relocate(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        """Begin to move a replica to another volume."""
        order = frame.relocate_log_stream
        self._mover.begin(self.stamped(order.log_stream_id, order.stamp).driver)
        return pb.Frame(done=pb.Done())

    def _check_birth(self, store: StreamStore, birth: int) -> None:
        """Refuse to remove a replica that another attempt created."""
        if birth and birth != store.meta.birth:
            raise Conflict(
                f"node {self._node_id} keeps stream {store.meta.stream_id}: its replica has birth "
                f"{store.meta.birth:016x}, the request is for {birth:016x}"
            )

    async def _synchronise(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Frame:
        order = frame.synchronise
        held = self.holding(order.log_stream_id)
        key = (order.log_stream_id, order.destination.address)
        copy = self._copies.get(key)
        if copy is not None and copy.epoch != order.seal_epoch:
            await copy.stop()
            copy = None
        if copy is None:
            copy = OutgoingCopy(held.driver, held.reader, self._codec, order)
            self._copies[key] = copy
        copy.throttle.bytes_per_s = order.bytes_per_s
        await copy.settled(limits.COPY_ANSWER_S)
        if copy.done and self._copies.get(key) is copy:
            del self._copies[key]  # its end is reported; another request starts a new copy
        return pb.Frame(synchronise_response=copy.progress())

    async def _list_commits(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Frame:
        order, count_max = frame.list_commits, limits.COMMITS_LISTED_MAX
        held = self.holding(order.log_stream_id)
        commits = await held.reader.commits_after(order.after, count_max)
        answer = pb.CommitList(
            ran_epoch=max(0, held.driver.ran_in),
            commits=[commit_to_wire(order.log_stream_id, commit) for commit in commits],
            more=len(commits) == count_max,
        )
        _report(held.driver, answer.report)
        return pb.Frame(commit_list=answer)


def _report(driver: ReplicaDriver, into: pb.LogStreamUncommitReport) -> None:
    size, meta = driver.store.stored_bytes, driver.store.meta
    report_to_wire(driver.core.report(), size, meta.stamp, meta.birth, into)
