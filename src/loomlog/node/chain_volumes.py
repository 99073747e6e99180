"""Where a node keeps its chains: a table on each of its volumes, opened with the first replica.

    <volume>/cid=<cluster id>/snid=<node id>/chains/…

A node without chains has no table and no threads for one, and does not load RocksDB. When a disk
has failed, nobody knows what reached it: all is refused until its table was opened again, which is
tried now and then, for as long as anybody asks for something.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from loomlog import limits
from loomlog.core.chained.messages import Request
from loomlog.core.chained.projection import Replica
from loomlog.core.chained.replica import Standing
from loomlog.errors import Unavailable
from loomlog.node.reclaiming import Reclaiming
from loomlog.node.workers import off_loop
from loomlog.storage.block_table import BlockTable
from loomlog.storage.files import Files, Worker
from loomlog.storage.write_once import Answered, WriteOnceStore
from loomlog.types import Glsn

logger = logging.getLogger(__name__)

OpenTable: TypeAlias = Callable[[str], BlockTable]
NewWorker: TypeAlias = Callable[[], Worker]
Eager: TypeAlias = Callable[[Worker], Worker]


class ChainVolumes:
    """Opened at the start of a node, closed at its end; both block."""

    def __init__(
        self,
        files: Files,
        node_paths: Sequence[str],
        open_table: OpenTable,
        new_worker: NewWorker,
        eager: Eager,
    ) -> None:
        """`eager`: the same worker for jobs that are mostly quick."""
        self._volumes = [
            ChainVolume(files, path, open_table, new_worker, eager) for path in node_paths
        ]

    @property
    def replicas(self) -> dict[Replica, Standing]:
        """All that are here."""
        return {
            replica: standing
            for volume in self._volumes
            for replica, standing in volume.replicas.items()
        }

    @property
    def stored_bytes(self) -> int:
        return sum(volume.stored_bytes for volume in self._volumes)

    def holding(self, replica: Replica) -> ChainVolume | None:
        """Where the replica is."""
        for volume in self._volumes:
            if replica in volume.replicas:
                return volume
        return None

    async def place(self) -> ChainVolume:
        """For a new replica: the volume with the fewest. Unavailable: all disks have failed."""
        problem = Unavailable("this node has no volumes")
        for volume in sorted(self._volumes, key=lambda volume: len(volume.replicas)):
            try:
                await volume.make_ready()
                return volume
            except Unavailable as error:
                problem = error
        raise problem

    def open(self) -> None:
        """What is there already."""
        for volume in self._volumes:
            volume.open()

    def stop(self) -> None:
        """Before the workers finish."""
        for volume in self._volumes:
            volume.stop()

    def close(self) -> None:
        """When the workers have finished."""
        for volume in self._volumes:
            volume.close()


class _Workers(NamedTuple):
    commits: Worker  # opens, too
    quick: Worker  # the same, which may do on the loop what is quick
    look_ups: Worker


class ChainVolume:
    """The chains on one volume."""

    def __init__(
        self,
        files: Files,
        node_path: str,
        open_table: OpenTable,
        new_worker: NewWorker,
        eager: Eager,
    ) -> None:
        self._files = files
        self._node_path = node_path
        self._path = f"{node_path}/chains"
        self._open_table = open_table
        self._new_worker = new_worker
        self._eager = eager
        self._workers: _Workers | None = None
        self._table: BlockTable | None = None
        self._store: WriteOnceStore | None = None
        self._reclaiming: Reclaiming | None = None
        self.replicas: Mapping[Replica, Standing] = {}  # those that are here
        self._opening: asyncio.Task[None] | None = None
        self._open_again_s = 0.0  # not before, by the loop's clock

    @property
    def stored_bytes(self) -> int:
        return 0 if self._store is None else self._store.stored_bytes

    @property
    def _works(self) -> bool:
        return self._store is not None and self._store.failed is None

    def open(self) -> None:
        """What is there already. Blocks."""
        if self._files.exists(self._path):
            try:
                self._open(self._make_workers())
            except Exception as error:
                self._cannot_open(error)

    async def make_ready(self) -> None:
        """For a new replica. Unavailable: the disk has failed."""
        if not self._works:
            self._open_soon()
        if self._opening is not None:
            await asyncio.shield(self._opening)
        if not self._works:
            raise Unavailable(f"the chains at {self._path} cannot be opened: see the node's log")

    def ask(self, replica: Replica, request: Request, done: Answered) -> None:
        """See WriteOnceStore.ask. Only when it holds the replica, or is ready for it."""
        store = self._store
        assert store is not None
        if store.failed is not None:
            self._open_soon()
        store.ask(replica, request, done)

    def is_damaged(self, replica: Replica) -> bool:
        """Something of it could not be read."""
        return self._store is not None and replica in self._store.damaged

    def reclaim_soon(self, replica: Replica, position: Glsn) -> None:
        """What the replica had up to this position is gone."""
        if self._reclaiming is not None:
            self._reclaiming.soon(replica, position)

    def stop(self) -> None:
        """Before the workers finish."""
        if self._opening is not None:
            self._opening.cancel()
        if self._reclaiming is not None:
            self._reclaiming.stop()

    def close(self) -> None:
        """When the workers have finished."""
        table, self._table = self._table, None
        if table is not None:
            table.close()

    # ---- opening

    def _open_soon(self) -> None:
        loop = asyncio.get_running_loop()
        if self._opening is None and loop.time() >= self._open_again_s:
            self._open_again_s = loop.time() + limits.CHAIN_REOPEN_S
            self._opening = loop.create_task(self._open_again())

    async def _open_again(self) -> None:
        workers = self._make_workers()
        if self._reclaiming is not None:
            self._reclaiming.stop()
        try:
            await off_loop(workers.look_ups, lambda: None)  # those under way hold the table
            await off_loop(workers.commits, partial(self._open, workers))
        except Exception as error:
            self._cannot_open(error)
        finally:
            self._opening = None

    def _open(self, workers: _Workers) -> None:
        self.close()
        self._table = table = self._open_table(self._path)
        self._files.sync_directory(self._node_path)
        self._reclaiming = Reclaiming(table, self._new_worker)
        self._store = WriteOnceStore(table, workers.commits, workers.look_ups, quick=workers.quick)
        self.replicas = self._store.replicas

    def _make_workers(self) -> _Workers:
        if self._workers is None:
            commits = self._new_worker()
            self._workers = _Workers(commits, self._eager(commits), self._new_worker())
        return self._workers

    def _cannot_open(self, error: Exception) -> None:
        logger.error("the chains at %s cannot be opened: %s", self._path, error)
