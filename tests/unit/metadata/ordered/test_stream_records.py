"""The records of streams over crashes, and which nodes may still have something of a stream."""

from __future__ import annotations

from typing import Any

import pytest
from faulty_store import DyingStore, FaultyStore, PowerLoss

from loomlog.core.ordered.stream_record import StreamRecord
from loomlog.core.segments import Settings
from loomlog.errors import NotFound, SwapUnknown
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.catalog.records import LogRecord, NodeRecord
from loomlog.metadata.ordered.records import StreamRecords
from loomlog.metadata.store.memory import MemoryStore


async def load(store: MemoryStore) -> StreamRecords:
    catalog = await Catalog.load(store, "test", lambda: "secret")
    return await StreamRecords.load(store, catalog)


async def know_nodes(records: StreamRecords, count: int) -> None:
    for node in range(1, count + 1):
        await records.catalog.put_node(NodeRecord(node, f"n{node}:1", "s", "always", ()))


async def create(
    records: StreamRecords, replicas: int, placement: list[tuple[int, ...]]
) -> LogRecord:
    log = await records.catalog.create_log("events", Settings("ordered", len(placement), replicas))
    await records.add_streams(log, log.log_id, placement)
    return await records.catalog.log_created("events")


async def test_everything_is_read_back() -> None:
    store = MemoryStore()
    records = await load(store)
    log = await create(records, 1, [(1,)] * 11)
    await records.update(2, epoch=4, sealed=False)
    again = await load(store)
    assert again.streams == records.streams
    assert again.version_of(log.log_id) == records.version_of(log.log_id)
    assert [stream.stream_id for stream in again.of_log(log.log_id)] == list(range(1, 12))


@pytest.mark.parametrize("writes", range(7))
async def test_a_creation_cut_at_any_write_is_taken_back(writes: int) -> None:
    store = DyingStore()
    records = await load(store)
    store.writes_left = writes
    with pytest.raises(PowerLoss):
        await create(records, 1, [(1,), (2,), (3,)])
    store.writes_left = 1_000_000
    again = await load(store)
    assert again.catalog.logs == {}
    assert again.streams == {}
    assert list(again.abandoned) == list(range(1, max(writes - 2, 1)))
    log = await create(again, 1, [(1,)])
    assert log.log_id == (1 if writes == 0 else 2)
    assert [s.stream_id for s in again.of_log(log.log_id)] == ([1] if writes <= 2 else [4])


async def test_the_streams_of_a_deleted_log_are_abandoned() -> None:
    store = MemoryStore()
    records = await load(store)
    log = await create(records, 1, [(1,), (2,)])
    await records.catalog.delete_log("events")
    assert records.log_deleted(log.log_id) == [1, 2]
    for found in (records, await load(store)):
        assert (found.streams, list(found.abandoned), +found.catalog.load_of) == ({}, [1, 2], {})
    await records.forget(1)
    await records.forget(1)
    assert list((await load(store)).abandoned) == [2]


async def test_the_streams_of_a_trimmed_segment_are_abandoned_by_a_restart() -> None:
    store = MemoryStore()
    records = await load(store)
    log = await create(records, 1, [(1,)])
    loglet = await records.catalog.new_loglet()
    switched = log.layout.prepare(loglet, Settings("ordered", 1, 1)).ready().extend(7)
    assert await records.catalog.swap_layout("events", log.layout, switched)
    await records.catalog.trim_log("events", 7)
    assert list((await load(store)).abandoned) == [1]


async def test_the_version_of_a_log_does_not_go_back_with_a_stream() -> None:
    """Clients keep the description with the highest version."""
    records = await load(MemoryStore())
    log = await create(records, 1, [(1,)])
    await records.add_streams(log, log.log_id, [(1,)])
    shown = records.version_of(log.log_id)
    await records.update(2, taken_back=True)
    await records.forget(2)
    assert records.version_of(log.log_id) < shown
    assert records.catalog.version_of(log) > shown


async def test_old_records_load_with_what_was_added_later() -> None:
    store = MemoryStore()
    await create(await load(store), 2, [])
    old = b'{"stream_id":1,"log_id":1,"loglet":1,"replicas":[1,2],"epoch":3,"sealed":false}'
    await store.compare_and_swap("stream/1", 0, old)
    records = await load(store)
    stream = records.streams[1]
    assert (stream.wanted_running, stream.joining, stream.leaving) == (True, None, None)
    assert records.wanted_replicas(stream) == 2
    assert records.leaving(stream) is None


async def test_whoever_may_hold_something_of_a_stream_is_named() -> None:
    store = MemoryStore()
    records = await load(store)
    await know_nodes(records, 5)
    log = await create(records, 2, [(1, 2)])
    await records.swap_replicas(1, (1, 3), dropping=[], births={})  # 2 died, and keeps what it has
    assert records.streams[1].left == (2,)
    await records.swap_replicas(1, (1, 4), dropping=[3], births={})  # 3 was moved away
    await records.update(1, joining=5)
    assert records.catalog.load_of == {1: 1, 2: 0, 3: 0, 4: 1, 5: 1}
    again = await load(store)
    assert again.streams == records.streams
    assert (again.catalog.load_of, again.filling) == (+records.catalog.load_of, {1})
    await again.catalog.delete_log("events")
    again.log_deleted(log.log_id)
    assert again.abandoned[1].holders == (1, 4, 5, 3, 2)
    left = await again.change(1, lambda stream: stream.without_holders({4, 5, 3}))
    assert left.holders == (1, 2)


async def test_what_was_cleaned_up_is_not_looked_for_any_more() -> None:
    records = await load(MemoryStore())
    await create(records, 2, [(1, 2)])
    await records.swap_replicas(1, (1, 3), dropping=[], births={})
    await records.change(1, lambda stream: stream.without_dropped(2))
    assert (records.streams[1].left, records.streams[1].dropping) == ((2,), ())
    await records.change(1, lambda stream: stream.without_holders({2}))
    assert (records.streams[1].left, records.streams[1].dropping) == ((), ())


async def test_a_stream_that_was_being_added_in_a_crash_is_there_or_not() -> None:
    for writes in range(2):
        store = DyingStore()
        records = await load(store)
        log = await create(records, 1, [(1,)])
        store.writes_left = writes
        with pytest.raises(PowerLoss):
            await records.add_streams(log, log.log_id, [(1,)])
        store.writes_left = 1_000_000
        again = await load(store)
        assert list(again.streams) == [1]
        (added,) = await again.add_streams(log, log.log_id, [(1,)])
        assert [s.stream_id for s in again.of_log(log.log_id)] == [1, added.stream_id]


@pytest.mark.parametrize("loses", ["request", "answer"])
async def test_a_write_that_may_have_happened_is_replaced_by_the_next(loses: str) -> None:
    store = FaultyStore()
    records = await load(store)
    await create(records, 1, [(1,)])
    store.loses = loses
    with pytest.raises(SwapUnknown):
        await records.update(1, epoch=2)
    assert records.streams[1].epoch == 1, "nobody may act upon it"
    await records.update(1, epoch=3)
    store.loses = loses
    with pytest.raises(SwapUnknown):
        await records.forget(1)
    await records.forget(1)
    with pytest.raises(NotFound, match="stream 1 was deleted"):
        await records.update(1, epoch=4)
    assert (await load(store)).streams == records.streams == {}


async def test_what_is_placed_is_counted_as_it_changes() -> None:
    """Placing a stream must not look at all others."""
    store = MemoryStore()
    records = await load(store)
    await know_nodes(records, 5)
    log = await create(records, 2, [(1, 2), (2, 1), (1, 3)])
    await records.swap_replicas(1, (4, 2), dropping=[1], births={})
    await records.update(2, taken_back=True)
    for found in (records, await load(store)):
        assert +found.catalog.placed.replicas == {1: 1, 2: 1, 3: 1, 4: 1}
        assert +found.catalog.placed.primaries == {1: 1, 4: 1}
    await records.catalog.delete_log("events")
    records.log_deleted(log.log_id)
    assert not +records.catalog.placed.replicas
    await records.forget(1)
    assert not +records.catalog.placed.primaries


class Unlisted(dict[int, StreamRecord]):
    """Does not show all that it has."""

    def values(self) -> Any:
        raise AssertionError("all streams were looked at for one log")

    def __iter__(self) -> Any:
        raise AssertionError("all streams were looked at for one log")


async def test_deleting_a_log_looks_at_no_streams_of_others() -> None:
    records = await load(MemoryStore())
    log = await create(records, 1, [(1,), (2,)])
    await records.catalog.delete_log("events")
    records.streams, records.abandoned = Unlisted(records.streams), Unlisted(records.abandoned)
    assert records.log_deleted(log.log_id) == [1, 2]
    assert records.without_segment(log.log_id) == [1, 2]
    assert records.entries_gone(log.log_id) == 0


async def test_the_streams_of_a_node_are_found_without_looking_at_others() -> None:
    store = MemoryStore()
    records = await load(store)
    await know_nodes(records, 4)
    log = await create(records, 2, [(1, 2), (2, 3), (3, 1)])

    def on(found: StreamRecords) -> list[list[int]]:
        return [sorted(s.stream_id for s in found.on_node(node)) for node in range(1, 5)]

    assert on(records) == [[1, 3], [1, 2], [2, 3], []]
    assert records.logs_on(1) == [log.log_id]
    assert records.logs_on(4) == []
    await records.wish(1, joining=4)
    assert on(records) == [[1, 3], [1, 2], [2, 3], [1]]
    await records.swap_replicas(1, (2, 4), dropping=(1,), births={4: 9})
    for found in (records, await load(store)):
        assert on(found) == [[3], [1, 2], [2, 3], [1]]
        assert sorted(s.stream_id for s in found.held_by(1)) == [1, 3]  # it has to delete one
    await records.update(3, taken_back=True)
    assert on(records) == [[], [1, 2], [2], [1]]
    await records.catalog.delete_log("events")
    records.log_deleted(log.log_id)
    assert on(records) == [[], [], [], []]
