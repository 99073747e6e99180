"""The driver of one replica: carries out the decisions of core/ordered/replica.py.

The hot path runs on the event loop without awaiting: an append is checked and gets its LLSNs. All
appends that arrive in one iteration of the loop go into one disk write, and one frame per backup.
Waiting appends are answered when their commit arrives.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from loomlog import batch, limits
from loomlog.core.ordered.replica import CommitOutcome, Replica, ReplicaContext
from loomlog.errors import Busy, Corrupt, LoomError, Sealed, Trimmed, Unavailable
from loomlog.node.appends import ProducerTable, WaitingAppend, WaitingAppends
from loomlog.node.ordered.replication import Backups
from loomlog.node.ordered.space import StreamSpace
from loomlog.node.volume import Volume
from loomlog.node.workers import finish
from loomlog.storage.files import Finished, UnsyncedError
from loomlog.storage.ordered.stream_store import StreamStore
from loomlog.types import CommitContext, Glsn, Llsn, NodeId, ReplicaState, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection
from loomlog.wire.translate import STATE_TO_WIRE

logger = logging.getLogger(__name__)

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(slots=True, eq=False)
class IncomingCopy:
    """A copy of a peer's entries that is filling this replica, and its progress."""

    connection: Connection
    next_llsn: Llsn
    high_watermark: Glsn


class ReplicaDriver:
    """A replica with its files, its backups and the clients that wait for it."""

    def __init__(
        self,
        node_id: NodeId,
        store: StreamStore,
        backups: Backups,
        volume: Volume,
        on_change: Callable[[StreamId], None],
        on_full: Callable[[], None],
    ) -> None:
        """`on_full` is called when the first append is refused for lack of space."""
        self.store = store
        self.space = StreamSpace(store.meta.stream_id, node_id, volume, on_full)
        self.core = Replica(store.meta.stream_id, node_id, store.meta.epoch, _context_of(store))
        self._backups = backups
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._outbox: list[memoryview] = []  # batches that arrived in this loop iteration,
        self._outbox_headers: list[batch.Header] = []  # and their headers
        self._outbox_first: Llsn = 0
        self._waiting = WaitingAppends()
        self.producers = _producers_of(store)
        self._addresses: dict[NodeId, str] = {}
        self._connections: list[Connection] = []  # to the backups, while it is primary
        self.core.damaged = store.context.damaged
        self.sealing = asyncio.Lock()  # serializes seals, unseals and starts of copies
        self._trimming = asyncio.Lock()  # serializes trims and wipes
        self._renewing = False
        self.ran_in = -1  # the last epoch in which it was unsealed
        self.renewals = 0  # how often its files may have changed other than by growing
        self.when_sealed: Callable[[], Awaitable[None]] | None = None  # awaited once it is SEALED
        self.incoming: IncomingCopy | None = None  # a seal ends it
        self._watchers: dict[object, Callable[[], None]] = {}
        self.closed = False

    @property
    def stream_id(self) -> StreamId:
        return self.core.stream_id

    @property
    def trimmed(self) -> Glsn:
        return self.store.meta.trimmed_glsn

    # ---- appends (primary)

    def append(
        self,
        connection: Connection,
        frame: pb.Frame,
        payload: memoryview,
        refusal: LoomError | None = None,
    ) -> Llsn | None:
        """Append a batch, unless there is a `refusal`. The client is answered when it is committed.

        If the batch repeats one that is committed already, return its first LLSN: the caller has to
        answer. Otherwise return None."""
        header = batch.check(payload)
        self._check_epoch(frame.append.seal_epoch)
        repeated = self.producers.find(header.producer_id, header.sequence)
        if repeated:
            return self._repeat(repeated, connection, frame.id)
        if refusal is not None:
            raise refusal
        if self._waiting.bytes > limits.STREAM_UNCOMMITTED_BYTES_MAX:
            raise Busy(f"stream {self.stream_id} has too much under way: try again in a moment")
        if self.space.volume.nearly_full or self.space.full_backups:
            self.space.refuse()
        first = self.core.reserve(header.count, _expected_tail(frame.append))
        self.producers.note(header.producer_id, header.sequence, first)
        place = self.stream_id, self.core.epoch, first
        batch.assign_llsn(payload, *place)
        last = first + header.count - 1
        self._waiting.add(WaitingAppend(first, last, connection, frame.id, header.size))
        if not self._outbox:
            self._outbox_first = first
            self._loop.call_soon(self._flush)
        self._outbox.append(payload)
        self._outbox_headers.append(batch.with_llsn(header, *place))
        return None

    def is_new(self, frame: pb.Frame, payload: memoryview) -> bool:
        """Return whether a conditional batch is new here. Raise if it cannot be appended now."""
        header = batch.check(payload)
        self._check_epoch(frame.append.seal_epoch)
        if self.producers.find(header.producer_id, header.sequence):
            return False
        self.core.check_running()
        self.core.check_expected(frame.append.expected_tail)
        return True

    def _check_epoch(self, epoch: int) -> None:
        """Refuse other epochs: to resolve an append, the client must know its epoch."""
        if epoch != self.core.epoch:
            raise Sealed(
                f"stream {self.stream_id} is {self.core.state} in epoch {self.core.epoch}, this "
                f"append is for {epoch}: refresh the metadata"
            )

    def require_primary(self, connection: Connection) -> None:
        """Raise Unauthorized unless this is the certificate of the stream's primary."""
        if connection.is_encrypted:
            connection.require("node", self.core.replicas[0] if self.core.replicas else 0)

    def _repeat(self, first_llsn: Llsn, connection: Connection, request_id: int) -> Llsn | None:
        """Return the LLSN of a repeated append if it is committed. Otherwise let this request wait
        in place of the first one."""
        if first_llsn <= self.core.last_committed_llsn:
            return first_llsn
        if self._waiting.redirect(first_llsn, connection, request_id):
            return None
        raise Unavailable(f"stream {self.stream_id}: LLSN {first_llsn} waits for its seal")

    def resolve(self, epoch: int, producer_id: int, sequence: int) -> Llsn:
        """Return the first LLSN of a batch that was sent in `epoch`; 0 if it was certainly not
        appended: all commits of that epoch are here, and it accepts no more entries."""
        core = self.core
        if core.epoch <= epoch or core.state is ReplicaState.SEALING or core.damaged:
            raise Unavailable(
                f"stream {self.stream_id} on node {core.node_id} is {core.state} in epoch "
                f"{core.epoch}: it cannot tell yet how epoch {epoch} ended"
            )
        return self.producers.find_certain(producer_id, sequence)

    def _flush(self) -> None:
        """Write and replicate the batches that arrived in this loop iteration."""
        if not self._outbox:
            return
        batches, self._outbox = self._outbox, []
        headers, self._outbox_headers = self._outbox_headers, []
        last = self.core.next_llsn - 1
        frame = pb.Frame()
        frame.replicate.log_stream_id, frame.replicate.seal_epoch = self.stream_id, self.core.epoch
        for connection in self._connections:
            if connection.closed:
                self.fail(f"replication failed: the backup at {connection.peer} is gone")
            connection.send(frame, batches)
        self._write(batches, headers, self._outbox_first, last)

    def _write(
        self,
        batches: Sequence[memoryview],
        headers: Sequence[batch.Header],
        first: Llsn,
        last: Llsn,
    ) -> None:
        self.store.append(batches, first, last, partial(self._written, last), headers)

    def _written(self, last: Llsn, error: BaseException | None) -> None:
        if error is not None:
            self.disk_failed(f"cannot write: {error}")
            return
        self.core.written(last)
        self._on_change(self.stream_id)

    # ---- replication (backup)

    def replicate(self, epoch: int, payload: memoryview) -> None:
        batches = batch.split(payload)
        if not batches:
            raise Corrupt(f"stream {self.stream_id}: nothing was replicated")
        headers = [header for header, _ in batches]
        first = expected = headers[0].first_llsn
        for header in headers:
            if header.first_llsn != expected or header.stream_id != self.stream_id:
                raise Corrupt(f"stream {self.stream_id}: replicated batches do not follow")
            expected += header.count
        self.core.accept(epoch, first, expected - 1)
        for header in headers:
            self.producers.note(header.producer_id, header.sequence, header.first_llsn)
        self._write([view for _, view in batches], headers, first, expected - 1)

    # ---- commits

    def commit(self, commit: CommitContext) -> None:
        if self._renewing:
            return  # the contents are changing, and are reported afterwards
        outcome = self.core.commit(commit)
        if outcome is CommitOutcome.APPLIED:
            self.apply(commit)
        elif outcome is CommitOutcome.MISSED:
            self._on_change(self.stream_id)

    def apply(self, commit: CommitContext) -> None:
        """Store a commit that the core has applied, and answer the appends that wait for it."""
        stored = partial(self._stored, self.core.context, commit.high_watermark)
        self.store.commit(commit, stored)
        if commit.length:
            self._waiting.answer(commit)
        if self.core.is_precondition_broken:
            self.fail("entries of another stream got the positions that a conditional batch needs")
        self._wake_watchers()

    def _stored(
        self, context: ReplicaContext, high_watermark: Glsn, error: BaseException | None
    ) -> None:
        if error is not None:
            self.disk_failed(f"cannot write a commit: {error}")
        elif context is self.core.context:  # otherwise it was wiped since
            self.core.stored(high_watermark)
            self._on_change(self.stream_id)

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
        """Stop accepting appends: replication or the disk failed, and the vmr decides what is
        kept."""
        if self.core.state is not ReplicaState.RUNNING:
            return
        logger.warning("stream %d seals itself: %s", self.stream_id, reason)
        self.core.self_seal()
        self._on_change(self.stream_id)

    def changed(self) -> None:
        """Called when the replica has to be reported."""
        self._on_change(self.stream_id)

    def disk_failed(self, reason: str) -> None:
        if self.store.error is not None and not self.closed:  # otherwise its files were just closed
            self.damage(reason)

    @property
    def has_failed(self) -> bool:
        """True if its disk failed and it has not recovered since."""
        return self.store.error is not None and not self.closed

    @property
    def is_gone(self) -> bool:
        """True if its directory has vanished, and was not created again since."""
        return self.space.volume.lacks(self.store.path)

    @property
    def should_be_filled(self) -> bool:
        """True if a sync failed, so that a copy from a peer is better than the stored data."""
        return isinstance(self.store.error, UnsyncedError) and bool(self.peers())

    def damage(self, reason: str) -> None:
        """Mark the replica as damaged, so that the vmr fills it from a peer: nothing more can be
        stored here, or committed entries are lost."""
        if not self.core.damaged:
            logger.error("stream %d on node %d: %s", self.stream_id, self.core.node_id, reason)
            self.core.damage()
            self._on_change(self.stream_id)

    async def seal(self, epoch: int, last_committed_llsn: Llsn) -> pb.SealResponse:
        async with self.sealing:
            if epoch != self.core.epoch or self.core.state is not ReplicaState.SEALED:
                await self._seal(epoch, last_committed_llsn)
            if self.when_sealed is not None and self.core.state is ReplicaState.SEALED:
                await self.when_sealed()
        return pb.SealResponse(
            state=STATE_TO_WIRE[self.core.state],
            last_committed_llsn=self.core.last_committed_llsn,
            high_watermark=self.core.context.high_watermark,
        )

    async def _seal(self, epoch: int, last_committed_llsn: Llsn) -> None:
        self._flush()
        self.incoming = None
        missed = epoch > self.core.epoch + 1
        keep = self.core.seal(epoch, last_committed_llsn)
        self.producers.cut(keep)
        # Appends after the last commit have certainly failed; the others wait for their commits.
        error = Sealed(f"stream {self.stream_id} was sealed: append to another stream")
        self._waiting.refuse(last_committed_llsn, error)
        if missed:
            self._waiting.doubt()
        self._on_change(self.stream_id)
        self._wake_watchers()
        if self.is_gone:  # there are no files that could reappear with an older epoch
            self.store.meta = replace(self.store.meta, epoch=epoch)
            return
        if self.store.error is not None:  # it cannot drop entries; the vmr fills or replaces it
            raise LoomError(f"stream {self.stream_id}: the disk failed: {self.store.error}")
        if self.store.last_llsn > keep and not self.core.damaged:
            await self.done(partial(self.store.truncate, keep))
        if epoch != self.store.meta.epoch:  # only after leftovers of the old epoch are deleted
            await self.done(lambda done: self.store.set_meta(epoch=epoch, done=done))
        logger.info(
            "stream %d is %s in epoch %d after LLSN %d",
            self.stream_id,
            self.core.state,
            epoch,
            self.core.last_committed_llsn,
        )

    async def unseal(self, epoch: int, replicas: Sequence[pb.Replica]) -> None:
        async with self.sealing:
            nodes = tuple(replica.storage_node_id for replica in replicas)
            self._addresses = {r.storage_node_id: r.address for r in replicas}
            if nodes[0] == self.core.node_id:
                self._connections = await self._backups.open(
                    self.stream_id, epoch, self.core.next_llsn, replicas[1:]
                )
                self.space.keep_backups(self._connections)
            self.core.unseal(epoch, nodes)
            self.ran_in = epoch
            self.renewals += 1
        self._on_change(self.stream_id)
        logger.info("stream %d runs in epoch %d on nodes %s", self.stream_id, epoch, nodes)

    # ---- copies from peers

    async def begin_copy(self, connection: Connection, order: pb.SyncStart) -> None:
        """Prepare for a copy: drop uncommitted entries, or everything if the copy does not continue
        the committed ones."""
        self.incoming = None
        self._waiting.doubt()  # others may replace its uncommitted entries
        await self._recover_from_errors()
        keep = self.core.begin_synchronise(order.first_llsn)
        if keep is None:
            await self.wipe(order.first_llsn, order.prev_high_watermark, order.trimmed_glsn)
        else:
            self.producers.cut(keep)
            if self.store.last_llsn > keep:
                await self.done(partial(self.store.truncate, keep))
            await self.trim(order.trimmed_glsn)
        high_watermark = self.core.context.high_watermark
        self.incoming = IncomingCopy(connection, self.core.next_llsn, high_watermark)

    def copied(self, headers: Sequence[batch.Header], commits: Sequence[CommitContext]) -> None:
        """Called when batches of a copy are stored: apply their commits."""
        for header in headers:
            self.producers.note(header.producer_id, header.sequence, header.first_llsn)
        for commit in commits:
            self.apply(self.core.synchronised(commit))

    async def _recover_from_errors(self) -> None:
        """Recover from a full disk, which affects no stored data. After other errors everything has
        to be copied."""
        error = self.store.error
        no_room = isinstance(error, OSError) and error.errno in _NO_ROOM
        if no_room and not isinstance(error, UnsyncedError):
            await self.recover()
        elif error is not None:
            self.damage(f"the disk failed: {error}")

    # ---- restarts

    async def wipe(self, first_llsn: Llsn, high_watermark: Glsn, trimmed_glsn: Glsn) -> None:
        """Delete everything. The next entry will be `first_llsn`."""
        logger.warning("stream %d is wiped, to begin at LLSN %d", self.stream_id, first_llsn)
        await self._renew(partial(self.store.restart, first_llsn, high_watermark, trimmed_glsn))
        if self.is_gone:
            await self.space.volume.trust(self.store.path)

    async def recover(self) -> None:
        """Continue with the stored data after a disk failure, as after a restart of the node."""
        await self._renew(self.store.reopen)
        self.core.ask_again()

    async def relocate(self, work: Callable[[Finished], None], volume: Volume) -> None:
        """Continue on another volume. The replica must be SEALED."""
        await self._renew(work)
        self.space.volume = volume

    async def _renew(self, work: Callable[[Finished], None]) -> None:
        async with self._trimming:
            self._renewing = True
            self.renewals += 1
            try:
                await self.done(work)
                self.core.recovered(_context_of(self.store), damaged=self.store.context.damaged)
                self.producers = _producers_of(self.store)
            finally:
                self._renewing = False

    def peers(self) -> list[str]:
        """Return the addresses of the other replicas when this one was last unsealed."""
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
        """Stop serving. Waiting appends are not answered, and subscriptions end."""
        self._flush()
        self.closed = True
        self._wake_watchers()
        self._watchers.clear()
        self._waiting.clear()

    async def done(self, start: Callable[[Finished], None]) -> None:
        """Start disk work of this replica and wait for it."""
        try:
            await finish(start)
        except Exception as error:
            self.disk_failed(str(error))
            raise LoomError(f"stream {self.stream_id}: the disk failed: {error}") from error


def _expected_tail(append: pb.Append) -> Glsn | None:
    return append.expected_tail if append.HasField("expected_tail") else None


def _producers_of(store: StreamStore) -> ProducerTable:
    marks = (mark for marks in store.producers().values() for mark in marks)
    return ProducerTable(marks, store.producers_from)


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
