"""Where a node keeps its chains: a table on each of its volumes, opened when it is needed.

    <volume>/cid=<cluster id>/snid=<node id>/chains/…

A node without chains has no table and no threads for one, and does not load RocksDB. A table that
cannot be opened has no replicas, as if its disk were lost; the node goes on with what else it has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from loomlog.core.chained.projection import Replica
from loomlog.core.chained.replica import Standing
from loomlog.errors import Unavailable
from loomlog.node.reclaiming import Reclaiming
from loomlog.node.workers import off_loop
from loomlog.storage.block_table import BlockTable
from loomlog.storage.files import Files, Worker
from loomlog.storage.write_once import WriteOnceStore
from loomlog.types import Glsn

logger = logging.getLogger(__name__)

OpenTable: TypeAlias = Callable[[str], BlockTable]


class ChainVolumes:
    """Opened at the start of a node, closed at its end; both block."""

    def __init__(
        self,
        files: Files,
        node_paths: Sequence[str],
        open_table: OpenTable,
        new_worker: Callable[[], Worker],
    ) -> None:
        self._files = files
        self._paths = [f"{path}/chains" for path in node_paths]
        self._open_table = open_table
        self._new_worker = new_worker
        self._stores: dict[str, WriteOnceStore] = {}  # by path
        self._tables: list[BlockTable] = []
        self._reclaiming: dict[WriteOnceStore, Reclaiming] = {}
        self._broken: set[str] = set()  # paths

    @property
    def replicas(self) -> dict[Replica, Standing]:
        """All that are here."""
        stores = self._stores.values()
        return {replica: found for store in stores for replica, found in store.replicas.items()}

    def store_of(self, replica: Replica) -> WriteOnceStore | None:
        """Where the replica is."""
        stores = self._stores.values()
        return next((store for store in stores if replica in store.replicas), None)

    def open(self) -> None:
        """What is there already."""
        for path in filter(self._files.exists, self._paths):
            try:
                self._stores[path] = self._open(path, self._new_worker(), self._new_worker())
            except Exception as error:
                self._give_up(path, error)

    async def place(self) -> WriteOnceStore:
        """For a new replica: the volume with the fewest."""
        usable = [path for path in self._paths if self._is_usable(path)]
        for path in sorted(usable, key=self._load):
            if path in self._stores:
                return self._stores[path]
            commits, look_ups = self._new_worker(), self._new_worker()
            try:
                store = await off_loop(commits, partial(self._open, path, commits, look_ups))
            except Exception as error:
                self._give_up(path, error)
            else:
                self._stores[path] = store
                return store
        raise Unavailable("no disk of this node can take chains: see its log, and restart it")

    def reclaim_soon(self, store: WriteOnceStore, replica: Replica, position: Glsn) -> None:
        """What the replica had up to this position is gone."""
        self._reclaiming[store].soon(replica, position)

    def stop(self) -> None:
        """Before the workers finish."""
        for reclaiming in self._reclaiming.values():
            reclaiming.stop()

    def close(self) -> None:
        """When the workers have finished."""
        for table in self._tables:
            table.close()

    def _is_usable(self, path: str) -> bool:
        store = self._stores.get(path)
        return path not in self._broken and (store is None or not store.failed)

    def _load(self, path: str) -> int:
        return len(self._stores[path].replicas) if path in self._stores else 0

    def _open(self, path: str, commits: Worker, look_ups: Worker) -> WriteOnceStore:
        """Blocks."""
        table = self._open_table(path)
        self._tables.append(table)
        self._files.sync_directory(path.rpartition("/")[0])
        store = WriteOnceStore(table, commits, look_ups)
        self._reclaiming[store] = Reclaiming(table, self._new_worker)
        return store

    def _give_up(self, path: str, error: Exception) -> None:
        logger.error("the chains at %s cannot be opened: %s", path, error)
        self._broken.add(path)
