"""The log streams of `ordered` on a storage node: its replicas, and what the metadata repository
orders of them.

What clients and peers ask is in requests.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from loomlog import limits
from loomlog.errors import AlreadyExists, LoomError, NotFound
from loomlog.net.connection import Connection, Frame
from loomlog.net.service import Route
from loomlog.node.copying import Copy
from loomlog.node.disks import Disks
from loomlog.node.filling import Filling
from loomlog.node.reading import Reader
from loomlog.node.repairing import Repairer
from loomlog.node.replica import ReplicaDriver
from loomlog.node.replication import Backups
from loomlog.node.scrubbing import Scrub
from loomlog.storage.stream_store import StreamStore
from loomlog.types import LogId, NodeId, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.translate import commit_from_wire, commit_to_wire, report_to_wire

logger = logging.getLogger(__name__)


class Held(NamedTuple):
    """A replica, and who works with it."""

    driver: ReplicaDriver
    reader: Reader
    repairer: Repairer
    filling: Filling


class Streams:
    """All of one node."""

    def __init__(
        self, node_id: NodeId, disks: Disks, codec: Codec, changed: Callable[[StreamId], None]
    ) -> None:
        """`changed`: a replica has something new to report."""
        self._node_id = node_id
        self._disks = disks
        self._codec = codec
        self._changed = changed
        self._backups = Backups(codec, self._replication_failed)
        self._left: dict[StreamId, ReplicaDriver] = {}  # unregistered; their data stays
        self._copies: dict[tuple[StreamId, str], Copy] = {}  # to an address
        self._scrubs: dict[StreamId, Scrub] = {}
        self._coming_and_going = asyncio.Lock()  # an order to remove waits for the one to add
        self.held: dict[StreamId, Held] = {}

    def open(self) -> None:
        """Recover every replica."""
        for store in self._disks.open():
            self._adopt(store)

    async def stop(self) -> None:
        for copy in self._copies.values():
            await copy.stop()
        for scrub in self._scrubs.values():
            await scrub.stop()
        self._backups.close()
        for held in self.held.values():
            held.driver.close()

    def holding(self, stream_id: StreamId) -> Held:
        held = self.held.get(stream_id)
        if held is None:
            raise NotFound(
                f"node {self._node_id} has no replica of stream {stream_id}: refresh the metadata"
            )
        return held

    def _adopt(self, store: StreamStore) -> StreamId:
        driver = ReplicaDriver(
            self._node_id,
            store,
            self._backups,
            self._codec,
            lambda driver: self._changed(driver.stream_id),
        )
        repairer = Repairer(driver, self._disks.reader, self._codec)
        reader = Reader(driver, self._disks.reader, repairer)
        self.held[driver.stream_id] = Held(driver, reader, repairer, Filling(driver, self._codec))
        return driver.stream_id

    async def _let_go(self, stream_id: StreamId) -> ReplicaDriver | None:
        """The replica leaves: nothing is asked of it any more."""
        held = self.held.pop(stream_id, None)
        if held is not None:
            held.driver.close()
        for copy in self._copies_of(stream_id):
            await copy.stop()
        if stream_id in self._scrubs:
            await self._scrubs.pop(stream_id).stop()
        return held.driver if held is not None else None

    def _copies_of(self, stream_id: StreamId) -> list[Copy]:
        keys = [key for key in self._copies if key[0] == stream_id]
        return [self._copies.pop(key) for key in keys]

    def _replication_failed(self, stream_id: StreamId, reason: str) -> None:
        held = self.held.get(stream_id)
        if held is not None and held.driver.core.is_primary:  # else it is about an earlier epoch
            held.driver.fail(f"replication failed: {reason}")

    # ---- what the metadata repository hears

    def reports(self) -> list[pb.LogStreamUncommitReport]:
        """Of all that is here, those that left too."""
        drivers = [held.driver for held in self.held.values()]
        return [_report(driver) for driver in (*drivers, *self._left.values())]

    def report_of(self, stream_id: StreamId) -> pb.LogStreamUncommitReport | None:
        held = self.held.get(stream_id)
        return _report(held.driver) if held is not None else None

    # ---- what it orders

    def orders(self) -> dict[str, Route]:
        return {
            "commit": self._commit,
            "add_log_stream": self._add,
            "seal": self._seal,
            "unseal": self._unseal,
            "trim_log_stream": self._trim,
            "remove_log_stream": self._remove,
            "synchronise": self._synchronise,
            "scrub": self._scrub,
            "list_commits": self._list_commits,
        }

    def _commit(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        for result in frame.commit.commit_results:
            held = self.held.get(result.log_stream_id)
            if held is not None:
                held.driver.commit(commit_from_wire(result))

    async def _add(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        order = frame.add_log_stream
        async with self._coming_and_going:
            held = self.held.get(order.log_stream_id)
            if held is None:
                store = await self._create(order.log_id, order.log_stream_id)
                self._changed(self._adopt(store))
            else:
                self._check_empty(held.driver.store, order.log_id)
        return pb.Frame(done=pb.Done())

    def _check_empty(self, store: StreamStore, log_id: LogId) -> None:
        """An order to add may be repeated, until the replica has got something."""
        if store.last_llsn or store.meta.log_id != log_id:
            raise AlreadyExists(
                f"node {self._node_id} has data of stream {store.meta.stream_id} at "
                f"{store.path}; if nobody needs it, remove it with "
                f"`loom node cleanup {self._node_id}`"
            )

    async def _create(self, log_id: LogId, stream_id: StreamId) -> StreamStore:
        try:
            return await self._disks.create(log_id, stream_id)
        except OSError as error:
            raise LoomError(
                f"stream {stream_id} on node {self._node_id}: the disk failed: {error}"
            ) from error

    async def _seal(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        order = frame.seal
        driver = self.holding(order.log_stream_id).driver
        answer = await driver.seal(order.seal_epoch, order.last_committed_llsn)
        return pb.Frame(seal_response=answer)

    async def _unseal(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        order = frame.unseal
        driver = self.holding(order.log_stream_id).driver
        await driver.unseal(order.seal_epoch, order.replicas)
        return pb.Frame(done=pb.Done())

    async def _trim(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        order = frame.trim_log_stream
        await self.holding(order.log_stream_id).driver.trim(order.glsn)
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
        held = self.holding(order.log_stream_id)
        key = (order.log_stream_id, order.destination.address)
        copy = self._copies.get(key)
        if copy is not None and copy.epoch != order.seal_epoch:
            await copy.stop()
            copy = None
        if copy is None:
            copy = Copy(held.driver, held.reader, self._codec, order)
            self._copies[key] = copy
        copy.throttle.bytes_per_s = order.bytes_per_s
        await copy.settled(limits.COPY_ANSWER_S)
        if copy.done and self._copies.get(key) is copy:
            del self._copies[key]  # told; who asks again starts it again
        return pb.Frame(synchronise_response=copy.progress())

    async def _scrub(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        order = frame.scrub
        held = self.holding(order.log_stream_id)
        scrub = self._scrubs.get(order.log_stream_id)
        if order.start and (scrub is None or scrub.done):
            peers = [r.address for r in order.replicas if r.storage_node_id != self._node_id]
            scrub = Scrub(held.driver, held.repairer, peers)
            self._scrubs[order.log_stream_id] = scrub
        if scrub is None:
            raise NotFound(f"stream {order.log_stream_id} was not scrubbed since this node started")
        return pb.Frame(scrub_response=scrub.progress())

    async def _list_commits(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Frame:
        order, count_max = frame.list_commits, limits.COMMITS_LISTED_MAX
        held = self.holding(order.log_stream_id)
        commits = await held.reader.commits_after(order.after, count_max)
        answer = pb.CommitList(
            report=_report(held.driver),
            ran_epoch=max(0, held.driver.ran_in),
            commits=[commit_to_wire(order.log_stream_id, commit) for commit in commits],
            more=len(commits) == count_max,
        )
        return pb.Frame(commit_list=answer)


def _report(driver: ReplicaDriver) -> pb.LogStreamUncommitReport:
    return report_to_wire(driver.core.report(), driver.store.stored_bytes)
