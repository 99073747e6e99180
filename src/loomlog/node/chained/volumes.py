"""The chains on the volumes of a node: one table for each volume, created with its first replica.

    <volume>/cid=<cluster id>/snid=<node id>/chains/…

A node without chains has no tables and no threads for them, and does not load RocksDB. When a disk
has failed, it is unknown what reached it. Every request, including `Check`, is refused until the
volume works again (volume.py) and the table has been opened again.

A damaged table is salvaged (storage/salvage.py). Its replicas are not served before the metadata
repository knows that blocks may be missing: it treats them as older copies. If a table is gone, its
replicas are lost, which is reported when the node is started, or makes a new table in its place.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from loomlog import limits
from loomlog.core.chained.chain import Replica
from loomlog.core.chained.messages import (
    Acknowledge,
    Check,
    Copy,
    Create,
    Refused,
    Request,
    Seal,
    Write,
)
from loomlog.core.chained.replica import Standing
from loomlog.errors import Corrupt, InvalidArgument, Unavailable
from loomlog.node.disks import Disks
from loomlog.node.volume import ADVICE, Volume
from loomlog.node.workers import off_loop
from loomlog.storage import set_aside
from loomlog.storage.chained.block_table import BlockTable
from loomlog.storage.chained.write_once import Answered, WriteOnceStore
from loomlog.storage.files import DamagedRowsError, Files, Worker, closed_on_failure
from loomlog.storage.identity import find_copies
from loomlog.types import Glsn, LogId, NodeId

logger = logging.getLogger(__name__)

# A mark with the identity of the node, and the index of a shard: it has a table.
_MADE: Final = "chained/made/"
RECLAIM_AFTER_S: Final = 10.0  # space is reclaimed for several trims together
_NEEDS_VOLUME: Final = (Write, Copy, Acknowledge, Create, Seal, Check)

OpenTable: TypeAlias = Callable[[str, bool], BlockTable]  # path, and whether it was used


class ChainVolumes:
    """The chains on all volumes. The constructor opens the existing tables, which blocks."""

    def __init__(self, disks: Disks, register_again: Callable[[], None] = lambda: None) -> None:
        """`register_again` is called when a table is opened that could not be opened before."""
        self._disks = disks
        self._volumes = [
            ChainVolume(shard, disks, volume, self._open_table, register_again)
            for shard, volume in zip(disks.shards, disks.volumes, strict=True)
        ]
        self._copied = find_copies(disks.files, [f"{path}/chains" for path in disks.paths])
        disks.own(self)
        for volume in self._volumes:
            volume.open()

    def _open_table(self, path: str, was_used: bool) -> BlockTable:
        if path in self._copied:
            raise InvalidArgument(
                f"{path} and {self._copied[path]} are copies of each other; move one of them out "
                "of the volume"
            )
        open_real = partial(_rocks_table, self._disks.settings.node_id, was_used)
        return self._disks.open_store("chained", path, open_real, _is_empty)

    @property
    def replicas(self) -> dict[Replica, Standing]:
        """The replicas on all volumes."""
        return {
            replica: standing
            for volume in self._volumes
            for replica, standing in volume.replicas.items()
        }

    def by_shard(self) -> Iterable[tuple[int, ChainVolume]]:
        """Return the volumes with their shard indexes."""
        return zip(self._disks.shards, self._volumes, strict=True)

    @property
    def stored_bytes(self) -> int:
        return sum(volume.stored_bytes for volume in self._volumes)

    def sizes(self) -> dict[Replica, int]:
        """Return the approximate size of each replica in bytes."""
        opened = (volume.store for volume in self._volumes if volume.store is not None)
        return {replica: size for store in opened for replica, size in store.sizes().items()}

    @property
    def problems(self) -> list[str]:
        """Sentences for operators about tables that cannot be opened."""
        return [volume.problem for volume in self._volumes if volume.problem]

    @property
    def missing(self) -> list[str]:
        """The missing volumes, which may have replicas."""
        return sorted(self._disks.opened.missing.values())

    @property
    def are_unserved(self) -> bool:
        """True if there may be replicas here that cannot be served now."""
        return bool(self.missing) or any(volume.is_unserved for volume in self._volumes)

    @property
    def full_loglets(self) -> list[LogId]:
        """The loglets with a replica on a nearly full volume."""
        full = (chains for chains in self._volumes if chains.volume.nearly_full)
        return sorted({replica.log_id for chains in full for replica in chains.replicas})

    def holding(self, replica: Replica) -> ChainVolume | None:
        """Return the volume with the replica."""
        for volume in self._volumes:
            if replica in volume.replicas:
                return volume
        return None

    def end_of(self, replica: Replica) -> Glsn:
        """Return the first position above the blocks and the trim of a replica; 0 if it is not
        known."""
        volume = self.holding(replica)
        return 0 if volume is None or volume.store is None else volume.store.end_of(replica)

    def on(self, volume: Volume) -> ChainVolume:
        return next(chains for chains in self._volumes if chains.volume is volume)

    async def place(self) -> ChainVolume:
        """Return the usable volume with the fewest replicas. Raise Unavailable if there is none."""
        problem = Unavailable("; ".join(chains.volume.refusal for chains in self._volumes))
        usable = [chains for chains in self._volumes if chains.volume.takes_more]
        for volume in sorted(usable, key=lambda volume: len(volume.replicas)):
            try:
                await volume.make_ready()
                return volume
            except Unavailable as error:
                problem = error
        raise problem

    async def look(self) -> None:
        """Check now whether tables have vanished."""
        for chains in self._volumes:
            await chains.volume.look()

    def stop(self) -> None:
        for volume in self._volumes:
            volume.stop()

    def close(self) -> None:
        for volume in self._volumes:
            volume.close()


class _Workers(NamedTuple):
    commits: Worker  # also opens the table
    look_ups: Worker


class ChainVolume:
    """The chains on one volume."""

    def __init__(
        self,
        shard: int,
        disks: Disks,
        volume: Volume,
        open_table: OpenTable,
        register_again: Callable[[], None],
    ) -> None:
        self.volume = volume
        self._register_again = register_again
        # The table was salvaged, or is gone, and the metadata repository may not know it.
        self.is_unreported = False
        self._disks = disks
        self.path = f"{volume.path}/chains"
        self._made = f"{_MADE}{shard}"
        self._open_table = open_table
        self._workers: _Workers | None = None
        self._table: BlockTable | None = None
        self.store: WriteOnceStore | None = None
        self._reclaimer: Reclaimer | None = None
        self.replicas: Mapping[Replica, Standing] = {}
        # The node crashed, so these replicas may have forgotten blocks. They serve nothing until
        # they are sealed for an epoch that takes it into account. None: the table was never opened.
        self._forgetful: set[Replica] | None = None
        self.problem = ""  # why the table cannot be opened
        self._damage: Corrupt | None = None  # found by a reader
        self._opening: asyncio.Task[None] | None = None
        self._open_again_s = 0.0  # when it may be opened again, by the loop's clock
        self._open_later: asyncio.TimerHandle | None = None

    @property
    def stored_bytes(self) -> int:
        return 0 if self.store is None else self.store.stored_bytes

    @property
    def works(self) -> bool:
        """True if its replicas can be served."""
        return self.volume.works and self.store is not None and self.store.failed is None

    @property
    def is_unserved(self) -> bool:
        """True if the volume has failed, or its table cannot be opened."""
        is_opened = self.store is not None
        return not self.volume.works or bool(self.problem) or (is_opened and not self.works)

    def open(self) -> None:
        """Open the table if it exists. Blocks."""
        set_aside.finish(self._disks.files, self.path)
        if self._disks.files.exists(self.path):
            try:
                self._open(self._make_workers())
            except Exception as error:
                self._cannot_open(error)
                if isinstance(error, Corrupt):
                    self._open_soon()
        else:
            self.is_unreported = self._has_vanished()

    async def make_ready(self) -> None:
        """Open or create the table. Raise Unavailable if the disk has failed."""
        if not self.works:
            self._open_soon()
        if self._opening is not None:
            await asyncio.shield(self._opening)
        if not self.works:
            raise Unavailable(f"the chains at {self.path} cannot be opened: see the node's log")

    def volume_changed(self) -> None:
        store = self.store
        if store is not None and self.path in self.volume.vanished:
            store.fail(OSError(errno.ENOENT, "its directory is gone or was replaced", self.path))
        if self.problem or (store is not None and store.failed is not None):
            self._open_again_s = 0.0
            self._open_soon()

    def ask(self, replica: Replica, request: Request, done: Answered) -> None:
        """See WriteOnceStore.ask. The volume must have the replica, or be ready for it."""
        store = self.store
        assert store is not None
        if self.volume.error and isinstance(request, _NEEDS_VOLUME):
            done(Refused(self.volume.condition))
            return
        if store.failed is not None:
            self._open_soon()
        store.ask(replica, request, done)

    @property
    def needs_care(self) -> bool:
        """True if some replicas may lack acknowledged blocks."""
        return self.is_unreported or bool(self._forgetful)

    def has_forgotten(self, replica: Replica) -> bool:
        """Return whether the replica may have forgotten blocks in the crash before this start."""
        return replica in (self._forgetful or ())

    def was_sealed(self, replica: Replica) -> None:
        """Called when the replica was sealed for a new epoch, which restores forgotten blocks."""
        if self._forgetful:
            self._forgetful.discard(replica)

    def is_damaged(self, replica: Replica) -> bool:
        """Return whether blocks of the replica could not be read."""
        return self.store is not None and replica in self.store.damaged

    def reclaim_soon(self, replica: Replica, position: Glsn) -> None:
        """Schedule freeing the space of the replica up to this position."""
        if self._reclaimer is not None:
            self._reclaimer.soon(replica, position)

    def stop(self) -> None:
        """Called before the workers finish."""
        if self._opening is not None:
            self._opening.cancel()
        if self._open_later is not None:
            self._open_later.cancel()
        if self._reclaimer is not None:
            self._reclaimer.stop()

    def close(self) -> None:
        """Called when the workers have finished."""
        table, self._table = self._table, None
        if table is not None:
            table.close()

    # ---- opening

    def _open_soon(self) -> None:
        loop = asyncio.get_running_loop()
        is_time = self.volume.works and loop.time() >= self._open_again_s
        if self._opening is None and is_time:
            self._open_again_s = loop.time() + limits.REOPEN_S
            self._opening = loop.create_task(self._open_again())

    async def _open_again(self) -> None:
        workers, was_closed = self._make_workers(), bool(self.problem)
        if self._reclaimer is not None:
            self._reclaimer.stop()
        try:
            await off_loop(workers.look_ups, lambda: None)  # running look-ups hold the table
            await off_loop(workers.commits, partial(self._open_or_salvage, workers))
        except Exception as error:
            self._cannot_open(error)
        finally:
            self._opening = None
        if self.is_unreported or (was_closed and not self.problem):
            self.volume.look_soon()
            self._register_again()

    def _open_or_salvage(self, workers: _Workers) -> None:
        damage, self._damage = self._damage, None
        if damage is None:
            try:
                self._open(workers)
            except Corrupt as error:
                damage = error.with_traceback(None)  # frames would keep the table locked
        if damage is not None:
            self.close()
            self._disks.salvage(self.path, damage, _salvage)
            self._open(workers)

    def _met_damage(self, error: DamagedRowsError) -> None:
        """Called when rows cannot be read: the table is salvaged."""
        if self._damage is None and self._disks.may_salvage(self.path):
            self._damage = Corrupt(str(error))
            self.problem = f"the chains at {self.path} are damaged: what can be read is salvaged"
            if self.store is not None:
                self.store.fail(error)
            self._open_again_s = 0.0
            self._open_soon()

    def _open(self, workers: _Workers) -> None:
        self.close()
        has_vanished = self._has_vanished()
        was_used = self._was_made and not has_vanished
        self._table = table = self._open_table(self.path, was_used)
        if has_vanished:
            set_aside.note_unreported(self._disks.files, self.path)
        self._disks.files.sync_directory(self.volume.path)
        self._disks.opened.note({self._made: 1})
        self.volume.watch(self.path)
        with closed_on_failure(self):
            self.store = WriteOnceStore(
                table,
                workers.commits,
                workers.look_ups,
                on_failure=self.volume.failed,
            )
        self._reclaimer = Reclaimer(table, self._disks.worker)
        self.is_unreported = set_aside.is_unreported(self._disks.files, self.path)
        self.store.on_damage = self._met_damage
        self.replicas = self.store.replicas
        if self._forgetful is None:
            self._forgetful = set() if self._disks.generations.is_clean else set(self.replicas)
        self.problem = ""

    def note_reported(self) -> None:
        """Called when the metadata repository knows that blocks may be missing. Blocking."""
        set_aside.note_reported(self._disks.files, self.path)
        if self._has_vanished():
            self._disks.opened.drop({self._made})
        self.is_unreported = False

    def _has_vanished(self) -> bool:
        """Return whether the table existed and is gone. Blocking."""
        return self._was_made and not self._disks.files.exists(self.path)

    @property
    def _was_made(self) -> bool:
        return self._made in self._disks.opened.identity.marks

    def _make_workers(self) -> _Workers:
        if self._workers is None:
            self._workers = _Workers(self._disks.worker(), self._disks.worker())
        return self._workers

    def _cannot_open(self, error: Exception) -> None:
        problem = f"the chains at {self.path} cannot be opened: {error}; {ADVICE}"
        if problem != self.problem:
            logger.error("%s", problem)
        self.problem = problem
        later = asyncio.get_running_loop().call_later
        self._open_later = later(limits.REOPEN_S, self.volume_changed)


class Reclaimer:
    """Frees the space of blocks that were trimmed or removed from one table.

    That rewrites neighbouring data, so it waits for further trims, and runs in a thread of its own.
    Space that is not freed when the node stops is freed after a later trim, or eventually by the
    table itself."""

    def __init__(self, table: BlockTable, new_worker: Callable[[], Worker]) -> None:
        self._table = table
        self._new_worker = new_worker
        self._worker: Worker | None = None
        self._freed: dict[Replica, Glsn] = {}  # everything up to this position
        self._timer: asyncio.TimerHandle | None = None
        self._under_way = False

    def soon(self, replica: Replica, position: Glsn) -> None:
        """Schedule freeing the space of positions up to this one."""
        self._freed[replica] = max(position, self._freed.get(replica, 0))
        self._wait()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._under_way:
            self._table.interrupt()

    def _wait(self) -> None:
        if self._timer is None and not self._under_way:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(RECLAIM_AFTER_S, self._start)

    def _start(self) -> None:
        self._timer = None
        freed, self._freed = self._freed, {}
        self._worker = self._worker or self._new_worker()
        self._under_way = True
        steps = [partial(self._table.reclaim, *extent) for extent in freed.items()]
        self._worker.run(steps, self._finished)

    def _finished(self, error: BaseException | None) -> None:
        self._under_way = False
        if error is not None:
            logger.warning("the space of trimmed blocks is not free yet: %s", error)
        if self._freed:
            self._wait()


def _rocks_table(node_id: NodeId, was_used: bool, path: str) -> BlockTable:
    from loomlog.storage.chained.rocks_table import RocksTable

    return RocksTable(path, node_id, was_used=was_used)


def _salvage(files: Files, path: str) -> str:
    from loomlog.storage.chained.rocks_table import salvage_table

    return salvage_table(files, path)


def _is_empty(table: BlockTable) -> bool:
    return not table.replicas()
