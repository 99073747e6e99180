"""Filling a replica with what it misses: the side that gets it.

Only a SEALING replica is filled, by one source at a time; a new start or a seal ends an earlier
one. What arrives is checked, written in the order of its arrival, and counts when it is stored:
then its commits are applied and the source is answered. What was written for a source that has
lost its place never counts; the next start cuts it off.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from loomlog import batch
from loomlog.errors import Corrupt, LoomError, Unavailable
from loomlog.net.connection import Connection
from loomlog.node.replica import ReplicaDriver
from loomlog.storage.parts import check_cover
from loomlog.types import CommitContext, Glsn, Llsn, ReplicaState
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.translate import commit_from_wire

logger = logging.getLogger(__name__)

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(slots=True, eq=False)
class Source:
    """Who fills, and how far what it sent goes."""

    connection: Connection
    next_llsn: Llsn
    high_watermark: Glsn


class Filling:
    """The filling of one replica."""

    def __init__(self, driver: ReplicaDriver, codec: Codec) -> None:
        self._driver = driver
        self._codec = codec

    async def start(self, connection: Connection, order: pb.SyncStart) -> pb.SyncStarted:
        """A source wants to fill this replica; tell it where to begin."""
        driver = self._driver
        async with driver.sealing:
            if driver.core.state is ReplicaState.SEALED and order.seal_epoch == driver.core.epoch:
                return pb.SyncStarted(next_llsn=driver.core.next_llsn)  # it has everything
            self._check_epoch(order.seal_epoch)
            driver.source = None
            driver.doubt_waiting()  # its own entries may give way to others
            await self._get_over_errors()
            await self._make_ready(order)
            next_llsn = driver.core.next_llsn
            driver.source = Source(connection, next_llsn, driver.core.context.high_watermark)
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
            # It ran in this epoch: what it wrote since may count for commits, and must stay.
            raise Unavailable(
                f"stream {core.stream_id} on node {core.node_id} ran in epoch {epoch}: seal it"
            )

    async def _get_over_errors(self) -> None:
        """Lack of room harmed nothing that is stored; after any other error it is copied anew."""
        error = self._driver.store.error
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            await self._driver.recover()
        elif error is not None:
            self._driver.damage(f"the disk failed: {error}")

    async def _make_ready(self, order: pb.SyncStart) -> None:
        """Drop what does not count; everything, if what follows cannot be had or trusted."""
        driver = self._driver
        keep = driver.core.begin_synchronise(order.first_llsn)
        if keep is None:
            await driver.wipe(order.first_llsn, order.prev_high_watermark, order.trimmed_glsn)
            return
        driver.producers.cut(keep)
        if driver.store.last_llsn > keep:
            await driver.done(partial(driver.store.truncate, keep))
        await driver.trim(order.trimmed_glsn)

    def take(self, connection: Connection, frame: pb.Frame, payload: memoryview) -> None:
        """Batches and their commits; answered when they are stored."""
        driver, order = self._driver, frame.sync_batches
        source = driver.source
        if not isinstance(source, Source) or source.connection is not connection:
            raise self._ended()
        batches = batch.split(payload)
        commits = [commit_from_wire(commit) for commit in order.commits]
        self._check(source, [header for header, _ in batches], commits)
        for header, view in batches:
            if header.first_position:
                batch.assign_position(view, 0)  # files are the same on all replicas
        first, last = source.next_llsn, batches[-1][0].last_llsn
        driver.store.append(
            [view for _, view in batches],
            first,
            last,
            partial(self._stored, source, frame.id, [header for header, _ in batches], commits),
        )
        source.next_llsn, source.high_watermark = last + 1, commits[-1].high_watermark

    def _check(
        self, source: Source, headers: Sequence[batch.Header], commits: Sequence[CommitContext]
    ) -> None:
        expected = source.next_llsn
        for header in headers:
            if header.first_llsn != expected or header.stream_id != self._driver.stream_id:
                raise Corrupt(
                    f"stream {self._driver.stream_id}: LLSN {expected} comes next, not "
                    f"{header.first_llsn} of stream {header.stream_id}"
                )
            expected = header.last_llsn + 1
        ends = [header.last_llsn for header in headers]
        check_cover(commits, ends, source.next_llsn, source.high_watermark)

    def _stored(
        self,
        source: Source,
        request_id: int,
        headers: Sequence[batch.Header],
        commits: Sequence[CommitContext],
        error: BaseException | None,
    ) -> None:
        driver = self._driver
        if error is not None:
            driver.disk_failed(f"cannot write: {error}")
            self._refuse(source, request_id, LoomError(f"the disk failed: {error}"))
            return
        if driver.source is not source:
            self._refuse(source, request_id, self._ended())
            return
        for header in headers:
            driver.producers.note(header.producer_id, header.sequence, header.first_llsn)
        for commit in commits:
            driver.apply(driver.core.synchronised(commit))
        source.connection.send(pb.Frame(id=request_id, reply=True, done=pb.Done()))
        driver.changed()

    def _ended(self) -> Unavailable:
        core = self._driver.core
        return Unavailable(
            f"stream {core.stream_id} on node {core.node_id} is {core.state} in epoch "
            f"{core.epoch}: this copy has ended, start it again"
        )

    def _refuse(self, source: Source, request_id: int, error: LoomError) -> None:
        answer = self._codec.failure_frame(error)
        answer.id, answer.reply = request_id, True
        source.connection.send(answer)
