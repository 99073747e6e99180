"""The disks of a storage node: volumes, one journal each, a worker for reads, chains and copies.

What is not handed in is the real thing; the simulator hands in its own files and workers.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
import sys
import time
from collections.abc import Callable
from functools import partial

from loomlog.config import NodeSettings
from loomlog.node.chain_volumes import ChainVolumes, OpenTable
from loomlog.node.copyset.copies import Copies, OpenLogs
from loomlog.node.workers import finish
from loomlog.storage.block_table import BlockTable
from loomlog.storage.files import Files, Worker
from loomlog.storage.journal import Channel, Journal
from loomlog.storage.logsdb.table import LogsTable
from loomlog.storage.stream_meta import StreamMeta
from loomlog.storage.stream_store import StreamStore
from loomlog.storage.volumes import Identity, Volumes
from loomlog.types import LogId, NodeId, StreamId

logger = logging.getLogger(__name__)


class Disks:
    """Opened at the start of a node, closed at its end; both block."""

    def __init__(
        self,
        settings: NodeSettings,
        files: Files | None,
        new_worker: Callable[[], Worker] | None,
        open_table: OpenTable | None,
        open_logs: OpenLogs | None,
    ) -> None:
        self._settings = settings
        self._handed_in = files
        self._new_worker = new_worker or _thread_worker
        self._eager = _same_worker if new_worker else _eager_worker
        self._open_table = open_table or partial(_rocks_table, settings.node_id)
        self._open_logs = open_logs or _rocks_logs
        self._volumes: Volumes | None = None
        self._journals: dict[str, Journal] = {}  # by storage node path
        self._chains: ChainVolumes | None = None
        self._copies: Copies | None = None
        self._workers: list[Worker] = []
        self._stores: dict[StreamId, StreamStore] = {}

    def open(self) -> list[StreamStore]:
        """Check and lock the volumes; recover every replica on them."""
        self._files, lock = self._handed_in, None
        if self._files is None:
            from loomlog.storage.disk import RealFiles, lock_directory

            self._files, lock = RealFiles(), lock_directory
        settings = self._settings
        self._volumes = Volumes(
            self._files,
            settings.volumes,
            settings.cluster_id,
            settings.node_id,
            new_secret=partial(secrets.token_hex, 16),
            lock=lock,
            error_if_exists=settings.error_if_exists,
        )
        self.reader = self._worker()
        self._chains = ChainVolumes(
            self._files, self._volumes.paths, self._open_table, self._worker, self._eager
        )
        self._chains.open()
        self._copies = Copies(
            settings.node_id,
            self._files,
            self._volumes.paths[0],
            self._open_logs,
            self._worker,
            self._free_bytes,
            _now_us,
            self._volumes.note_copies,
        )
        self._copies.open()
        for path in self._volumes.streams.values():
            self._add(StreamStore.open(self._files, path, self._journal(path), settings.storage))
        return list(self._stores.values())

    @property
    def identity(self) -> Identity:
        return self._opened.identity

    @property
    def chains(self) -> ChainVolumes:
        assert self._chains is not None
        return self._chains

    @property
    def copies(self) -> Copies:
        assert self._copies is not None
        return self._copies

    @property
    def _opened(self) -> Volumes:
        assert self._volumes is not None
        return self._volumes

    def join(self, cluster_secret: str, lost_below: int) -> None:
        """Remember whose cluster this is; raises if it is another one than before."""
        self._opened.join(cluster_secret, lost_below)

    async def create(self, log_id: LogId, stream_id: StreamId) -> StreamStore:
        """A new, empty replica."""
        stored = {stream_id: store.stored_bytes for stream_id, store in self._stores.items()}
        path = self._opened.place(stream_id, stored)
        journal = self._journal(path)
        made: list[StreamStore] = []

        def create() -> None:
            meta = StreamMeta(log_id=log_id, stream_id=stream_id)
            assert self._files is not None
            made.append(
                StreamStore.create(self._files, path, meta, journal, self._settings.storage)
            )

        try:
            await self._in_order(journal, create)
        except BaseException:
            self._opened.forget(stream_id)
            raise
        self._add(made[0])
        return made[0]

    async def delete(self, store: StreamStore) -> None:
        """Remove a replica's files, after what is under way for it; a power loss does not bring
        them back."""

        def delete() -> None:
            store.close()
            self._opened.remove(store.meta.stream_id)

        await self._in_order(self._journal(store.path), delete)
        self._stores.pop(store.meta.stream_id, None)
        self._opened.forget(store.meta.stream_id)

    def close(self) -> None:
        if self._chains is not None:
            self._chains.stop()
        if self._copies is not None:
            self._copies.stop()
        for journal in self._journals.values():
            journal.close()
        for worker in self._workers:
            worker.close()
        for store in self._stores.values():
            store.close()
        if self._chains is not None:
            self._chains.close()
        if self._copies is not None:
            self._copies.close()
        if self._volumes is not None:
            self._volumes.close()

    def _add(self, store: StreamStore) -> None:
        self._stores[store.meta.stream_id] = store
        if store.context.damaged:
            logger.error("stream %d is damaged at %s", store.meta.stream_id, store.path)

    def _free_bytes(self) -> int:
        """On the first volume. Blocks."""
        if self._handed_in is not None:
            return sys.maxsize
        return shutil.disk_usage(self._opened.paths[0]).free

    def _journal(self, stream_path: str) -> Journal:
        volume = stream_path.rpartition("/")[0]
        if volume not in self._journals:
            call_later = asyncio.get_running_loop().call_later
            journal = Journal(self._worker(), call_later, self._settings.storage)
            self._journals[volume] = journal
        return self._journals[volume]

    def _worker(self) -> Worker:
        worker = self._new_worker()
        self._workers.append(worker)
        return worker

    async def _in_order(self, journal: Journal, step: Callable[[], None]) -> None:
        """Run blocking work in the journal, behind all that was asked of it before."""
        await finish(lambda done: journal.call(Channel("replica"), [step], done))


def _thread_worker() -> Worker:
    from loomlog.storage.disk import ThreadWorker

    return ThreadWorker(asyncio.get_running_loop())


def _eager_worker(worker: Worker) -> Worker:
    from loomlog.storage.eager_worker import EagerWorker

    return EagerWorker(worker)


def _same_worker(worker: Worker) -> Worker:
    """Where a job takes no real time there is nothing to be gained."""
    return worker


def _rocks_table(node_id: NodeId, path: str) -> BlockTable:
    from loomlog.storage.rocks_table import RocksTable

    return RocksTable(path, node_id)


def _rocks_logs(path: str) -> LogsTable:
    from loomlog.storage.logsdb.rocks_logs import RocksLogs

    return RocksLogs(path, _now_us())


def _now_us() -> int:
    return time.time_ns() // 1000
