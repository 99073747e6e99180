"""The driver of one replica: carries out what the pure core.ordered.replica decides.

The hot path runs on the event loop without awaiting: an append is checked, gets its LLSNs, and
goes with all that arrived in the same turn into one disk write and one frame per backup. Waiting
appends are answered when their commit comes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from loomlog import batch, limits
from loomlog.core.ordered.replica import CommitOutcome, Replica, ReplicaContext
from loomlog.errors import Busy, Corrupt, LoomError, Sealed, Trimmed, Unavailable
from loomlog.net.connection import Connection
from loomlog.node.producers import ProducerTable
from loomlog.node.replication import Backups
from loomlog.node.workers import finish
from loomlog.storage.files import Finished
from loomlog.storage.stream_store import StreamStore
from loomlog.types import CommitContext, Glsn, Llsn, NodeId, ReplicaState, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.translate import STATE_TO_WIRE

logger = logging.getLogger(__name__)


class WaitingAppend(NamedTuple):
    """An append that was taken and has no answer yet."""

    first_llsn: Llsn
    last_llsn: Llsn
    connection: Connection
    request_id: int
    size: int


class ReplicaDriver:
    """A replica with its files, its backups and the clients that wait for it."""

    def __init__(
        self,
        node_id: NodeId,
        store: StreamStore,
        backups: Backups,
        codec: Codec,
        on_change: Callable[[ReplicaDriver], None],
    ) -> None:
        self.store = store
        self.core = Replica(store.meta.stream_id, node_id, store.meta.epoch, _context_of(store))
        self._backups = backups
        self._codec = codec
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._outbox: list[memoryview] = []  # batches that arrived in this turn of the loop
        self._outbox_first: Llsn = 0
        self._waiting: deque[WaitingAppend] = deque()
        self._waiting_bytes = 0
        self.producers = _producers_of(store)
        self._addresses: dict[NodeId, str] = {}
        self.core.damaged = store.context.damaged
        self.sealing = asyncio.Lock()  # a seal, an unseal and the start of a copy take turns
        self._trimming = asyncio.Lock()  # a trim and a wipe take turns
        self._renewing = False
        self.ran_in = -1  # the last epoch in which it was unsealed
        self.source: object | None = None  # who fills this replica; a seal ends that
        self._watchers: dict[object, Callable[[], None]] = {}
        self.closed = False

    @property
    def stream_id(self) -> StreamId:
        return self.core.stream_id

    @property
    def trimmed(self) -> Glsn:
        return self.store.meta.trimmed_glsn

    # ---- appends (primary)

    def append(self, connection: Connection, frame: pb.Frame, payload: memoryview) -> Llsn | None:
        """Take a batch; it is answered when it is committed. Returns None, or the first LLSN of
        the committed batch that this one repeats, which is for the caller to answer."""
        header = batch.check(payload)
        self._check_epoch(frame.append.seal_epoch)
        repeated = self.producers.find(header.producer_id, header.sequence)
        if repeated:
            return self._repeat(repeated, connection, frame.id)
        if self._waiting_bytes > limits.STREAM_UNCOMMITTED_BYTES_MAX:
            raise Busy(f"stream {self.stream_id} has too much under way: try again in a moment")
        first = self.core.reserve(header.count)
        self.producers.note(header.producer_id, header.sequence, first)
        batch.assign_llsn(payload, self.stream_id, self.core.epoch, first)
        last = first + header.count - 1
        self._waiting.append(WaitingAppend(first, last, connection, frame.id, header.size))
        self._waiting_bytes += header.size
        if not self._outbox:
            self._outbox_first = first
            self._loop.call_soon(self._flush)
        self._outbox.append(payload)
        return None

    def _check_epoch(self, epoch: int) -> None:
        """A client must know in which epoch it appended, or it could not ask for the outcome."""
        if epoch != self.core.epoch:
            raise Sealed(
                f"stream {self.stream_id} is {self.core.state} in epoch {self.core.epoch}, this "
                f"append is for {epoch}: refresh the metadata"
            )

    def _repeat(self, first_llsn: Llsn, connection: Connection, request_id: int) -> Llsn | None:
        """An append that is here: still under way, then its answer goes to who asked last."""
        if first_llsn <= self.core.last_committed_llsn:
            return first_llsn
        for number, append in enumerate(self._waiting):
            if append.first_llsn == first_llsn:
                self._waiting[number] = append._replace(
                    connection=connection, request_id=request_id
                )
                return None
        raise Unavailable(f"stream {self.stream_id}: LLSN {first_llsn} waits for its seal")

    def resolve(self, epoch: int, producer_id: int, sequence: int) -> Llsn:
        """What became of a batch that was sent in `epoch`: its first LLSN, or 0: it is gone, for
        certain, since all commits of that epoch are here and no more entries of it are taken."""
        core = self.core
        if core.epoch <= epoch or core.state is ReplicaState.SEALING or core.damaged:
            raise Unavailable(
                f"stream {self.stream_id} on node {core.node_id} is {core.state} in epoch "
                f"{core.epoch}: it cannot tell yet how epoch {epoch} ended"
            )
        return self.producers.find_certain(producer_id, sequence)

    def _flush(self) -> None:
        """Write and replicate what arrived in this turn."""
        if not self._outbox:
            return
        batches, self._outbox = self._outbox, []
        last = self.core.next_llsn - 1
        self._backups.replicate(self.stream_id, self.core.epoch, self._backup_addresses(), batches)
        self._write(batches, self._outbox_first, last)

    def _backup_addresses(self) -> list[str]:
        return [self._addresses[node] for node in self.core.replicas[1:]]

    def _write(self, batches: Sequence[memoryview], first: Llsn, last: Llsn) -> None:
        self.store.append(batches, first, last, partial(self._written, last))

    def _written(self, last: Llsn, error: BaseException | None) -> None:
        if error is not None:
            self.disk_failed(f"cannot write: {error}")
            return
        self.core.written(last)
        self._on_change(self)

    # ---- replication (backup)

    def replicate(self, epoch: int, payload: memoryview) -> None:
        batches = batch.split(payload)
        first, last = batches[0][0].first_llsn, batches[-1][0].last_llsn
        expected = first
        for header, _ in batches:
            if header.first_llsn != expected or header.stream_id != self.stream_id:
                raise Corrupt(f"stream {self.stream_id}: replicated batches do not follow")
            expected = header.last_llsn + 1
        self.core.accept(epoch, first, last)
        for header, _ in batches:
            self.producers.note(header.producer_id, header.sequence, header.first_llsn)
        self._write([view for _, view in batches], first, last)

    # ---- commits

    def commit(self, commit: CommitContext) -> None:
        if self._renewing:
            return  # what it holds is about to change; its reports will tell
        outcome = self.core.commit(commit)
        if outcome is CommitOutcome.APPLIED:
            self.apply(commit)
        elif outcome is CommitOutcome.MISSED:
            self._on_change(self)

    def apply(self, commit: CommitContext) -> None:
        """Store a commit that the core has taken, and tell who waits for it."""
        stored = partial(self._stored, self.core.context, commit.high_watermark)
        self.store.commit(commit, stored)
        if commit.length:
            self._answer(commit)
        self._wake_watchers()

    def _stored(
        self, context: ReplicaContext, high_watermark: Glsn, error: BaseException | None
    ) -> None:
        if error is not None:
            self.disk_failed(f"cannot write a commit: {error}")
        elif context is self.core.context:  # else it was wiped since
            self.core.stored(high_watermark)
            self._on_change(self)

    def _answer(self, commit: CommitContext) -> None:
        waiting, last = self._waiting, commit.last_llsn
        distance = commit.glsn - commit.llsn
        while waiting and waiting[0].last_llsn <= last:
            append = waiting.popleft()
            self._waiting_bytes -= append.size
            answer = pb.Appended(
                first_glsn=append.first_llsn + distance, first_llsn=append.first_llsn
            )
            append.connection.send(pb.Frame(id=append.request_id, reply=True, appended=answer))

    # ---- watching commits and seals (subscriptions)

    def watch(self, key: object, wake: Callable[[], None]) -> None:
        self._watchers[key] = wake

    def unwatch(self, key: object) -> None:
        self._watchers.pop(key, None)

    def _wake_watchers(self) -> None:
        for wake in list(self._watchers.values()):
            wake()

    # ---- sealing

    def fail(self, reason: str) -> None:
        """Replication or the disk failed: take no more, and let the MR decide what holds."""
        if self.core.state is not ReplicaState.RUNNING:
            return
        logger.warning("stream %d seals itself: %s", self.stream_id, reason)
        self.core.self_seal()
        self._on_change(self)

    def changed(self) -> None:
        """There is something new to report."""
        self._on_change(self)

    def disk_failed(self, reason: str) -> None:
        if self.store.error is not None and not self.closed:  # else its files are only closed
            self.damage(reason)

    def damage(self, reason: str) -> None:
        """Nothing more can be stored here, or what was committed is lost: the MR has it filled
        from a peer."""
        if not self.core.damaged:
            logger.error("stream %d on node %d: %s", self.stream_id, self.core.node_id, reason)
            self.core.damage()
            self._on_change(self)

    async def seal(self, epoch: int, last_committed_llsn: Llsn) -> pb.SealResponse:
        async with self.sealing:
            if epoch != self.core.epoch or self.core.state is not ReplicaState.SEALED:
                await self._seal(epoch, last_committed_llsn)
        return pb.SealResponse(
            state=STATE_TO_WIRE[self.core.state],
            last_committed_llsn=self.core.last_committed_llsn,
            high_watermark=self.core.context.high_watermark,
        )

    async def _seal(self, epoch: int, last_committed_llsn: Llsn) -> None:
        self._flush()
        self.source = None
        missed = epoch > self.core.epoch + 1
        keep = self.core.seal(epoch, last_committed_llsn)
        self.producers.cut(keep)
        self._refuse_waiting(last_committed_llsn)
        if missed:
            self.doubt_waiting()
        self._on_change(self)
        self._wake_watchers()
        if self.store.error is not None:  # it can drop nothing; the MR has it filled or replaced
            raise LoomError(f"stream {self.stream_id}: the disk failed: {self.store.error}")
        if self.store.last_llsn > keep and not self.core.damaged:
            await self.done(partial(self.store.truncate, keep))
        if epoch != self.store.meta.epoch:  # only after the leftovers of the old epoch are gone
            await self.done(lambda done: self.store.set_meta(epoch=epoch, done=done))
        logger.info(
            "stream %d is %s in epoch %d after LLSN %d",
            self.stream_id,
            self.core.state,
            epoch,
            self.core.last_committed_llsn,
        )

    def _refuse_waiting(self, last_committed_llsn: Llsn) -> None:
        """Appends past the last commit have failed for certain; the others wait for theirs."""
        error = Sealed(f"stream {self.stream_id} was sealed: append to another stream")
        while self._waiting and self._waiting[-1].last_llsn > last_committed_llsn:
            append = self._waiting.pop()
            self._waiting_bytes -= append.size
            frame = self._codec.failure_frame(error)
            frame.id, frame.reply = append.request_id, True
            append.connection.send(frame)

    def doubt_waiting(self) -> None:
        """Their LLSNs may have been given to others since: without a position in the answer, the
        clients find out what became of them."""
        for append in self._waiting:
            answer = pb.Frame(id=append.request_id, reply=True, appended=pb.Appended())
            append.connection.send(answer)
        self._waiting.clear()
        self._waiting_bytes = 0

    async def unseal(self, epoch: int, replicas: Sequence[pb.Replica]) -> None:
        async with self.sealing:
            nodes = tuple(replica.storage_node_id for replica in replicas)
            self._addresses = {r.storage_node_id: r.address for r in replicas}
            if nodes[0] == self.core.node_id:
                await self._backups.open(
                    self.stream_id,
                    epoch,
                    self.core.next_llsn,
                    [replica.address for replica in replicas[1:]],
                )
            self.core.unseal(epoch, nodes)
            self.ran_in = epoch
        self._on_change(self)
        logger.info("stream %d runs in epoch %d on nodes %s", self.stream_id, epoch, nodes)

    # ---- beginning anew

    async def wipe(self, first_llsn: Llsn, high_watermark: Glsn, trimmed_glsn: Glsn) -> None:
        """Drop everything; the next entry will be `first_llsn`."""
        logger.warning("stream %d is wiped, to begin at LLSN %d", self.stream_id, first_llsn)
        await self._renew(partial(self.store.restart, first_llsn, high_watermark, trimmed_glsn))

    async def recover(self) -> None:
        """Get over a failed disk with what is stored, as a restart of the node would."""
        await self._renew(self.store.reopen)

    async def _renew(self, work: Callable[[Finished], None]) -> None:
        async with self._trimming:
            self._renewing = True
            try:
                await self.done(work)
                self.core.recovered(_context_of(self.store), damaged=self.store.context.damaged)
                self.producers = _producers_of(self.store)
            finally:
                self._renewing = False

    def peers(self) -> list[str]:
        """Addresses of the other replicas, as of the last time that this one ran."""
        return [a for node, a in self._addresses.items() if node != self.core.node_id]

    # ---- trimming and the end

    async def trim(self, glsn: Glsn) -> None:
        async with self._trimming:
            if glsn > self.trimmed:
                await self.done(partial(self.store.trim, glsn))
                low = self.core.context.local_low_watermark
                self.core.context.local_low_watermark = max(low, glsn + 1) if low else 0

    def check_kept(self, glsn: Glsn) -> None:
        if glsn <= self.trimmed:
            raise Trimmed(f"position {glsn} was trimmed: the first kept is {self.trimmed + 1}")

    def close(self) -> None:
        """The replica leaves: nobody is answered any more, subscriptions end."""
        self._flush()
        self.closed = True
        self._wake_watchers()
        self._watchers.clear()
        self._waiting.clear()

    async def done(self, start: Callable[[Finished], None]) -> None:
        """Wait for disk work of this replica."""
        try:
            await finish(start)
        except Exception as error:
            self.disk_failed(str(error))
            raise LoomError(f"stream {self.stream_id}: the disk failed: {error}") from error


def _producers_of(store: StreamStore) -> ProducerTable:
    marks = (mark for marks in store.producers().values() for mark in marks)
    return ProducerTable(marks, store.first_llsn)


def _context_of(store: StreamStore) -> ReplicaContext:
    recovered = store.context
    return ReplicaContext(
        high_watermark=recovered.high_watermark,
        uncommitted_llsn_begin=recovered.uncommitted_begin,
        uncommitted_llsn_end=recovered.uncommitted_end,
        local_low_watermark=recovered.local_low[0],
        local_high_watermark=recovered.local_high[0],
        stored_high_watermark=recovered.high_watermark,
    )
