"""The LogsDB of a shard, with the copies of `copyset` logs on a volume.

    <volume>/cid=<cluster id>/snid=<node id>/logs/…

A shard without copies has no LogsDB and no threads for one. An existing LogsDB is opened at the
start of the node, otherwise one is created with the first request; requests wait for this. If it
cannot be opened, or a commit failed, everything is refused until the volume works again
(volume.py); then it is opened again. If the directory of a LogsDB vanished, its copies are reported
as lost before a new one is created: after a restart of the node, or when a scrub finds that other
shards can restore the copies. If two volumes have copies of one LogsDB, neither is opened until an
operator has moved one away. The readable part of a damaged LogsDB is salvaged (storage/salvage.py);
then copies may be missing, as in an older copy of the data.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from loomlog import limits
from loomlog.core.conditions import Condition, Kind
from loomlog.core.copyset.messages import Refused
from loomlog.core.copyset.nodeset import Trouble, index_of
from loomlog.core.copyset.procedures import Mending
from loomlog.core.copyset.record import Epoch, Lsn, lsn_words
from loomlog.errors import Corrupt, InvalidArgument
from loomlog.node.disks import Disks
from loomlog.node.volume import ADVICE, Volume
from loomlog.node.workers import off_loop
from loomlog.storage import set_aside
from loomlog.storage.files import DamagedRowsError, Files, Worker
from loomlog.storage.group_commit import LOOK_UPS_MAX
from loomlog.storage.identity import find_copies
from loomlog.storage.logsdb.store import Answered, LogsStore
from loomlog.storage.logsdb.table import LogsTable
from loomlog.storage.volumes import Volumes
from loomlog.types import LogId, ShardId
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)

COUNT_S: Final = 5.0  # between measurements of the stored bytes
DAMAGED_NAMED_MAX: Final = 5  # copies in a condition
TEND_S: Final = 5.0  # a partition may last this much longer

# Marks with the identity of the node:
_MADE: Final = "copyset/made/"  # and a shard's index: it had a LogsDB; if missing, copies are lost
_LOST: Final = "copyset/lost/"  # and an index, and a loglet: up to which epoch copies may be lost

_OPENING: Final = Refused(Trouble.OVERLOADED, "too much waits for the copies to be opened")


class _Workers(NamedTuple):
    commits: Worker  # opens, too
    look_ups: Worker
    upkeep: Worker


class LogsVolume:
    """A LogsDB and its threads. The constructor opens an existing one, which blocks."""

    def __init__(
        self,
        shard: ShardId,
        directory: str,
        disks: Disks,
        now_us: Callable[[], int],
        store_failed: Callable[[], None],
        salvaged: Callable[[], None],
    ) -> None:
        """`directory` is the node's directory on the shard's volume. `store_failed` is called
        before a failed store is replaced, `salvaged` when some or all copies are missing."""
        self.path = f"{directory}/logs"
        self._shard = shard
        self._made = f"{_MADE}{index_of(shard)}"
        self._disks = disks
        self._volume = disks.volume_of(self.path)
        self._now_us = now_us
        self._store_failed = store_failed
        self._salvaged = salvaged
        self._workers: _Workers | None = None
        self._table: LogsTable | None = None
        self.store: LogsStore | None = None  # None: it is not open, or cannot be
        self.version = 0
        self._refusal: Refused | None = None
        self.closing = 0  # its number, if nothing was taken since; 0: copies are taken
        self._closings = 0
        self._problem = ""  # why it cannot be opened
        self._lost: set[tuple[LogId, Lsn]] = set()  # damaged copies that no other shard has
        self._damage: Corrupt | None = None  # found by a reader
        self._is_given_up = False  # its copies are lost, which is not reported yet
        self._opening: asyncio.Task[None] | None = None
        self._open_again: asyncio.TimerHandle | None = None
        self._tending: asyncio.TimerHandle | None = None
        self._stored_bytes = 0
        self._count_again_at = 0.0
        self._waiting: list[tuple[Callable[[LogsStore], None], Answered]] = []
        set_aside.finish(disks.files, self.path)
        is_there, was_there = (
            disks.files.exists(self.path),
            self._made in disks.opened.identity.marks,
        )
        # It existed and is gone, or this volume replaced another one.
        self.is_lost = not is_there and (was_there or disks.opened.has_replaced(directory))
        # Copies are missing, and the metadata repository may not know.
        self.is_unreported = self.is_lost or set_aside.is_unreported(disks.files, self.path)
        self._was_used = was_there and is_there
        disks.own(self)
        if is_there:
            self._open_now()

    def is_on(self, volume: Volume) -> bool:
        return volume is self._volume

    @property
    def is_gone(self) -> bool:
        """True if its directory vanished under this process."""
        return self._volume.lacks(self.path)

    async def look(self) -> None:
        """Check now whether it is gone."""
        await self._volume.look()

    @property
    def is_closed(self) -> bool:
        """True if it cannot be opened, so that its content is unknown."""
        return self._refusal is not None

    @property
    def fails(self) -> bool:
        """True if nothing can be stored now, not even a seal."""
        return bool(self._problem) or not self._volume.works

    @property
    def refuses_copies(self) -> bool:
        return self.fails or self._volume.nearly_full

    @property
    def conditions(self) -> list[Condition]:
        """The problems for operators: the LogsDB cannot be opened, or copies are damaged."""
        if self._problem:
            return [Condition(Kind.STORE_CLOSED, self._problem)]
        damaged = list(self._table.damaged_copies) if self._table is not None else []
        lost = [copy for copy in damaged if copy in self._lost]
        rest = [copy for copy in damaged if copy not in self._lost]
        found = (
            (Kind.DATA_LOST, lost, "no other node has them whole: readers get DataLoss"),
            (
                Kind.DATA_DAMAGED,
                rest,
                "no other node has them now: readers get DataLoss if none ever has",
            ),
        )
        return [self._condition(*each) for each in found if each[1]]

    def _condition(self, kind: Kind, copies: Sequence[tuple[LogId, Lsn]], words: str) -> Condition:
        count, named = len(copies), copies[:DAMAGED_NAMED_MAX]
        places = ", ".join(f"{lsn_words(lsn)} of loglet {log}" for log, lsn in named)
        places += ", …" * (count > len(named))
        text = f"{count} damaged copies at {self.path} ({places}), and {words}"
        return Condition(kind, text, "check the disk", records=count)

    def note_mending(self, log: LogId, lsn: Lsn, result: Mending) -> None:
        """Record whether other shards have a damaged copy. A lost one stays lost until mended."""
        if result is Mending.LOST and self._table is not None:
            self._lost = {*self._lost.intersection(self._table.damaged_copies), (log, lsn)}
        elif result is Mending.MENDED:
            self._lost.discard((log, lsn))

    @property
    def logs(self) -> list[LogId]:
        return self.store.logs() if self.store is not None else []

    def size_of(self, log: LogId) -> int:
        """Return the approximate number of bytes stored of a log."""
        return self.store.stored_bytes(log) if self.store is not None else 0

    @property
    def stored_bytes(self) -> int:
        """The stored bytes, measured at most COUNT_S ago because there may be many logs."""
        now, store = asyncio.get_running_loop().time(), self.store
        if store is not None and now >= self._count_again_at:
            self._count_again_at = now + COUNT_S
            self._stored_bytes = sum(map(store.stored_bytes, store.logs()))
        return self._stored_bytes

    def rebuilding(self, version: int, *, registered: bool) -> None:
        """Refuse restored copies of older versions of rebuilding from now on. Only the answer to a
        registration may know less than earlier requests."""
        self.version = version
        if self.store is not None:
            self.store.version = version
            if registered:
                self.store.requested_version = 0

    def volume_changed(self) -> None:
        """Called when the volume failed, works again, or is nearly full."""
        store = self.store
        if self._is_given_up:
            return
        if store is not None:
            store.is_full = self._volume.is_spent
        if self.path in self._volume.vanished:
            if self._volume.works:
                self._problem = (
                    f"the copies at {self.path} are gone: bring them back, or they are made again "
                    "by a scrub, or when this node is restarted"
                )
            if store is not None:
                store.fail(OSError(errno.ENOENT, "its directory is gone or was replaced"))
        elif self._volume.works and (
            self.is_closed or (store is not None and store.failed is not None)
        ):
            self._open_soon()

    def when_open(self, work: Callable[[LogsStore], None], refused: Answered) -> None:
        """Call `work` with the store once it is open, or `refused` if it cannot be opened."""
        if self.store is not None:
            work(self.store)
        elif self._refusal is not None:
            refused(self._refusal)
        elif len(self._waiting) >= LOOK_UPS_MAX:
            refused(_OPENING)
        else:
            self._waiting.append((work, refused))
            self._open_soon()

    async def opened(self) -> LogsStore | None:
        """Return the store, created if it is missing, or None if it cannot be opened."""
        if self.store is None and self._refusal is None:
            self._open_soon()
        if self._opening is not None:
            await asyncio.shield(self._opening)
        return self.store

    async def start_over(self) -> None:
        """Give up the content of a LogsDB that is gone. Nothing is stored until the loss is
        reported; otherwise a crash would hide it."""
        self._is_given_up = True
        workers, store, self.store = self._make_workers(), self.store, None
        self._refusal = Refused(Trouble.DISABLED, "its copies are lost, which is not reported yet")
        if store is not None:
            self._store_failed()
            store.stop()
        for worker in workers:
            await off_loop(worker, lambda: None)  # what is under way holds the table
        await off_loop(workers.commits, self.close)
        self._volume.give_up(self.path)
        self._was_used, self._problem, self._lost = False, "", set()
        self.is_unreported = True
        self._salvaged()

    def stop(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        for timer in (self._open_again, self._tending):
            if timer is not None:
                timer.cancel()
        if self.store is not None:
            self.store.settle()
            self.store.stop()

    def close(self) -> None:
        table, self._table = self._table, None
        if table is not None:
            table.close()

    # ---- opening

    def _open_now(self) -> None:
        workers = self._make_workers()
        try:
            self._open_table()
        except Exception as error:
            self._cannot_open(error)
            if isinstance(error, Corrupt):
                self._open_soon()
        else:
            self._begin(workers)

    def _open_soon(self) -> None:
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        workers = self._make_workers()
        if self.store is not None:
            self._store_failed()
            self.store.stop()
        try:
            for worker in (workers.look_ups, workers.upkeep):
                await off_loop(worker, lambda: None)  # what is under way holds the table
            if await off_loop(workers.commits, self._open_or_salvage):
                self.is_unreported = True
                self._volume.look_soon()
                self._salvaged()
            self._begin(workers)
        except Exception as error:
            self._cannot_open(error)
        finally:
            self._opening = None
        waiting, self._waiting = self._waiting, []
        for work, refused in waiting:
            self.when_open(work, refused)

    def _open_or_salvage(self) -> bool:
        """Open the LogsDB, and return whether it had to be salvaged."""
        damage, self._damage = self._damage, None
        if damage is None:
            try:
                self._open_table()
            except Corrupt as error:
                damage = error.with_traceback(None)  # its frames would keep the table locked
        if damage is not None:
            self.close()
            self._disks.salvage(self.path, damage, _salvage, index_of(self._shard))
            self._open_table()
        return damage is not None

    def _met_damage(self, error: DamagedRowsError) -> None:
        """Called when rows cannot be read; the readable ones are salvaged."""
        if self._damage is None and self._disks.may_salvage(self.path):
            self._damage = Corrupt(str(error))
            self._problem = f"the copies at {self.path} are damaged: what can be read is salvaged"
            if self.store is not None:
                self.store.fail(error)
            self._open_soon()

    def note_reported(self) -> None:
        """Called when the metadata repository knows that copies are missing. Blocks."""
        self.is_unreported, self.closing = False, 0
        set_aside.note_reported(self._disks.files, self.path)
        if self._is_given_up:
            self._is_given_up, self._refusal = False, None

    def _open_table(self) -> None:
        self.close()
        copies = find_copies(self._disks.files, [f"{path}/logs" for path in self._disks.paths])
        if (other := copies.get(self.path)) is not None:
            raise InvalidArgument(
                f"{self.path} and {other} are copies of one store: keep the newer one where it "
                "was made, and move the other out of the volume"
            )
        shard = index_of(self._shard)
        self._table = self._disks.open_store(
            "copyset", self.path, self._rocks_logs, _is_empty, shard
        )
        self._disks.files.sync_directory(self._volume.path)
        # Before anything is stored: a process that ends in between has lost nothing.
        self._disks.opened.note({self._made: 1})
        self._volume.watch(self.path)

    def _rocks_logs(self, path: str) -> LogsTable:
        """Open the real LogsDB. Create it if it was missing at the start, which was reported, but
        not if it vanished later."""
        from loomlog.storage.logsdb.rocks_logs import RocksLogs

        table = RocksLogs(path, self._now_us(), was_used=self._was_used)
        self._was_used = True
        return table

    def _make_workers(self) -> _Workers:
        if self._workers is None:
            self._workers = _Workers(*(self._disks.worker() for _ in _Workers._fields))
        return self._workers

    def _begin(self, workers: _Workers) -> None:
        assert self._table is not None
        self._problem, self._refusal = "", None
        if not self.is_unreported:
            self.closing = 0
        self.store = LogsStore(
            self._shard,
            self._table,
            *workers,
            on_failure=self._volume.failed,
        )
        self.store.on_damage = self._met_damage
        self.store.is_full = self._volume.is_spent
        self.store.version = self.version
        self._tend()

    def _tend(self) -> None:
        if self._tending is not None:
            self._tending.cancel()
        try:
            if self.store is not None:
                self.store.tend(self._now_us())
        finally:  # continue after any failure
            self._tending = asyncio.get_running_loop().call_later(TEND_S, self._tend)

    def _cannot_open(self, error: Exception) -> None:
        problem = f"the copies at {self.path} cannot be opened: {error}; {ADVICE}"
        if problem != self._problem:
            logger.error("%s", problem)
        self._problem = problem
        later = asyncio.get_running_loop().call_later
        self._open_again = later(limits.REOPEN_S, self.volume_changed)
        self._refusal = Refused(Trouble.DISABLED, f"its copies cannot be opened: {error}")
        if not self.closing:
            self._closings += 1
            self.closing = self._closings


def _salvage(files: Files, path: str) -> str:
    from loomlog.storage.logsdb.salvage import salvage_logs

    return salvage_logs(files, path)


def note_lost(node: Volumes, lost: Iterable[pb.LostCopies]) -> defaultdict[int, dict[LogId, Epoch]]:
    """Record up to which epochs copies may be lost, and return the recorded epochs of all loglets
    by the index of the shard: restored metadata may know less than the node. Blocking."""
    node.note({f"{_LOST}{loss.shard}/{loss.loglet_id}": loss.epoch for loss in lost})
    found: defaultdict[int, dict[LogId, Epoch]] = defaultdict(dict)
    for name, epoch in node.identity.marks.items():
        if name.startswith(_LOST):
            shard, loglet = map(int, name.removeprefix(_LOST).split("/"))
            found[shard][loglet] = epoch
    return found


def drop_lost(node: Volumes, shard: int, restored: Iterable[LogId]) -> None:
    """Forget that copies of these loglets in a shard may be lost. Blocking."""
    node.drop({f"{_LOST}{shard}/{log}" for log in restored})


def _is_empty(table: LogsTable) -> bool:
    return not table.logs()
