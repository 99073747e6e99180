"""Copies entries that a replica lacks from another replica: the receiving side.

Only a SEALING replica accepts a copy, from one source at a time. Another start, or a seal, ends it.
Batches are checked and written in order of arrival. When they are stored, their commits are applied
and the source is answered. Batches of a copy that ended before that are not used, and the next
start deletes them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from loomlog import batch
from loomlog.errors import Corrupt, LoomError, Unavailable
from loomlog.node.ordered.replica import IncomingCopy, ReplicaDriver
from loomlog.storage.ordered.stream_reader import check_cover
from loomlog.types import CommitContext, ReplicaState
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection
from loomlog.wire.translate import commit_from_wire

logger = logging.getLogger(__name__)


class CopyDestination:
    """Receives copies for one replica."""

    def __init__(self, driver: ReplicaDriver) -> None:
        self._driver = driver

    async def start(self, connection: Connection, order: pb.SyncStart) -> pb.SyncStarted:
        """Begin a copy. The answer says at which LLSN."""
        driver = self._driver
        async with driver.sealing:
            if driver.core.state is ReplicaState.SEALED and order.seal_epoch == driver.core.epoch:
                return pb.SyncStarted(next_llsn=driver.core.next_llsn)  # it has everything
            self._check_epoch(order.seal_epoch)
            await driver.begin_copy(connection, order)
            next_llsn = driver.core.next_llsn
        driver.changed()
        logger.info("stream %d is filled from LLSN %d on", driver.stream_id, next_llsn)
        return pb.SyncStarted(next_llsn=next_llsn)

    def _check_epoch(self, epoch: int) -> None:
        core = self._driver.core
        if epoch < core.epoch or (epoch == core.epoch and core.state is not ReplicaState.SEALING):
            raise Unavailable(
                f"stream {core.stream_id} on node {core.node_id} is {core.state} in epoch "
                f"{core.epoch}: no copy of epoch {epoch} wanted"
            )
        if epoch == self._driver.ran_in:
            # Entries that it wrote in this epoch may be part of commits, and must be kept.
            raise Unavailable(
                f"stream {core.stream_id} on node {core.node_id} ran in epoch {epoch}: seal it"
            )

    def take(self, connection: Connection, frame: pb.Frame, payload: memoryview) -> None:
        """Receive batches and their commits. They are answered when they are stored."""
        driver, order = self._driver, frame.sync_batches
        copy = driver.incoming
        if copy is None or copy.connection is not connection:
            raise self._ended()
        batches = batch.split(payload)
        commits = [commit_from_wire(commit) for commit in order.commits]
        self._check(copy, [header for header, _ in batches], commits)
        for header, view in batches:
            if header.first_position:
                batch.assign_position(view, 0)  # so that files are the same on all replicas
        first, last = copy.next_llsn, batches[-1][0].last_llsn
        driver.store.append(
            [view for _, view in batches],
            first,
            last,
            partial(self._stored, copy, frame.id, [header for header, _ in batches], commits),
        )
        copy.next_llsn, copy.high_watermark = last + 1, commits[-1].high_watermark

    def _check(
        self, copy: IncomingCopy, headers: Sequence[batch.Header], commits: Sequence[CommitContext]
    ) -> None:
        expected = copy.next_llsn
        for header in headers:
            if header.first_llsn != expected or header.stream_id != self._driver.stream_id:
                raise Corrupt(
                    f"stream {self._driver.stream_id}: LLSN {expected} comes next, not "
                    f"{header.first_llsn} of stream {header.stream_id}"
                )
            expected = header.last_llsn + 1
        ends = [header.last_llsn for header in headers]
        check_cover(commits, ends, copy.next_llsn, copy.high_watermark)

    def _stored(
        self,
        copy: IncomingCopy,
        request_id: int,
        headers: Sequence[batch.Header],
        commits: Sequence[CommitContext],
        error: BaseException | None,
    ) -> None:
        driver = self._driver
        if error is not None:
            driver.disk_failed(f"cannot write: {error}")
            copy.connection.refuse(request_id, LoomError(f"the disk failed: {error}"))
            return
        if driver.incoming is not copy:
            copy.connection.refuse(request_id, self._ended())
            return
        driver.copied(headers, commits)
        copy.connection.send(pb.Frame(id=request_id, reply=True, done=pb.Done()))
        driver.changed()

    def _ended(self) -> Unavailable:
        core = self._driver.core
        return Unavailable(
            f"stream {core.stream_id} on node {core.node_id} is {core.state} in epoch "
            f"{core.epoch}: this copy has ended, start it again"
        )
