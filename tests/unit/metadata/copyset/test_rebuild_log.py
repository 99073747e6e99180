"""The event log of rebuilding in a MetaStore."""

from __future__ import annotations

import pytest
from faulty_store import FaultyStore

from loomlog.core.copyset.rebuild.events import (
    DonorProgress,
    IsRebuilt,
    Mode,
    NeedsRebuild,
    Rescan,
    Status,
    Unrecoverable,
)
from loomlog.errors import SwapUnknown
from loomlog.metadata.copyset import rebuild_log
from loomlog.metadata.copyset.rebuild_log import Extent, RebuildLog
from loomlog.metadata.store.memory import MemoryStore

RESTORE = NeedsRebuild(3, Mode.RESTORE)
EXTENT = Extent({7: 2, 9: 5}, loss=11)


async def test_events_and_what_is_rebuilt_are_there_for_the_next_leader() -> None:
    store = MemoryStore()
    log = await RebuildLog.load(store)
    await log.append(RESTORE, EXTENT)
    await log.append(DonorProgress(3, 1, 1, records=10, size_bytes=100, scans=1))
    after = await RebuildLog.load(store)
    assert (after.state, after.extents) == (log.state, {3: EXTENT})
    assert after.state.status(3) is Status.RESTORING


async def test_an_event_that_does_not_fit_leaves_the_extent_as_it_is() -> None:
    log = await RebuildLog.load(MemoryStore())
    await log.append(RESTORE, EXTENT)
    await log.append(RESTORE, Extent({1: 1}))
    assert log.extents == {3: EXTENT}


async def test_what_donors_leave_out_is_decided_anew_with_each_version() -> None:
    store = MemoryStore()
    log = await RebuildLog.load(store)
    await log.append(RESTORE, EXTENT, held=[7])
    await log.append(DonorProgress(3, 1, 1, records=10, size_bytes=100, scans=1))
    assert (await RebuildLog.load(store)).held == log.held == {7}
    await log.append(Rescan(3), held=[9])
    after = await RebuildLog.load(store)
    assert after.held == {9}
    assert after.extents == {3: EXTENT}
    assert after.state.version == 3


async def test_a_snapshot_takes_the_place_of_old_events() -> None:
    store = MemoryStore()
    log = await RebuildLog.load(store)
    await log.append(RESTORE, EXTENT, held=[9, 7])
    for count in range(2 * rebuild_log.EVENTS_MAX):
        await log.append(DonorProgress(3, 1, 1, count, count, scans=1))
    assert len(await store.list(rebuild_log.PREFIX)) <= rebuild_log.EVENTS_MAX + 1
    after = await RebuildLog.load(store)
    assert (after.state, after.extents) == (log.state, {3: EXTENT})
    assert after.held == {7, 9}
    await after.append(IsRebuilt(3, 1))
    assert after.held == {7, 9}
    assert (await RebuildLog.load(store)).state.status(3) is Status.EMPTY


@pytest.mark.parametrize("is_written", [False, True])
async def test_an_event_whose_write_was_not_answered_is_looked_for(is_written: bool) -> None:
    store = FaultyStore()
    log = await RebuildLog.load(store)
    await log.append(RESTORE, EXTENT)
    store.loses = "answer" if is_written else "request"
    with pytest.raises(SwapUnknown):
        await log.append(Unrecoverable(3), EXTENT)
    await log.append(Unrecoverable(3), EXTENT)
    assert log.state.status(3) is Status.LOST
    assert log.state.events == 2 + is_written
    assert (await RebuildLog.load(store)).state == log.state
