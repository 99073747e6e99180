"""The data directory of a vmr: validation, and opening of its stores.

    metadata.sqlite, rounds/    a vmr alone
    quorum/                     one of several, whose metadata is in etcd

A directory that holds part of a cluster is never used for a new one: that would create a new secret
and reuse numbers, while the nodes still hold everything.

The simulator injects everything that has side effects: files and worker (round log), store
(metadata). By default it is the real disk, and SQLite or etcd.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from typing import Final

from loomlog import limits
from loomlog.config import MetadataSettings
from loomlog.core.conditions import Condition, Kind
from loomlog.errors import (
    Corrupt,
    DiskFailed,
    InvalidArgument,
    LoomError,
    NotFound,
    Retryable,
    SwapUnknown,
)
from loomlog.metadata.leader.membership import LEADER, has_lost_nothing
from loomlog.metadata.rounds.member_disk import is_begun
from loomlog.metadata.rounds.quorum_member import QuorumMember
from loomlog.metadata.rounds.round_files import FileRoundLog
from loomlog.metadata.store.contract import LateStore, MetaStore
from loomlog.storage.disk_speed import measure
from loomlog.storage.files import Files, Space, Worker
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.server_check import volume_check

logger = logging.getLogger(__name__)

STORE_RETRY_S: Final = 0.5
STORE_LOOK_S: Final = 2.0  # between checks whether etcd answers


class DataDirectory:
    """Opens the stores of a vmr, and closes them in reverse order."""

    def __init__(
        self,
        settings: MetadataSettings,
        files: Files | None,
        worker: Worker | None,
        store: MetaStore | None,
        round_file_bytes: int,
    ) -> None:
        self._settings = settings
        self._path = settings.directory
        self._is_real = files is None
        self._files = files or _real_files()
        self._worker = worker
        self._store = store
        self._round_file_bytes = round_file_bytes
        self._at_close = AsyncExitStack()  # undone in reverse
        self._troubles: list[Callable[[], str]] = []  # error of the disk; "": none
        self._store_trouble = ""  # why etcd cannot be written now

    async def close(self) -> None:
        await self._at_close.aclose()

    def conditions(self) -> list[Condition]:
        """Return the conditions of the disk and of etcd."""
        found = [(Kind.METADATA_DISK, trouble()) for trouble in self._troubles]
        found.append((Kind.METADATA_STORE, self._store_trouble))
        return [Condition(kind, text) for kind, text in found if text]

    async def check(self) -> pb.VolumeCheck:
        """Measure the disk."""
        return volume_check(self._path, *await asyncio.to_thread(measure, self._files, self._path))

    async def space(self) -> Space:
        return await asyncio.to_thread(self._files.space, self._path)

    async def until_gone(self) -> DiskFailed:
        """Wait until the directory is deleted or replaced; from then on, writes would be lost."""
        inode = self._files.inode(self._path)
        while await asyncio.to_thread(self._is_at, inode):  # noqa: ASYNC110
            await asyncio.sleep(limits.VOLUME_LOOK_S)
        return DiskFailed(
            f"{self._path} is gone or was replaced: bring it back and start this process again"
        )

    def _is_at(self, inode: int) -> bool:
        try:
            return self._files.inode(self._path) == inode
        except OSError:
            return False

    # ---- a single vmr

    async def open_alone(self) -> tuple[MetaStore, FileRoundLog]:
        self._files.make_directory(self._path)
        check_alone(self._files, self._path)
        store = self._store or await self._open_sqlite()
        # The cluster's record is written after the first round file: once it exists, a missing
        # round log is a loss, not a new cluster.
        create = await store.get("cluster") is None
        with ExitStack() as closing:  # the file is closed after its worker has ended
            round_log = FileRoundLog.open(
                self._files,
                rounds_in(self._path),
                self._worker or _new_worker("loomlog-rounds", closing),
                create=create,
                file_bytes=self._round_file_bytes,
            )
            self._at_close.callback(round_log.close)
            self._troubles.append(lambda: round_log.trouble)
            self._at_close.push(closing.pop_all())
        return store, round_log

    async def _open_sqlite(self) -> MetaStore:
        from loomlog.metadata.store.sqlite import SqliteStore

        worker = _new_worker("loomlog-metadata", self._at_close)
        # The database is created before the first round file.
        create = not has_rounds(self._files, self._path)
        try:
            store = await SqliteStore.open(database_in(self._path), worker, create=create)
        except NotFound:
            raise metadata_missing(self._path) from None
        self._at_close.push_async_callback(store.close)
        self._troubles.append(lambda: store.trouble)
        return store

    # ---- one of several

    async def open_of_several(self) -> tuple[MetaStore, QuorumMember]:
        store = self._store or await self._open_etcd()
        directory = quorum_in(self._path)
        self._files.make_directory(self._path)
        check_of_several(self._files, self._path)
        if self._is_real:
            from loomlog.storage.disk import lock_directory

            self._at_close.callback(lock_directory(self._path).close)
        create = not is_begun(self._files, directory) and await self._has_lost_nothing(store)
        with ExitStack() as closing:  # the files are closed after their worker has ended
            member = QuorumMember.open(
                self._settings.member_id,
                self._files,
                directory,
                self._worker or _new_worker("loomlog-rounds", closing),
                create=create,
                file_bytes=self._round_file_bytes,
            )
            self._at_close.callback(member.close)
            self._at_close.push(closing.pop_all())
        return store, member

    async def _open_etcd(self) -> MetaStore:
        from loomlog.metadata.store.etcd import EtcdStore

        settings = self._settings.etcd
        if settings is None:
            raise InvalidArgument("several metadata repositories need an etcd: give its address")
        store = LateStore(lambda: EtcdStore.open(settings))
        self._at_close.push_async_callback(store.close)
        try:
            await store.open()
        except Retryable as error:
            logger.warning("starts without its MetaStore: %s", error)
        watch = asyncio.get_running_loop().create_task(self._watch_etcd(store))
        self._at_close.callback(watch.cancel)
        return store

    async def _watch_etcd(self, store: MetaStore) -> None:
        while True:
            await self.look_at(store)
            await asyncio.sleep(STORE_LOOK_S)

    async def look_at(self, store: MetaStore) -> None:
        """Record whether a store answers: a leader may have nothing to change for days."""
        try:
            await store.get(LEADER)
            self._store_trouble = ""
        except LoomError as error:
            self._store_trouble = (
                f"metadata cannot be changed, and no other vmr could take over: {error}"
            )

    async def _has_lost_nothing(self, store: MetaStore) -> bool:
        while True:
            try:
                return await has_lost_nothing(store, self._settings.member_id)
            except (Retryable, SwapUnknown) as error:
                logger.warning("this is a first start, and waits for the MetaStore: %s", error)
                await asyncio.sleep(STORE_RETRY_S)


def _real_files() -> Files:
    from loomlog.storage.disk import RealFiles

    return RealFiles()


def _new_worker(name: str, at_close: ExitStack | AsyncExitStack) -> Worker:
    from loomlog.storage.disk import EagerWorker, ThreadWorker

    loop = asyncio.get_running_loop()
    worker = EagerWorker(ThreadWorker(loop, name), loop.call_soon)
    at_close.callback(worker.close)
    return worker


# ---- validation


def database_in(directory: str) -> str:
    return f"{directory}/metadata.sqlite"


def rounds_in(directory: str) -> str:
    return f"{directory}/rounds"


def quorum_in(directory: str) -> str:
    return f"{directory}/quorum"


def has_rounds(files: Files, directory: str) -> bool:
    return _is_filled(files, rounds_in(directory))


def check_alone(files: Files, directory: str) -> None:
    """Raise InvalidArgument if the directory belongs to one of several vmr."""
    if _is_filled(files, quorum_in(directory)):
        raise InvalidArgument(
            f"{directory} belongs to one of several vmr: start it with --store etcd, or give an "
            "empty --data to a new cluster"
        )


def check_of_several(files: Files, directory: str) -> None:
    """Raise InvalidArgument if the directory belongs to a single vmr."""
    if has_rounds(files, directory) or files.exists(database_in(directory)):
        raise InvalidArgument(
            f"{directory} holds the metadata of a vmr alone: move it with `loom metadata export` "
            "and `loom metadata import`, and give an empty --data"
        )


def metadata_missing(directory: str) -> Corrupt:
    return Corrupt(
        f"{rounds_in(directory)} holds the rounds of a cluster, but {database_in(directory)} holds "
        "no metadata: restore that file (and its -wal) from a copy, or the directory from an "
        "export with `loom metadata import`; for a new cluster give an empty --data"
    )


def _is_filled(files: Files, directory: str) -> bool:
    return files.exists(directory) and bool(files.list(directory))
