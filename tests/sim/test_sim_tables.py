"""A table of blocks on a simulated disk: what was committed and synced survives."""

from __future__ import annotations

import errno

import pytest
from sim_tables import SimTable

from loomlog.core.chained.chain import Replica, junk
from loomlog.core.chained.replica import Put, Standing
from loomlog.storage.chained.block_table import BlockTable
from loomlog.testing.sim import SimDisk, World

HERE = Replica(1, 1, 0, 1)
PATH = "/volume/chains"


def made() -> SimDisk:
    disk = SimDisk(World(1), "a")
    files = disk.mount()
    files.make_directory("/volume")
    files.sync_directory("/")
    return disk


def opened(disk: SimDisk) -> SimTable:
    files = disk.mount()
    table = SimTable(files, PATH)
    files.sync_directory("/volume")
    return table


def test_what_is_synced_survives_a_power_loss() -> None:
    disk = made()
    table: BlockTable = opened(disk)
    table.commit([(HERE, Standing(3))], sync=True)
    table.commit([(HERE, Put(junk(5, 1)))], sync=False)
    disk.crash()
    again = opened(disk)
    assert again.replicas() == {HERE: Standing(3)}
    assert again.look(HERE).last() is None


def test_a_killed_process_loses_nothing() -> None:
    disk = made()
    table = opened(disk)
    table.commit([(HERE, Standing(3)), (HERE, Put(junk(5, 1)))], sync=False)
    disk.unmount()
    assert opened(disk).look(HERE).last() == (5, 1)


def test_a_table_in_a_directory_that_was_not_synced_may_vanish() -> None:
    disk = made()
    files = disk.mount()
    files.make_directory("/volume/unsynced")
    SimTable(files, "/volume/unsynced/chains").commit([(HERE, Standing(3))], sync=True)
    disk.crash()
    assert not disk.mount().exists("/volume/unsynced/chains")


def test_a_process_that_is_gone_changes_nothing() -> None:
    disk = made()
    stale, table = opened(disk), opened(disk)
    for change in (stale.replicas, lambda: stale.commit([(HERE, Standing(3))], sync=True)):
        with pytest.raises(OSError, match="Input/output"):
            change()
    assert table.replicas() == {}


def test_a_broken_disk_refuses_a_commit() -> None:
    disk = made()
    table = opened(disk)
    disk.settings.error = errno.ENOSPC
    with pytest.raises(OSError, match="space"):
        table.commit([(HERE, Standing(3))], sync=True)
    disk.settings.error = None
    disk.crash()
    assert opened(disk).replicas() == {}
