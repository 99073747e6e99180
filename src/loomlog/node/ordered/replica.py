"""The driver of one replica: carries out what the pure core.ordered.replica decides.

The hot path runs on the event loop without awaiting: an append is checked, gets its LLSNs, and
goes with all that arrived in the same turn into one disk write and one frame per backup. Waiting
appends are answered when their commit comes.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from loomlog import batch, limits
from loomlog.core.ordered.replica import CommitOutcome, Replica, ReplicaContext
from loomlog.errors import Busy, Corrupt, LoomError, Sealed, Trimmed, Unavailable
from loomlog.node.ordered.appends import ProducerTable, WaitingAppend, WaitingAppends
from loomlog.node.ordered.replication import Backups
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
    """A copy of a peer's entries that fills this replica, and how far it has come."""

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
        self._volume = volume
        self._on_full = on_full
        self._has_refused = False  # an append for lack of space
        self._full_backups: dict[Connection, str] = {}  # why no append may begin
        self._primary: Connection | None = None  # that asked to replicate, while it is backup
        self.core = Replica(store.meta.stream_id, node_id, store.meta.epoch, _context_of(store))
        self._backups = backups
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._outbox: list[memoryview] = []  # batches that arrived in this turn of the loop
        self._outbox_first: Llsn = 0
        self._waiting = WaitingAppends()
        self.producers = _producers_of(store)
        self._addresses: dict[NodeId, str] = {}
        self._connections: list[Connection] = []  # to the backups, while it is primary
        self.core.damaged = store.context.damaged
        self.sealing = asyncio.Lock()  # a seal, an unseal and the start of a copy take turns
        self._trimming = asyncio.Lock()  # a trim and a wipe take turns
        self._renewing = False
        self.ran_in = -1  # the last epoch in which it was unsealed
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

    def append(self, connection: Connection, frame: pb.Frame, payload: memoryview) -> Llsn | None:
        """Take a batch; it is answered when it is committed. Return None, or the first LLSN of the
        committed batch that this one repeats, which the caller has to answer."""
        header = batch.check(payload)
        self._check_epoch(frame.append.seal_epoch)
        repeated = self.producers.find(header.producer_id, header.sequence)
        if repeated:
            return self._repeat(repeated, connection, frame.id)
        if self._waiting.bytes > limits.STREAM_UNCOMMITTED_BYTES_MAX:
            raise Busy(f"stream {self.stream_id} has too much under way: try again in a moment")
        if self._volume.nearly_full or self._full_backups:
            self._refuse_for_space()
        first = self.core.reserve(header.count)
        self.producers.note(header.producer_id, header.sequence, first)
        batch.assign_llsn(payload, self.stream_id, self.core.epoch, first)
        last = first + header.count - 1
        self._waiting.add(WaitingAppend(first, last, connection, frame.id, header.size))
        if not self._outbox:
            self._outbox_first = first
            self._loop.call_soon(self._flush)
        self._outbox.append(payload)
        return None

    def _check_epoch(self, epoch: int) -> None:
        """Refuse other epochs: a client must know in which epoch it appended, to resolve it."""
        if epoch != self.core.epoch:
            raise Sealed(
                f"stream {self.stream_id} is {self.core.state} in epoch {self.core.epoch}, this "
                f"append is for {epoch}: refresh the metadata"
            )

    # ---- space

    def _refuse_for_space(self) -> None:
        if not self._has_refused:
            self._has_refused = True
            self._on_full()
        raise Busy(f"stream {self.stream_id} takes no appends: {self._lacks_space}")

    @property
    def refuses_for_space(self) -> str:
        """The reason why appends are refused; "" if none was tried, or there is room again."""
        self._has_refused = self._has_refused and bool(self._lacks_space)
        return self._lacks_space if self._has_refused else ""

    @property
    def _lacks_space(self) -> str:
        """The reason why no append may begin; "" if they may."""
        if self._volume.nearly_full:
            return f"node {self.core.node_id}: {self._volume.condition}"
        return next(iter(self._full_backups.values()), "")

    def require_primary(self, connection: Connection) -> None:
        """Raise Unauthorized unless this is the certificate of the stream's primary."""
        connection.require("node", self.core.replicas[0] if self.core.replicas else 0)

    def serve_primary(self, connection: Connection) -> None:
        """Tell this primary from now on when no append may begin."""
        self._primary = connection
        if self._volume.nearly_full:
            self.volume_changed()

    def volume_changed(self) -> None:
        """Called when the volume is nearly full, or not any more. What the primary has under way is
        still taken: there is a reserve for it."""
        if self._primary is not None and not self._primary.closed:
            reason = self._lacks_space if self._volume.nearly_full else ""
            paused = pb.ReplicationPaused(log_stream_id=self.stream_id, reason=reason)
            self._primary.send(pb.Frame(replication_paused=paused))

    def backup_paused(self, connection: Connection, reason: str) -> None:
        """Called when a backup is nearly full, or not any more."""
        self._full_backups.pop(connection, None)
        if reason:
            self._full_backups[connection] = reason

    def _repeat(self, first_llsn: Llsn, connection: Connection, request_id: int) -> Llsn | None:
        """Return where a repeated append is if it is committed; else answer this request later
        instead of the first one."""
        if first_llsn <= self.core.last_committed_llsn:
            return first_llsn
        if self._waiting.redirect(first_llsn, connection, request_id):
            return None
        raise Unavailable(f"stream {self.stream_id}: LLSN {first_llsn} waits for its seal")

    def resolve(self, epoch: int, producer_id: int, sequence: int) -> Llsn:
        """Return the first LLSN of a batch that was sent in `epoch`, or 0 if it is certainly gone:
        all commits of that epoch are here, and no more entries of it are taken."""
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
        message = pb.Replicate(log_stream_id=self.stream_id, seal_epoch=self.core.epoch)
        for connection in self._connections:
            if connection.closed:
                self.fail(f"replication failed: the backup at {connection.peer} is gone")
            connection.send(pb.Frame(replicate=message), batches)
        self._write(batches, self._outbox_first, last)

    def _write(self, batches: Sequence[memoryview], first: Llsn, last: Llsn) -> None:
        self.store.append(batches, first, last, partial(self._written, last))

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
            return  # its content is about to change, and is reported afterwards
        outcome = self.core.commit(commit)
        if outcome is CommitOutcome.APPLIED:
            self.apply(commit)
        elif outcome is CommitOutcome.MISSED:
            self._on_change(self.stream_id)

    def apply(self, commit: CommitContext) -> None:
        """Store a commit that the core has taken, and answer the appends that wait for it."""
        stored = partial(self._stored, self.core.context, commit.high_watermark)
        self.store.commit(commit, stored)
        if commit.length:
            self._waiting.answer(commit)
        self._wake_watchers()

    def _stored(
        self, context: ReplicaContext, high_watermark: Glsn, error: BaseException | None
    ) -> None:
        if error is not None:
            self.disk_failed(f"cannot write a commit: {error}")
        elif context is self.core.context:  # else it was wiped since
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
        """Take no more after replication or the disk failed: the vmr decides what holds."""
        if self.core.state is not ReplicaState.RUNNING:
            return
        logger.warning("stream %d seals itself: %s", self.stream_id, reason)
        self.core.self_seal()
        self._on_change(self.stream_id)

    def changed(self) -> None:
        """Report the replica soon."""
        self._on_change(self.stream_id)

    def disk_failed(self, reason: str) -> None:
        if self.store.error is not None and not self.closed:  # else its files are only closed
            self.damage(reason)

    @property
    def has_failed(self) -> bool:
        """Whether its disk failed, and it has not recovered since."""
        return self.store.error is not None and not self.closed

    @property
    def should_be_filled(self) -> bool:
        """Whether a sync failed: a copy from a peer is better than what is stored."""
        return isinstance(self.store.error, UnsyncedError) and bool(self.peers())

    def damage(self, reason: str) -> None:
        """Mark the replica as damaged, so that the vmr has it filled from a peer: nothing more can
        be stored here, or committed entries are lost."""
        if not self.core.damaged:
            logger.error("stream %d on node %d: %s", self.stream_id, self.core.node_id, reason)
            self.core.damage()
            self._on_change(self.stream_id)

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
        self.incoming = None
        missed = epoch > self.core.epoch + 1
        keep = self.core.seal(epoch, last_committed_llsn)
        self.producers.cut(keep)
        # Appends past the last commit have certainly failed; the others wait for their commits.
        error = Sealed(f"stream {self.stream_id} was sealed: append to another stream")
        self._waiting.refuse(last_committed_llsn, error)
        if missed:
            self._waiting.doubt()
        self._on_change(self.stream_id)
        self._wake_watchers()
        if self.store.error is not None:  # it can drop nothing; the vmr has it filled or replaced
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

    async def unseal(self, epoch: int, replicas: Sequence[pb.Replica]) -> None:
        async with self.sealing:
            nodes = tuple(replica.storage_node_id for replica in replicas)
            self._addresses = {r.storage_node_id: r.address for r in replicas}
            backups = [replica.address for replica in replicas[1:]]
            if nodes[0] == self.core.node_id:
                self._connections = await self._backups.open(
                    self.stream_id, epoch, self.core.next_llsn, backups
                )
                for connection in set(self._full_backups).difference(self._connections):
                    del self._full_backups[connection]
            self.core.unseal(epoch, nodes)
            self.ran_in = epoch
        self._on_change(self.stream_id)
        logger.info("stream %d runs in epoch %d on nodes %s", self.stream_id, epoch, nodes)

    # ---- copies from peers

    async def begin_copy(self, connection: Connection, order: pb.SyncStart) -> None:
        """Drop what does not count before a copy; everything, if the copy does not continue it."""
        self.incoming = None
        self._waiting.doubt()  # its own entries may give way to others
        await self._get_over_errors()
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
        """Count batches of a copy that are stored, and apply their commits."""
        for header in headers:
            self.producers.note(header.producer_id, header.sequence, header.first_llsn)
        for commit in commits:
            self.apply(self.core.synchronised(commit))

    async def _get_over_errors(self) -> None:
        """Recover from a full disk, which harmed nothing; other errors require a whole copy."""
        error = self.store.error
        no_room = isinstance(error, OSError) and error.errno in _NO_ROOM
        if no_room and not isinstance(error, UnsyncedError):
            await self.recover()
        elif error is not None:
            self.damage(f"the disk failed: {error}")

    # ---- restarts

    async def wipe(self, first_llsn: Llsn, high_watermark: Glsn, trimmed_glsn: Glsn) -> None:
        """Drop everything; the next entry will be `first_llsn`."""
        logger.warning("stream %d is wiped, to begin at LLSN %d", self.stream_id, first_llsn)
        await self._renew(partial(self.store.restart, first_llsn, high_watermark, trimmed_glsn))

    async def recover(self) -> None:
        """Continue with what is stored after a disk failure, as a restart of the node would."""
        await self._renew(self.store.reopen)
        self.core.ask_again()

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
        """Return the addresses of the other replicas, as of the last time that this one ran."""
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
        """Stop serving: waiting appends are not answered any more, subscriptions end."""
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
