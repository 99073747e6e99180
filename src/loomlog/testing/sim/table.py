"""A table of blocks on a simulated disk, for one life of a process.

It is one file among others; its commits happen whole or not at all. RocksDB is not simulated.
"""

from __future__ import annotations

from collections.abc import Sequence

from loomlog.core.chained.projection import Replica
from loomlog.core.chained.replica import Change, Standing
from loomlog.storage.memory_table import MemoryReplica, MemoryTable
from loomlog.testing.sim.disk import SimFiles
from loomlog.types import Glsn


class SimTable:
    """What is committed with `sync` survives a power loss."""

    def __init__(self, files: SimFiles, path: str) -> None:
        self._files = files
        self._path = path
        self._table: MemoryTable = files.open_table(path, MemoryTable)

    def replicas(self) -> dict[Replica, Standing]:
        self._files.check(self._path)
        return self._table.replicas()

    def look(self, replica: Replica) -> MemoryReplica:
        self._files.check(self._path)
        return self._table.look(replica)

    def commit(self, changes: Sequence[tuple[Replica, Change]], *, sync: bool) -> None:
        self._files.changing(self._path)
        self._files.disk.note("commit", self._path, len(changes))
        self._table.commit(changes, sync=sync)

    def get_ready(self) -> None:
        pass

    def stored_bytes(self) -> int:
        return self._table.stored_bytes()

    def reclaim(self, replica: Replica, position: Glsn) -> None:
        self._files.check(self._path)

    def interrupt(self) -> None:
        pass

    def close(self) -> None:
        self._table.close()
