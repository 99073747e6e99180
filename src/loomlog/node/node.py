"""The storage node: its replicas, and who may ask what.

Clients and peers come in through the server; orders (add, seal, unseal, trim, remove, commit) are
taken only on the connection that this node itself made to the metadata repository.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from random import Random

from loomlog import limits
from loomlog.config import NodeSettings
from loomlog.errors import (
    AlreadyExists,
    AppendUnknown,
    Busy,
    InvalidArgument,
    LoomError,
    NotFound,
    Trimmed,
)
from loomlog.net.connection import Connection, Frame
from loomlog.net.endpoints import Server
from loomlog.net.service import Service
from loomlog.node.chain_volumes import OpenTable
from loomlog.node.chained import ChainedReplicas
from loomlog.node.copying import Copy
from loomlog.node.copyset.copies import OpenLogs
from loomlog.node.copyset.copysets import Copysets
from loomlog.node.disks import Disks
from loomlog.node.filling import Filling
from loomlog.node.metadata_link import MetadataLink
from loomlog.node.reading import Reader, Subscription
from loomlog.node.repairing import Repairer
from loomlog.node.replica import ReplicaDriver
from loomlog.node.replication import Backups
from loomlog.node.scrubbing import Scrub
from loomlog.storage.files import Files, Worker
from loomlog.storage.stream_store import StreamStore
from loomlog.types import Glsn, Llsn, LogId, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.translate import commit_from_wire, commit_to_wire, report_to_wire

logger = logging.getLogger(__name__)


class StorageNode:
    """A vsn. Under the simulator `files`, `new_worker`, `open_table` and `open_logs` stand in for
    the disk, and `rng` for chance."""

    def __init__(
        self,
        settings: NodeSettings,
        *,
        files: Files | None = None,
        new_worker: Callable[[], Worker] | None = None,
        open_table: OpenTable | None = None,
        open_logs: OpenLogs | None = None,
        rng: Random | None = None,
    ) -> None:
        self._settings = settings
        self._codec = Codec("vsn", cluster_id=settings.cluster_id)
        self._disks = Disks(settings, files, new_worker, open_table, open_logs)
        self._rng = rng or Random()
        self._lost_below: int | None = None  # see node/copyset/losses.py
        self._chained = ChainedReplicas(
            settings.node_id, lambda: self._disks.chains, lambda frame: self._link.tell(frame)
        )
        self._replicas: dict[StreamId, ReplicaDriver] = {}
        self._left: dict[StreamId, ReplicaDriver] = {}  # unregistered; their data stays
        self._readers: dict[StreamId, Reader] = {}
        self._fillings: dict[StreamId, Filling] = {}
        self._repairers: dict[StreamId, Repairer] = {}
        self._copies: dict[tuple[StreamId, str], Copy] = {}  # to an address
        self._scrubs: dict[StreamId, Scrub] = {}
        self._subscriptions: dict[Connection, dict[int, Subscription]] = {}
        self._coming_and_going = asyncio.Lock()  # an order to remove waits for the one to add
        self._service = _Requests(self)
        self._server = Server(self._codec, self._service)
        self._orders = Service(
            self._codec,
            {
                "commit": self._commit,
                "add_log_stream": self._add_log_stream,
                "seal": self._seal,
                "unseal": self._unseal,
                "trim_log_stream": self._trim,
                "remove_log_stream": self._remove,
                "synchronise": self._synchronise,
                "scrub": self._scrub,
                "list_commits": self._list_commits,
                "chain_request": self._chained.order,
                "find_time": self.find_time,
                "copyset_request": self._copyset_order,
                "recover_copyset": self._recover_copyset,
                "find_copyset_tail": self.find_copyset_tail,
                "find_copyset_landmarks": self.find_copyset_landmarks,
            },
        )

    @property
    def address(self) -> str:
        return self._settings.advertise or self._server.address

    @property
    def failed(self) -> asyncio.Future[LoomError]:
        """Done with the reason when the metadata repository refuses this node for good."""
        return self._link.refused

    async def start(self) -> None:
        """Recover every replica, listen, and begin to register."""
        self._backups = Backups(self._codec, self._replication_failed)
        self._link = MetadataLink(
            self._settings.metadata,
            self._codec,
            self._orders,
            self._registration,
            self._registered,
            self._report_of,
            lambda: self._disks.chains.stored_bytes + self._disks.copies.stored_bytes,
            lambda: self._copysets.tails(),
        )
        try:
            for store in self._disks.open():
                self._adopt(store)
            self._copysets = self._open_copysets()
            await self._server.start(self._settings.listen)
        except BaseException:
            self._disks.close()
            raise
        self._link.start()
        logger.info("node %d serves on %s", self._settings.node_id, self.address)

    async def registered(self) -> None:
        """Wait until the metadata repository knows this node; raises if it refuses."""
        waiting = asyncio.ensure_future(self._link.registered.wait())
        try:
            await asyncio.wait((waiting, self._link.refused), return_when="FIRST_COMPLETED")
        finally:
            waiting.cancel()
        if self._link.refused.done():
            raise self._link.refused.result()

    async def stop(self) -> None:
        await self._server.stop()
        for subscriptions in self._subscriptions.values():
            for subscription in subscriptions.values():
                subscription.cancel()
        await self._link.stop()
        await self._orders.stop()
        await self._service.stop()
        await self._copysets.stop()
        for copy in self._copies.values():
            await copy.stop()
        for scrub in self._scrubs.values():
            await scrub.stop()
        self._backups.close()
        for driver in self._replicas.values():
            driver.close()
        self._disks.close()

    # ---- replicas

    def _adopt(self, store: StreamStore) -> ReplicaDriver:
        driver = ReplicaDriver(
            self._settings.node_id, store, self._backups, self._codec, self._changed
        )
        stream_id = driver.stream_id
        repairer = Repairer(driver, self._disks.reader, self._codec)
        self._replicas[stream_id] = driver
        self._repairers[stream_id] = repairer
        self._readers[stream_id] = Reader(driver, self._disks.reader, repairer)
        self._fillings[stream_id] = Filling(driver, self._codec)
        return driver

    async def _let_go(self, stream_id: StreamId) -> ReplicaDriver | None:
        """The replica leaves: nothing is asked of it any more."""
        driver = self._replicas.pop(stream_id, None)
        for others in (self._readers, self._fillings, self._repairers):
            others.pop(stream_id, None)
        if driver is not None:
            driver.close()
        for copy in self._copies_of(stream_id):
            await copy.stop()
        if stream_id in self._scrubs:
            await self._scrubs.pop(stream_id).stop()
        return driver

    def _copies_of(self, stream_id: StreamId) -> list[Copy]:
        keys = [key for key in self._copies if key[0] == stream_id]
        return [self._copies.pop(key) for key in keys]

    def _replica(self, stream_id: StreamId) -> ReplicaDriver:
        driver = self._replicas.get(stream_id)
        if driver is None:
            raise NotFound(
                f"node {self._settings.node_id} has no replica of stream {stream_id}: "
                "refresh the metadata"
            )
        return driver

    def _changed(self, driver: ReplicaDriver) -> None:
        self._link.changed(driver.stream_id)

    def _replication_failed(self, stream_id: StreamId, reason: str) -> None:
        driver = self._replicas.get(stream_id)
        if driver is not None and driver.core.is_primary:  # else it is about an earlier epoch
            driver.fail(f"replication failed: {reason}")

    def _open_copysets(self) -> Copysets:
        identity, copies = self._disks.identity, self._disks.copies
        self._copies_lost = identity.has_copies and not copies.are_there
        if identity.cluster_secret and not self._copies_lost:
            self._lost_below = identity.lost_below
        return Copysets(
            self._settings.node_id,
            self._codec,
            copies,
            self._link.request,
            lambda: self._lost_below,
            random=self._rng,
            now_us=lambda: time.time_ns() // 1000,
        )

    # ---- what the metadata repository hears and says

    def _registration(self) -> pb.Register:
        identity = self._disks.identity
        return pb.Register(
            storage_node_id=self._settings.node_id,
            cluster_id=self._settings.cluster_id,
            address=self.address,
            location=self._settings.location,
            cluster_secret=identity.cluster_secret,
            node_secret=identity.node_secret,
            sync_mode=str(self._settings.storage.sync),
            volumes=self._settings.volumes,
            uncommit_reports=[
                report_to_wire(driver.core.report(), driver.store.stored_bytes)
                for driver in (*self._replicas.values(), *self._left.values())
            ],
            chain_replicas=self._chained.found(),
            copies_lost=self._copies_lost,
        )

    def _registered(self, answer: pb.Registered) -> None:
        self._disks.join(answer.cluster_secret, answer.lost_below)
        self._lost_below = answer.lost_below
        self._copies_lost = False  # it is noted
        for stream_id in self._replicas:
            self._link.changed(stream_id)  # what changed while we registered

    def _report_of(self, stream_id: StreamId) -> pb.LogStreamUncommitReport | None:
        driver = self._replicas.get(stream_id)
        if driver is None:
            return None
        return report_to_wire(driver.core.report(), driver.store.stored_bytes)

    def _commit(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        for result in frame.commit.commit_results:
            driver = self._replicas.get(result.log_stream_id)
            if driver is not None:
                driver.commit(commit_from_wire(result))

    async def _add_log_stream(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Frame:
        order = frame.add_log_stream
        async with self._coming_and_going:
            known = self._replicas.get(order.log_stream_id)
            if known is None:
                store = await self._create(order.log_id, order.log_stream_id)
                self._link.changed(self._adopt(store).stream_id)
            elif known.store.last_llsn or known.store.meta.log_id != order.log_id:
                raise AlreadyExists(
                    f"node {self._settings.node_id} has data of stream {order.log_stream_id} at "
                    f"{known.store.path}; if nobody needs it, remove it with "
                    f"`loom node cleanup {self._settings.node_id}`"
                )
        return pb.Frame(done=pb.Done())

    async def _create(self, log_id: LogId, stream_id: StreamId) -> StreamStore:
        try:
            return await self._disks.create(log_id, stream_id)
        except OSError as error:
            raise LoomError(
                f"stream {stream_id} on node {self._settings.node_id}: the disk failed: {error}"
            ) from error

    async def _seal(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        order = frame.seal
        driver = self._replica(order.log_stream_id)
        answer = await driver.seal(order.seal_epoch, order.last_committed_llsn)
        return pb.Frame(seal_response=answer)

    async def _unseal(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        order = frame.unseal
        await self._replica(order.log_stream_id).unseal(order.seal_epoch, order.replicas)
        return pb.Frame(done=pb.Done())

    async def _trim(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        order = frame.trim_log_stream
        await self._replica(order.log_stream_id).trim(order.glsn)
        return pb.Frame(done=pb.Done())

    async def _remove(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        order = frame.remove_log_stream
        async with self._coming_and_going:
            driver = await self._let_go(order.log_stream_id)
            driver = driver or self._left.get(order.log_stream_id)
            if driver is not None:
                if order.delete_data:
                    self._left.pop(order.log_stream_id, None)
                    await self._disks.delete(driver.store)
                else:
                    self._left[order.log_stream_id] = driver
                logger.info("stream %d left this node", order.log_stream_id)
        return pb.Frame(done=pb.Done())

    async def _synchronise(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Frame:
        order = frame.synchronise
        driver = self._replica(order.log_stream_id)
        key = (driver.stream_id, order.destination.address)
        copy = self._copies.get(key)
        if copy is not None and copy.epoch != order.seal_epoch:
            await copy.stop()
            copy = None
        if copy is None:
            copy = Copy(driver, self._readers[driver.stream_id], self._codec, order)
            self._copies[key] = copy
        copy.throttle.bytes_per_s = order.bytes_per_s
        await copy.settled(limits.COPY_ANSWER_S)
        if copy.done and self._copies.get(key) is copy:
            del self._copies[key]  # told; who asks again starts it again
        return pb.Frame(synchronise_response=copy.progress())

    async def _scrub(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        order = frame.scrub
        driver = self._replica(order.log_stream_id)
        scrub = self._scrubs.get(driver.stream_id)
        if order.start and (scrub is None or scrub.done):
            own = self._settings.node_id
            peers = [r.address for r in order.replicas if r.storage_node_id != own]
            scrub = Scrub(driver, self._repairers[driver.stream_id], peers)
            self._scrubs[driver.stream_id] = scrub
        if scrub is None:
            raise NotFound(f"stream {driver.stream_id} was not scrubbed since this node started")
        return pb.Frame(scrub_response=scrub.progress())

    async def _list_commits(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Frame:
        order, count_max = frame.list_commits, limits.COMMITS_LISTED_MAX
        driver = self._replica(order.log_stream_id)
        commits = await self._readers[driver.stream_id].commits_after(order.after, count_max)
        answer = pb.CommitList(
            report=report_to_wire(driver.core.report(), driver.store.stored_bytes),
            ran_epoch=max(0, driver.ran_in),
            commits=[commit_to_wire(driver.stream_id, commit) for commit in commits],
            more=len(commits) == count_max,
        )
        return pb.Frame(commit_list=answer)

    def _copyset_order(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        self._copysets.serving.order(connection, frame, payload)

    def _recover_copyset(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Awaitable[Frame]:
        return self._copysets.recover(connection, frame, payload)

    # ---- what clients and peers ask

    def leader_beat(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        self._link.leader_announced(frame.leader_beat)

    def append(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        driver = self._replica(frame.append.log_stream_id)
        repeated = driver.append(connection, frame, payload)
        if repeated is not None:
            reader = self._readers[driver.stream_id]
            self._service.spawn(self._answer_repeated(connection, frame, reader, repeated))

    async def _answer_repeated(
        self, connection: Connection, frame: Frame, reader: Reader, first_llsn: Llsn
    ) -> None:
        try:
            first_glsn = await self._position_of(reader, first_llsn)
        except Exception as error:
            self._service.answer_error(connection, frame, "append", error)
            return
        answer = pb.Appended(first_glsn=first_glsn, first_llsn=first_llsn)
        connection.send(pb.Frame(id=frame.id, reply=True, appended=answer))

    async def resolve_append(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Frame:
        order = frame.resolve_append
        driver = self._replica(order.log_stream_id)
        answer = pb.AppendResolved()
        first_llsn = driver.resolve(order.seal_epoch, order.producer_id, order.sequence)
        if first_llsn:
            answer.appended = True
            answer.first_llsn = first_llsn
            reader = self._readers[driver.stream_id]
            answer.first_glsn = await self._position_of(reader, first_llsn)
        return pb.Frame(append_resolved=answer)

    async def _position_of(self, reader: Reader, llsn: Llsn) -> Glsn:
        try:
            return await reader.position_of(llsn)
        except Trimmed as error:
            raise AppendUnknown(f"{error}; it was appended, where is not known any more") from None

    def replicate(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        order = frame.replicate
        try:
            self._replica(order.log_stream_id).replicate(order.seal_epoch, payload)
        except LoomError as error:
            refusal = pb.ReplicationRefused(
                log_stream_id=order.log_stream_id, seal_epoch=order.seal_epoch, reason=str(error)
            )
            connection.send(pb.Frame(replication_refused=refusal))

    async def open_replication(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Frame:
        order = frame.open_replication
        self._replica(order.log_stream_id).core.check_primary(order.seal_epoch, order.next_llsn)
        return pb.Frame(done=pb.Done())

    async def sync_start(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        order = frame.sync_start
        driver = self._replica(order.log_stream_id)
        started = await self._fillings[driver.stream_id].start(connection, order)
        return pb.Frame(sync_started=started)

    def sync_batches(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        driver = self._replica(frame.sync_batches.log_stream_id)
        self._fillings[driver.stream_id].take(connection, frame, payload)

    def fetch_batches(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        driver = self._replica(frame.fetch_batches.log_stream_id)
        reader = self._readers[driver.stream_id]  # now: the replica may leave before the task runs
        self._service.spawn(self._fetch_batches(connection, frame, reader))

    async def _fetch_batches(self, connection: Connection, frame: Frame, reader: Reader) -> None:
        order = frame.fetch_batches
        try:
            batches = await reader.stored(order.first_llsn, order.last_llsn)
        except Exception as error:
            self._service.answer_error(connection, frame, "fetch_batches", error)
            return
        answer = pb.Frame(id=frame.id, reply=True, fetched_batches=pb.FetchedBatches())
        connection.send(answer, [batches])

    def read(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        driver = self._replica(frame.read.log_stream_id)
        reader = self._readers[driver.stream_id]  # as above
        self._service.spawn(self._read(connection, frame, driver, reader))

    async def _read(
        self, connection: Connection, frame: Frame, driver: ReplicaDriver, reader: Reader
    ) -> None:
        try:
            chunk = await reader.read(frame.read.glsn)
        except Exception as error:
            self._service.answer_error(connection, frame, "read", error)
            return
        answer = pb.Frame(id=frame.id, reply=True)
        answer.read_response.high_watermark = driver.core.context.high_watermark
        connection.send(answer, [chunk.buffer])

    async def locate(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        order = frame.locate
        if not order.glsn:
            raise InvalidArgument("positions begin at 1")
        driver = self._replica(order.log_stream_id)
        llsn = await self._readers[driver.stream_id].locate(order.glsn)
        high = driver.core.context.high_watermark
        return pb.Frame(located=pb.Located(llsn=llsn, high_watermark=high))

    async def find_time(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        order = frame.find_time
        driver = self._replica(order.log_stream_id)
        high = driver.core.context.high_watermark  # before the look: what is said holds up to here
        reader = self._readers[driver.stream_id]
        position = await reader.find_time(order.timestamp_us, max(order.first_glsn, 1))
        return pb.Frame(found_time=pb.FoundTime(position=position, high_watermark=high))

    def subscribe(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        order = frame.subscribe
        if not order.first_glsn and not order.first_llsn:
            raise InvalidArgument("a subscription needs a first position or a first LLSN")
        driver = self._replica(order.log_stream_id)
        mine = self._subscriptions.setdefault(connection, {})
        if len(mine) >= limits.SUBSCRIPTIONS_PER_CONNECTION_MAX:
            raise Busy("too many subscriptions on this connection: cancel some first")
        reader = self._readers[driver.stream_id]
        subscription = Subscription(driver, reader, self._codec, connection, frame)
        mine[frame.id] = subscription
        subscription.task.add_done_callback(lambda _: mine.pop(frame.id, None))

    def add_credit(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        order = frame.subscription_credit
        subscription = self._subscriptions.get(connection, {}).get(order.subscription_id)
        if subscription is not None:
            subscription.add_credit(order.bytes)

    def cancel_subscription(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> None:
        wanted = frame.cancel_subscription.subscription_id
        subscription = self._subscriptions.get(connection, {}).pop(wanted, None)
        if subscription is not None:
            subscription.cancel()

    def chain_request(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Awaitable[Frame] | None:
        return self._chained.request(connection, frame, payload)

    def copyset_request(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        self._copysets.serving.request(connection, frame, payload)

    def copyset_append(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        self._copysets.append(connection, frame, payload)

    def find_copyset_tail(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Awaitable[Frame]:
        return self._copysets.find_tail(connection, frame, payload)

    def find_copyset_batch(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Awaitable[Frame]:
        return self._copysets.find_batch(connection, frame, payload)

    def find_copyset_landmarks(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Awaitable[Frame]:
        return self._copysets.serving.landmarks(connection, frame, payload)

    def connection_closed(self, connection: Connection) -> None:
        self._copysets.serving.connection_closed(connection)
        self._chained.connection_closed(connection)
        for subscription in self._subscriptions.pop(connection, {}).values():
            subscription.cancel()


class _Requests(Service):
    """What clients and peers may ask of a node."""

    def __init__(self, node: StorageNode) -> None:
        self._node = node
        super().__init__(
            node._codec,
            {
                "leader_beat": node.leader_beat,
                "append": node.append,
                "resolve_append": node.resolve_append,
                "replicate": node.replicate,
                "open_replication": node.open_replication,
                "sync_start": node.sync_start,
                "sync_batches": node.sync_batches,
                "fetch_batches": node.fetch_batches,
                "read": node.read,
                "locate": node.locate,
                "find_time": node.find_time,
                "subscribe": node.subscribe,
                "subscription_credit": node.add_credit,
                "cancel_subscription": node.cancel_subscription,
                "chain_request": node.chain_request,
                "copyset_request": node.copyset_request,
                "copyset_append": node.copyset_append,
                "find_copyset_tail": node.find_copyset_tail,
                "find_copyset_batch": node.find_copyset_batch,
                "find_copyset_landmarks": node.find_copyset_landmarks,
            },
        )

    def connection_closed(self, connection: Connection, error: LoomError) -> None:
        self._node.connection_closed(connection)
