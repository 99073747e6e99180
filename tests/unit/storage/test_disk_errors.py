"""Any single change of a disk fails: nothing acknowledged is lost, and the store goes on when the
disk is well again. Then the power goes, too: a failed sync says nothing about what is stored."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from hand_worker import HandWorker
from logsdb_rig import LOG, LogsRig, record
from sim_tables import SimLogs, SimTable
from storage_rig import SMALL, StorageRig

from loomlog.core.chained import chain
from loomlog.core.chained.chain import junk
from loomlog.core.chained.messages import Answer, Create, Request, Seal, Stored, Write
from loomlog.core.copyset import messages as copyset
from loomlog.core.copyset.messages import Store
from loomlog.core.copyset.record import offset_of
from loomlog.storage.batch_files import BatchFiles
from loomlog.storage.chained.write_once import WriteOnceStore
from loomlog.storage.files import UnsyncedError
from loomlog.storage.ordered.stream_store import StreamStore
from loomlog.testing.sim.disk import SimDisk
from loomlog.testing.sim.world import World

PATH = "/volume/lsid=7"
ERRORS = [errno.ENOSPC, errno.EIO]


def prepared(seed: int) -> SimDisk:
    disk = SimDisk(World(seed), "host")
    files = disk.mount()
    files.make_directory("/volume")
    files.sync_directory("/")
    return disk


class Replica:
    """A replica that is worked with, and what it acknowledged."""

    def __init__(self, disk: SimDisk) -> None:
        self.rig = StorageRig(PATH, SMALL, disk.mount())
        self.written = 0  # LLSN = GLSN
        self.committed = 0
        self.trimmed = 0

    def work(self, batches: int) -> None:
        """Fill several files, set meta, cut and trim."""
        rig, store = self.rig, self.rig.store
        for _ in range(batches):
            llsn = rig.next_llsn
            rig.append(700, done=lambda error, llsn=llsn: self._note(error, written=llsn))  # type: ignore[misc]
            rig.settle()
            if self.written == llsn:  # only what is stored is committed
                rig.commit(llsn, 1, done=lambda error, llsn=llsn: self._note(error, committed=llsn))  # type: ignore[misc]
        rig.settle()
        store.set_meta(epoch=store.meta.epoch + 1, done=lambda error: None)
        position = self.committed // 2
        store.trim(position, lambda error: self._note(error, trimmed=position))
        rig.settle()

    def seal(self) -> None:
        """Drop what is not committed."""
        newest = self.rig.store._commits.last
        self.written = self.committed = newest.last_llsn if newest else 0
        self.rig.store.truncate(self.written, self.rig.done)
        self.rig.settle()
        assert self.rig.answers[-1] is None

    def _note(
        self,
        error: BaseException | None,
        *,
        written: int = 0,
        committed: int = 0,
        trimmed: int = 0,
    ) -> None:
        if error is None:
            self.written = max(self.written, written)
            self.committed = max(self.committed, committed)
            self.trimmed = max(self.trimmed, trimmed)

    def check(self, store: StreamStore) -> None:
        assert not store.context.damaged
        assert store.last_llsn >= self.written
        assert store.context.high_watermark >= self.committed
        assert store.meta.trimmed_glsn >= self.trimmed
        first = store.meta.trimmed_glsn + 1
        self.rig.store = store
        assert self.rig.read_all(first, self.committed) == list(range(first, self.committed + 1))


def changes_of(work: Callable[[SimDisk], None]) -> int:
    """Return how many changes of the disk it makes."""
    disk, count = prepared(1), 0

    def counted() -> None:
        nonlocal count
        count += 1
        disk.strike_after(1, counted)

    disk.strike_after(1, counted)
    work(disk)
    return count


REPLICA_CHANGES = changes_of(lambda disk: Replica(disk).work(18))


@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
def test_a_replica_loses_nothing_whatever_change_fails(number: int) -> None:
    assert REPLICA_CHANGES > 100
    failed = unsynced = 0
    for change in range(1, REPLICA_CHANGES + 1):
        disk = prepared(change)
        try:
            disk.fail_after(change, number)
            replica = Replica(disk)
        except OSError:  # it was not made: nothing was promised
            disk.strike_after(0, None)
            Replica(disk).work(3)
            continue
        replica.work(18)
        error = replica.rig.store.error
        failed += error is not None
        unsynced += isinstance(error, UnsyncedError)
        answers: list[BaseException | None] = []
        replica.rig.store.reopen(answers.append)
        replica.rig.settle()
        assert answers == [None]
        replica.check(replica.rig.store)
        replica.seal()
        replica.work(3)
        assert replica.rig.store.error is None
        assert replica.committed == replica.written
        disk.crash()
        replica.check(StorageRig(PATH, SMALL, disk.mount()).store)
    assert failed > unsynced > 10


def test_a_disk_that_fails_again_and_again_loses_nothing() -> None:
    for seed in range(20):
        disk = prepared(seed)
        replica = Replica(disk)
        for life in range(6):
            disk.fail_after(1 + (seed * 7 + life * 13) % 40, ERRORS[life % 2])
            replica.work(5)
            disk.strike_after(0, None)
            replica.rig.store.reopen(lambda error: None)
            replica.rig.settle()
            replica.check(replica.rig.store)
            replica.seal()
        disk.crash()
        replica.check(StorageRig(PATH, SMALL, disk.mount()).store)


# ---- files of large batches


def test_large_batches_are_where_they_were_said_to_be_whatever_change_failed() -> None:
    """A flush that failed may be repeated after the files were opened again."""
    for change in range(1, 40):
        disk = prepared(change)
        disk.mount().make_directory("/volume/logs")
        disk.mount().sync_directory("/volume")
        disk.fail_after(change, errno.EIO)
        heads: dict[tuple[tuple[int, int], int], bytes] = {}
        files = BatchFiles(disk.mount(), "/volume/logs")
        for number in range(12):
            batch = bytes([number]) * 100
            try:
                offset = files.add(number % 2, number % 3, batch)
                files.flush(sync=True)
            except OSError:
                files.close()
                files = BatchFiles(disk.mount(), "/volume/logs")
                files.remove_others({key for key, _ in heads})
                continue
            heads[(number % 2, number % 3), offset] = batch
        disk.strike_after(0, None)
        disk.crash()
        files = BatchFiles(disk.mount(), "/volume/logs")
        assert len(heads) >= 11
        for (key, offset), batch in heads.items():
            file = files.open(*key)
            assert bytes(file.read(len(batch), offset)) == batch


# ---- tables


def test_chains_lose_no_block_whatever_commit_fails() -> None:
    """A block that was answered with `Lost` may be there or not; a reopened store knows."""
    replica = chain.Replica(7, 1, 0, 1)
    for change in range(2, 16):
        disk, worker = prepared(change), HandWorker()
        store, stored = open_chains(disk, worker), set()
        disk.fail_after(change, errno.EIO)
        requests: list[Request] = [Create(), Seal(3)]
        requests += [Write(3, junk(first, 1)) for first in range(1, 12)]
        for request in requests:
            answers: list[Answer] = []
            store.ask(replica, request, answers.append)
            while worker.jobs:
                worker.work()
            if store.failed is not None:
                assert not isinstance(answers[0], Stored)
                store = open_chains(disk, worker)
            elif isinstance(request, Write) and answers == [Stored()]:
                stored.add(request.block.first)
        disk.strike_after(0, None)
        disk.crash()
        table = SimTable(disk.mount(), "/volume/chains")
        found = {extent.first for extent in table.look(replica).scan(1, 100)}
        assert stored <= found


def test_logs_lose_no_record_whatever_commit_fails() -> None:
    for change in range(2, 16):
        disk = prepared(change)
        rig, stored = open_logs(disk), set()
        disk.fail_after(change, errno.EIO)
        for offset in range(1, 14):
            answer = rig.ask(Store(LOG, record(offset)))
            if rig.store.failed:
                assert not isinstance(answer, copyset.Stored)
                rig = open_logs(disk)
            else:
                assert answer == copyset.Stored()
                stored.add(offset)
        assert len(stored) >= 11
        disk.strike_after(0, None)
        disk.crash()
        found = {offset_of(found.first) for found in open_logs(disk).read()}
        assert stored <= found


def open_logs(disk: SimDisk) -> LogsRig:
    files = disk.mount()
    table = SimLogs(files, "/volume/logs")
    files.sync_directory("/volume")
    return LogsRig(table)


def open_chains(disk: SimDisk, worker: HandWorker) -> WriteOnceStore:
    files = disk.mount()
    table = SimTable(files, "/volume/chains")
    files.sync_directory("/volume")
    return WriteOnceStore(table, worker, worker)
