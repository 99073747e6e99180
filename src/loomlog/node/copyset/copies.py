"""The copies of `copyset` logs in a shard: decides which requests are accepted, marks answers that
may lack records, and catches up with logs that continued without this shard.

Every request names the creation stamp of its log. Numbers of logs may collide when metadata is
older than the nodes; stamps never do. The first request that stores something determines the stamp
of the log here.

A shard that lost its disk must not answer that a record was never there, because this would be
taken as proof. The metadata repository recognises a shard that came back empty or with an older
copy of its data, and remembers the newest epoch that each loglet had by then. For epochs up to that
one, every answer of the shard says that it may miss records: its records count, their absence does
not. This ends when the metadata repository reports that its copies are restored (donor.py).
Since the shard also forgot its seals, it seals itself below the log's newest epoch before it
accepts anything for such a log.

A node that has not registered since it was started does not know what it lost. It returns stored
records, and accepts no new ones.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from loomlog.core.backoff import Backoff
from loomlog.core.copyset.messages import (
    Begin,
    Delivered,
    Digest,
    Done,
    EpochStoreRequest,
    FindBatch,
    Forget,
    GetState,
    NodeAnswer,
    NodeRequest,
    NotHere,
    Purge,
    Read,
    Refused,
    Release,
    Restore,
    Seal,
    SealedAt,
    Store,
    Trim,
)
from loomlog.core.copyset.nodeset import Trouble
from loomlog.core.copyset.procedures import Answer, Exchange, purge
from loomlog.core.copyset.record import EPOCH_MAX, Epoch, Lsn, Offset, epoch_of, make
from loomlog.core.copyset.storage import LogStanding, epoch_to_purge
from loomlog.core.requests import Lost, drive
from loomlog.errors import LoomError, NotFound, Unavailable
from loomlog.limits import MIB
from loomlog.node.copyset.epoch_store import EpochStoreClient
from loomlog.node.copyset.late_releases import Check, LateReleases
from loomlog.node.copyset.logs_volume import LogsVolume
from loomlog.node.copyset.marks import MATTERS_US, Marks
from loomlog.node.disks import Disks
from loomlog.node.long_poll import LongPolls
from loomlog.node.workers import called_back, insist
from loomlog.storage.logsdb.recent import RecentBatches
from loomlog.storage.logsdb.store import Answered
from loomlog.types import LogId, ShardId
from loomlog.wire.link import Connection

logger = logging.getLogger(__name__)

RETRY: Final = Backoff(0.05, 2.0)
WAITING_READS_MAX: Final = 4096  # of one connection
SHARED_BYTES_MAX: Final = MIB  # of one answer, while its connection has other look-ups
RELEASE_S: Final = 20.0  # as often as sequencers send releases to nodes that get no records

Found = TypeVar("Found")
Content = TypeVar("Content", bound=Read | Digest)
MetDamage: TypeAlias = Callable[[LogId, Sequence[tuple[Lsn, Lsn]]], None]
Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], object]

_NOTED: Final = (Store, Restore, FindBatch)  # by their batches
_SHOWING: Final = (Release, Purge, Trim, Forget)  # they may change what readers see
_NOT_JOINED: Final = Refused(
    Trouble.DISABLED, "this node has not yet registered with the metadata repository"
)


class Copies:
    """The copies in one shard. The constructor opens the store, which blocks."""

    def __init__(
        self,
        shard: ShardId,
        directory: str,
        disks: Disks,
        epochs: EpochStoreClient,
        now_us: Callable[[], int],
        spawn: Spawn,
        register_again: Callable[[], None],
    ) -> None:
        """`directory` is the node's directory on the shard's volume. `register_again` is called
        when the metadata repository must learn that copies are missing."""
        self._epochs = epochs
        self._spawn = spawn
        self._waiting: LongPolls[LogId, NodeAnswer] = LongPolls(WAITING_READS_MAX)
        changed = self._waiting.changed_everywhere
        self._register_again = register_again
        self.volume = LogsVolume(shard, directory, disks, now_us, changed, self._miss_copies)
        older = None if self.volume.is_closed else frozenset(self.volume.logs)
        self.marks = Marks(asyncio.get_running_loop().time, now_us(), older)
        self._lost: Mapping[LogId, Epoch] | None = None  # None until the node has registered
        self._life = 0
        self._sealed: set[LogId] = set()  # of those that may miss something
        self.met_damage: MetDamage = lambda log, ranges: None  # called when a read meets some

    def joined(self, lost: Mapping[LogId, Epoch], life: int = 0) -> None:
        """Learn up to which epochs copies of loglets may be lost, and the life of this node."""
        self._lost = lost
        self._life = life

    def _miss_copies(self) -> None:
        """Called when any copy may be missing: return stored records, but accept none until it is
        known which epochs are affected."""
        self._lost = None
        self._sealed.clear()
        self._register_again()

    def standing(self, log: LogId) -> LogStanding:
        store = self.volume.store
        return store.standing(log) if store is not None else LogStanding()

    async def lng_of(self, log: LogId, epoch: Epoch) -> Offset:
        """Return up to where an epoch is known to be fully stored. What is not known any more when
        an epoch has ended, its end says."""
        store = await self.volume.opened()
        if store is None:
            raise Unavailable("the copies of this shard cannot be opened")
        lng = store.standing(log).released_in(epoch)
        end = await looked_up(partial(store.end_of, log, epoch))
        return lng if end is None else max(lng, end.lng)

    def stamp_of(self, log: LogId) -> int:
        """Return the creation stamp of the log, as reported to this node or else as stored."""
        return self._epochs.stamps.get(log) or self.standing(log).stamp

    def is_of(self, log: LogId, stamp: int) -> bool:
        """Return whether what is stored of the log, if anything, has this creation stamp."""
        return self.standing(log).stamp in (0, stamp)

    def is_granted(self, log: LogId, epoch: Epoch) -> bool:
        """Return whether the epoch is known to be granted, by the metadata repository or by what
        is stored here."""
        granted = self._epochs.granted
        if epoch <= granted.get(log, 0):
            return True
        if epoch > self.standing(log).taken:
            return False
        granted[log] = epoch
        return True

    def forget(self, log: LogId) -> None:
        self._sealed.discard(log)
        self.marks.forget(log)

    def stop(self) -> None:
        self._waiting.stop()

    # ---- requests

    def ask(self, request: NodeRequest, stamp: int, done: Answered) -> None:
        """Call `done` with the answer, on the loop. A batch must not change until then."""
        if isinstance(request, _NOTED):
            if isinstance(request, FindBatch):
                self._find_batch(request, done)
                return
            if len(request.record.batch):
                note = self.marks.note if isinstance(request, Store) else self.marks.note_restored
                note(request.log, request.record)
        if (refusal := self._refusal(request, stamp)) is not None:
            done(refusal)
        elif isinstance(request, Read):
            self.ask_store(request, self._with_loss(request.log, done))
        elif request.log not in (self._lost or ()) or request.log in self._sealed:
            is_reported = isinstance(request, Seal)
            self.ask_store(request, self._with_loss(request.log, done) if is_reported else done)
        else:
            self._spawn(self._seal_first(request, stamp, done))

    def wait(
        self, connection: Connection, read: Read, stamp: int, wait_s: float, done: Answered
    ) -> None:
        """Like `ask`, but wait up to the given time until there is something to return. After that
        time, the answer still reports how far the log is released and trimmed."""
        if (refusal := self._refusal(read, stamp)) is not None:
            done(refusal)
            return
        is_nothing, done = partial(_is_nothing, read), self._with_loss(read.log, done)

        def look(looked: Answered) -> None:
            self.ask_store(bounded(connection, read), looked)

        self._waiting.add(connection, read.log, look, is_nothing, wait_s, done)

    def connection_closed(self, connection: Connection) -> None:
        self._waiting.connection_closed(connection)

    def ask_store(self, request: NodeRequest, done: Answered) -> None:
        """Like `ask`, but ignore stamps and losses."""
        if isinstance(request, _SHOWING):
            done = partial(self._changed, request, done)
        if (store := self.volume.store) is not None:
            store.ask(request, done)
        else:
            self.volume.when_open(lambda store: store.ask(request, done), done)

    def _changed(self, request: NodeRequest, done: Answered, answer: NodeAnswer) -> None:
        """Called with the answer to a request that may change what readers see."""
        done(answer)
        if isinstance(answer, Done) and request.log in self._waiting.by_key:
            self._waiting.changed(request.log)

    # ---- creation stamps

    def _refusal(self, request: NodeRequest, stamp: int) -> NodeAnswer | None:
        """Return the answer to a request that must not reach the store, or None."""
        if self._lost is None:
            shows = isinstance(request, Read) and self.volume.store is not None
            if not shows:
                return _NOT_JOINED
        stored = self.standing(request.log).stamp
        if stored == stamp:
            return None
        if stored:
            return _other_log(request, stored, stamp)
        if not isinstance(request, (Read, Digest, Forget)):
            # It becomes durable with the next request.
            self.ask_store(Begin(request.log, stamp), lambda answer: None)
        return None

    # ---- losses

    def may_miss(self, log: LogId) -> bool:
        """Return whether records that this node was given may be missing."""
        return self._lost_through(log) > epoch_of(self.standing(log).trimmed)

    def _lost_through(self, log: LogId) -> Epoch:
        return EPOCH_MAX if self._lost is None else self._lost.get(log, 0)

    def _with_loss(self, log: LogId, done: Answered) -> Answered:
        def answered(answer: NodeAnswer) -> None:
            if isinstance(answer, (SealedAt, Delivered)):
                answer = replace(answer, lost_through=self._lost_through(log), life=self._life)
            done(answer)
            if isinstance(answer, Delivered) and answer.damaged:
                self.met_damage(log, answer.damaged)

        return answered

    async def _seal_first(self, request: NodeRequest, stamp: int, done: Answered) -> None:
        log = request.log
        try:
            known = await self._epochs.request(GetState(log))
        except LoomError as error:
            done(Refused(Trouble.DISABLED, f"this node lost copies of loglet {log}: {error}"))
            return

        def sealed(answer: NodeAnswer) -> None:
            if isinstance(answer, Refused):
                done(answer)
                return
            self._sealed.add(log)
            logger.info("loglet %d: some of its copies here were lost", log)
            self.ask(request, stamp, done)

        self.ask_store(Seal(log, known.state.epoch - 1, wave=0), sealed)

    async def restored(self, restored: Mapping[LogId, Epoch]) -> list[LogId]:
        """Note the epochs up to which copies are complete again. Return the loglets that are
        completely restored. Seals are not restored, so they are written first."""

        def are_here() -> list[LogId]:
            return [log for log, e in (self._lost or {}).items() if e <= restored.get(log, 0)]

        for log in [log for log in are_here() if log not in self._sealed]:
            try:
                known = await self._epochs.request(GetState(log))
            except NotFound:
                continue  # it was deleted
            seal = Seal(log, known.state.epoch - 1, wave=0)
            answer = await called_back(partial(self.ask_store, seal))
            if isinstance(answer, Refused):
                raise Unavailable(answer.reason)
        done = are_here()
        self._lost = {log: epoch for log, epoch in (self._lost or {}).items() if log not in done}
        self._sealed.difference_update(done)
        return done

    # ---- repeated batches

    def _find_batch(self, request: FindBatch, done: Answered) -> None:
        """Call `done` with the places where the batch was to be stored. If the marks may not reach
        back far enough, search the disk first."""
        log, marks = request.log, self.marks

        def answer(_: NodeAnswer | None = None) -> None:
            found = marks.find(log, request.producer_id, request.sequence)
            is_blind = self.may_miss(log) or self.volume.is_closed
            done(replace(found, certain=False) if is_blind else found)

        def looked(recent: RecentBatches | Refused) -> None:
            if isinstance(recent, Refused):
                done(recent)
            else:
                marks.note_older(log, recent)
                answer()

        if self._lost is not None and marks.is_short(log):
            self.volume.when_open(
                lambda store: store.recent(log, marks.began_us, MATTERS_US, looked), answer
            )
        else:
            answer()


class LogCatchUp:
    """Catches up with logs that continued without this node: learns how epochs ended, and how far
    logs are released."""

    def __init__(self, me: ShardId, copies: Copies, epochs: EpochStoreClient, spawn: Spawn) -> None:
        self._me = me
        self._copies = copies
        self._epochs = epochs
        self._spawn = spawn
        self._missed: dict[LogId, Lsn] = {}  # released elsewhere, of logs that are caught up with
        self._look_at: dict[LogId, float] = {}  # when to ask again, by the loop's clock
        self._late = LateReleases(self._take, spawn)

    # ---- epochs that were recovered without this node

    def release(self, release: Release, stamp: int) -> None:
        """Apply a release, which has no answer."""
        self._copies.ask(release, stamp, partial(self.released, release, stamp))

    def released(self, release: Release, stamp: int, answer: NodeAnswer) -> None:
        """Called with the answer to a release; a refused one is applied later."""
        if isinstance(answer, Refused):
            self.release_later(release, stamp, _at_once)
        elif isinstance(answer, Done):
            self._note_older(release)

    def release_later(self, release: Release, stamp: int, check: Check) -> None:
        """Apply a release as soon as this is possible, provided that `check` returns True."""
        self._late.add(release, stamp, check)

    async def _take(self, release: Release, stamp: int) -> bool:
        """Return False if the release is refused, except if another log is stored here."""
        if not self._copies.is_of(release.log, stamp):
            return True
        answer = await called_back(partial(self._copies.ask, release, stamp))
        if isinstance(answer, Refused):
            return False
        self._note_older(release)
        return True

    def _note_older(self, release: Release) -> None:
        """Purge an older epoch that was recovered without this node, and then repeat the
        release."""
        if epoch_to_purge(release.lsn, self._copies.standing(release.log)) is not None:
            self.missed(release.log, release.lsn)

    def missed(self, log: LogId, lsn: Lsn) -> None:
        """Catch up with a log that is released up to this LSN elsewhere, but not here."""
        is_under_way = log in self._missed
        self._missed[log] = max(lsn, self._missed.get(log, 0))
        if not is_under_way:
            self._spawn(self._purge(log))

    async def _purge(self, log: LogId) -> None:
        try:
            while self._epoch_to_purge(log) is not None:
                await insist(partial(self._purge_epoch, log), RETRY)
        finally:
            lsn = self._missed.pop(log, None)
        if lsn is not None:
            self._release_here(log, lsn)

    async def _purge_epoch(self, log: LogId) -> bool | None:
        """Try to purge the next epoch; None: try again later."""
        if (epoch := self._epoch_to_purge(log)) is None:
            return False
        lng = self._copies.standing(log).released_in(epoch)
        if problem := await drive(purge(log, epoch, self._me, lng), self._answer):
            logger.info("loglet %d, epoch %d: %s", log, epoch, problem)
            return None
        return True

    async def report(self, log: LogId) -> None:
        """Report what this shard knows of losses in epochs that were recovered without it, and
        delete what became void. It may know of another end, of a recovery that died."""
        known = await self._epochs.request(GetState(log))
        for end in known.state.ends:
            if self._me in end.absent:
                lng = await self._copies.lng_of(log, end.epoch)
                if problem := await drive(purge(log, end.epoch, self._me, lng), self._answer):
                    raise Unavailable(problem)

    async def _answer(self, asked: Exchange) -> list[Answer]:
        """Answer a request of `purge`, which involves only the epoch store and this node."""
        [(_, request)] = asked.asks
        if isinstance(request, EpochStoreRequest):
            return [await self._epochs.ask(request) or Lost()]
        stamp = self._copies.stamp_of(request.log)
        return [await called_back(partial(self._copies.ask, request, stamp))]

    def _release_here(self, log: LogId, lsn: Lsn) -> None:
        release, stamp = Release(log, lsn), self._copies.stamp_of(log)
        self._copies.ask_store(release, partial(self.released, release, stamp))

    def _epoch_to_purge(self, log: LogId) -> Epoch | None:
        """Return the next epoch to purge, or None if there is none or the log is gone."""
        lsn = self._missed.get(log)
        return None if lsn is None else epoch_to_purge(lsn, self._copies.standing(log))

    # ---- releases

    def recovered(self, log: LogId, last: Epoch) -> None:
        """Called when all epochs up to this one are known to be recovered."""
        lsn = make(last + 1, 0)
        if lsn > self._copies.standing(log).released:
            self._release_here(log, lsn)

    def note_reader(self, log: LogId) -> None:
        """Ask from time to time how far the log is recovered. It may have been released while this
        node was away, and everything that is recovered may be returned to readers."""
        now = asyncio.get_running_loop().time()
        if now >= self._look_at.get(log, now):
            self._look_at[log] = now + RELEASE_S
            self._spawn(self._release(log))

    def forget(self, log: LogId) -> None:
        self._missed.pop(log, None)
        self._look_at.pop(log, None)
        self._late.forget(log)

    async def _release(self, log: LogId) -> None:
        try:
            known = await self._epochs.get(log, RELEASE_S)
        except LoomError as error:
            logger.debug("loglet %d: how far it is recovered is not known: %s", log, error)
            self._look_at.pop(log, None)
            return
        self.recovered(log, known.state.last_clean)


async def _at_once() -> bool:
    return True


def bounded(connection: Connection, request: Content) -> Content:
    """Return a request whose turn it is, with a lower limit while other requests of its connection
    run, because all answers are in memory until they are sent."""
    most = SHARED_BYTES_MAX if connection.turns.is_shared else request.bytes_max
    return request if request.bytes_max <= most else replace(request, bytes_max=most)


async def looked_up(look: Callable[[Callable[[Found | Refused], None]], None]) -> Found:
    """Look up something in the store and return the result; raise Unavailable if refused."""
    found = await called_back(look)
    if isinstance(found, Refused):
        raise Unavailable(found.reason)
    return found


def _other_log(request: NodeRequest, stored: int, stamp: int) -> NodeAnswer:
    reason = (
        f"loglet {request.log} is kept here with creation stamp {stored:016x}, the request is for "
        f"{stamp:016x}"
    )
    if isinstance(request, Forget | Trim):
        logger.warning("nothing is deleted: %s", reason)
        return NotHere()
    return Refused(Trouble.DISABLED, reason)


def _is_nothing(read: Read, answer: NodeAnswer) -> bool:
    """Return whether an answer has neither records nor a later end of the searched range."""
    return isinstance(answer, Delivered) and not answer.records and answer.next_lsn <= read.first
