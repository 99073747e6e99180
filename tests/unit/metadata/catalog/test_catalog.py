"""The catalog over crashes: whatever write was the last, a restart finds something whole."""

from __future__ import annotations

import pytest
from faulty_store import FaultyStore

from loomlog.core.segments import Settings
from loomlog.errors import Conflict, Corrupt, InvalidArgument, SwapUnknown
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.catalog.records import LogRecord, NodeRecord, TombstoneRecord
from loomlog.metadata.store.contract import Fence
from loomlog.metadata.store.memory import MemoryStore


class PowerLoss(Exception):  # noqa: N818 - what happens, not what is wrong
    pass


class DyingStore(MemoryStore):
    """Takes so many writes, then dies; `revive` and hand it to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.writes_left = 1_000_000

    async def compare_and_swap(
        self, key: str, expected: int, value: bytes | None, *, fences: tuple[Fence, ...] = ()
    ) -> int:
        if not self.writes_left:
            raise PowerLoss
        self.writes_left -= 1
        return await super().compare_and_swap(key, expected, value, fences=fences)


def remains_of(tombstone: TombstoneRecord) -> tuple[tuple[int, tuple[int, ...]], ...]:
    return tuple((remains.stream_id, remains.nodes) for remains in tombstone.remains)


async def load(store: MemoryStore) -> Catalog:
    return await Catalog.load(store, "test", lambda: "secret")


async def create_log(
    catalog: Catalog, replicas: int, placement: list[tuple[int, ...]]
) -> LogRecord:
    """As the keeper of protocol `ordered` does; it is still being created."""
    log = await catalog.create_log("events", Settings("ordered", len(placement), replicas))
    await catalog.add_streams("events", log.log_id, placement)
    return catalog.logs["events"]


async def test_everything_is_read_back() -> None:
    store = MemoryStore()
    catalog = await load(store)
    await catalog.put_node(NodeRecord(1, "a:1", "s", "always", ("/v1", "/v2")))
    await create_log(catalog, 1, [(1,), (1,)])
    await catalog.log_created("events")
    await catalog.update_stream(2, epoch=4, sealed=False)
    await catalog.trim_log("events", 17)
    again = await load(store)
    assert again.cluster == catalog.cluster
    assert again.nodes == catalog.nodes
    assert again.logs == catalog.logs
    assert again.streams == catalog.streams
    assert again.version_of(again.log("events")) == catalog.version_of(catalog.log("events"))


async def know_nodes(catalog: Catalog, count: int) -> None:
    for node in range(1, count + 1):
        await catalog.put_node(NodeRecord(node, f"n{node}:1", "s", "always", ()))


async def create(catalog: Catalog) -> None:
    await create_log(catalog, 1, [(1,), (2,), (3,)])
    await catalog.log_created("events")


@pytest.mark.parametrize("writes", range(8))
async def test_a_creation_cut_at_any_write_is_taken_back_or_whole(writes: int) -> None:
    store = DyingStore()
    catalog = await load(store)
    await know_nodes(catalog, 3)
    store.writes_left = writes
    with pytest.raises(PowerLoss):
        await create(catalog)
    store.writes_left = 1_000_000
    again = await load(store)
    assert again.logs == {}
    assert again.streams == {}
    # Only streams that a log names can have replicas; those are to be removed.
    assert len(again.tombstones) == (1 if writes == 7 else 0)
    log = await create_log(again, 1, [(1,)])
    assert log.log_id == (1 if writes == 0 else 2)
    assert log.streams == ((1,) if writes <= 2 else (4,))


@pytest.mark.parametrize("writes", range(4))
async def test_a_deletion_cut_at_any_write_happened_or_not(writes: int) -> None:
    store = DyingStore()
    catalog = await load(store)
    await know_nodes(catalog, 2)
    await create_log(catalog, 1, [(1,), (2,)])
    await catalog.log_created("events")
    store.writes_left = writes
    with pytest.raises(PowerLoss):
        await catalog.delete_log("events")
    store.writes_left = 1_000_000
    again = await load(store)
    if writes == 0:
        assert list(again.logs) == ["events"]
        assert len(again.streams) == 2
        assert again.tombstones == {}
    else:
        assert again.logs == {}
        assert again.streams == {}
        assert remains_of(again.tombstones[1]) == ((1, (1,)), (2, (2,)))


@pytest.mark.parametrize("writes", range(3))
async def test_a_deleted_log_without_streams_leaves_no_tombstone(writes: int) -> None:
    store = DyingStore()
    catalog = await load(store)
    await catalog.create_log("events", Settings("chained", 1, 1))
    await catalog.log_created("events")
    store.writes_left = writes
    with pytest.raises(PowerLoss):
        await catalog.delete_log("events")
    store.writes_left = 1_000_000
    again = await load(store)
    assert list(again.logs) == ([] if writes else ["events"])
    assert again.tombstones == {}
    assert await store.list("tombstone/") == {}


async def test_a_tombstone_goes_with_the_last_replica() -> None:
    store = MemoryStore()
    catalog = await load(store)
    await know_nodes(catalog, 3)
    await create_log(catalog, 2, [(1, 2), (2, 3)])
    await catalog.delete_log("events")
    await catalog.replicas_gone(1, {1, 2}, 2)
    assert remains_of(catalog.tombstones[1]) == ((1, (1,)), (2, (3,)))
    await catalog.replicas_gone(1, {1}, 1)
    await catalog.replicas_gone(1, {2}, 3)
    await catalog.replicas_gone(1, {2}, 3)
    assert catalog.tombstones == {}
    assert await store.list("tombstone/") == {}


async def test_who_lost_the_metadata_to_somebody_else_notices() -> None:
    store = MemoryStore()
    old, new = await load(store), await load(store)
    await new.put_node(NodeRecord(1, "a:1", "s", "always", ()))
    with pytest.raises(Conflict):
        await old.put_node(NodeRecord(1, "b:1", "s", "always", ()))


async def test_metadata_of_another_cluster_or_shape_is_refused() -> None:
    store = MemoryStore()
    await load(store)
    with pytest.raises(InvalidArgument, match="belongs to cluster 'test'"):
        await Catalog.load(store, "other", lambda: "secret")
    await store.compare_and_swap("log/x", 0, b'{"surprise": 1}')
    with pytest.raises(Corrupt, match="log/x"):
        await load(store)


# ---- streams that change


async def test_old_records_load_with_what_was_added_later() -> None:
    store = MemoryStore()
    await load(store)
    old = b'{"stream_id":1,"log_id":1,"loglet":1,"replicas":[1,2],"epoch":3,"sealed":false}'
    await store.compare_and_swap("stream/1", 0, old)
    segment = b'[1,["ordered",1,2],1,null]'
    log = b'{"log_id":1,"name":"a","segments":[%b],"streams":[1]}' % segment
    await store.compare_and_swap("log/a", 0, log)
    node = b'{"node_id":1,"address":"a:1","node_secret":"s","sync_mode":"none","volumes":[]}'
    await store.compare_and_swap("node/1", 0, node)
    catalog = await load(store)
    stream = catalog.streams[1]
    assert (stream.wanted_running, stream.joining, stream.leaving) == (True, None, None)
    assert catalog.wanted_replicas(stream) == 2
    assert catalog.leaving(stream) is None
    assert not catalog.nodes[1].draining


async def test_whoever_may_hold_something_of_a_log_hears_of_its_deletion() -> None:
    store = MemoryStore()
    catalog = await load(store)
    await know_nodes(catalog, 5)
    await create_log(catalog, 2, [(1, 2)])
    await catalog.log_created("events")
    await catalog.swap_replicas(1, (1, 3), dropping=[], births={})  # 2 died, and keeps what it has
    assert catalog.streams[1].left == (2,)
    await catalog.swap_replicas(1, (1, 4), dropping=[3], births={})  # 3 was moved away
    await catalog.update_stream(1, joining=5)
    assert catalog.load_of == {1: 1, 2: 0, 3: 0, 4: 1, 5: 1}
    again = await load(store)
    assert again.streams == catalog.streams
    assert (again.load_of, again.filling) == (+catalog.load_of, {1})
    tombstone = await again.delete_log("events")
    assert remains_of(tombstone) == ((1, (1, 4, 5, 3, 2)),)
    assert +again.load_of == {}
    await again.remove_node(2)
    assert remains_of(again.tombstones[1]) == ((1, (1, 4, 5, 3)),)


async def test_what_was_cleaned_up_is_not_looked_for_any_more() -> None:
    catalog = await load(MemoryStore())
    await know_nodes(catalog, 3)
    await create_log(catalog, 2, [(1, 2)])
    await catalog.swap_replicas(1, (1, 3), dropping=[], births={})
    await catalog.replica_dropped(1, 2)
    assert (catalog.streams[1].left, catalog.streams[1].dropping) == ((2,), ())
    await catalog.replica_cleaned_up(1, 2)
    assert (catalog.streams[1].left, catalog.streams[1].dropping) == ((), ())


async def test_numbers_that_a_node_has_are_never_given() -> None:
    store = MemoryStore()
    catalog = await load(store)
    await catalog.raise_ids(7, 12)
    await catalog.raise_ids(3, 2)
    log = await create_log(await load(store), 1, [(1,)])
    assert (log.log_id, log.streams) == (8, (13,))
    with pytest.raises(InvalidArgument, match="found log 0, stream 4294967295"):
        await catalog.raise_ids(0, (1 << 32) - 1)


async def test_a_stream_that_was_being_added_in_a_crash_is_there_or_not() -> None:
    for writes in range(3):
        store = DyingStore()
        catalog = await load(store)
        await create_log(catalog, 1, [(1,)])
        await catalog.log_created("events")
        store.writes_left = writes
        with pytest.raises(PowerLoss):
            await catalog.add_streams("events", 1, [(1,)])
        store.writes_left = 1_000_000
        again = await load(store)
        assert list(again.streams) == [1]
        (added,) = await again.add_streams("events", 1, [(1,)])
        assert again.log("events").streams == (1, added.stream_id)


# ---- a store on other machines


class ForgetfulStore(MemoryStore):
    """Does not say whether the next write happened."""

    def __init__(self) -> None:
        super().__init__()
        self.forgets = False
        self.does = False  # what it does not tell

    async def compare_and_swap(
        self, key: str, expected: int, value: bytes | None, *, fences: tuple[Fence, ...] = ()
    ) -> int:
        if self.forgets:
            self.forgets = False
            if self.does:
                await super().compare_and_swap(key, expected, value, fences=fences)
            raise SwapUnknown("no answer")
        return await super().compare_and_swap(key, expected, value, fences=fences)


@pytest.mark.parametrize("does", [True, False])
async def test_a_write_that_may_have_happened_is_replaced_by_the_next(does: bool) -> None:
    store = ForgetfulStore()
    store.does = does
    catalog = await load(store)
    await know_nodes(catalog, 3)
    await create(catalog)
    await catalog.log_created("events")
    store.forgets = True
    with pytest.raises(SwapUnknown):
        await catalog.update_stream(1, epoch=2)
    assert catalog.streams[1].epoch == 1, "nobody may act upon it"
    await catalog.update_stream(1, epoch=3)
    store.forgets = True
    with pytest.raises(SwapUnknown):
        await catalog.take_back_stream("events", 1)
    await catalog.take_back_stream("events", 1)
    again = await load(store)
    assert again.streams == catalog.streams
    assert again.logs == catalog.logs


async def test_a_damaged_record_is_named_and_nothing_is_changed() -> None:
    store = FaultyStore()
    catalog = await load(store)
    await know_nodes(catalog, 3)
    await create(catalog)
    await catalog.log_created("events")
    store.damage("log/events")
    before = dict(store._items)
    with pytest.raises(Corrupt, match=r"'log/events' is damaged.*restore"):
        await load(store)
    assert store._items == before


async def test_records_or_rounds_without_a_cluster_are_not_a_new_one() -> None:
    store = MemoryStore()
    with pytest.raises(Corrupt, match="there are rounds"):
        await Catalog.load(store, "test", lambda: "secret", has_rounds=True)
    await know_nodes(await load(store), 1)
    del store._items["cluster"]
    with pytest.raises(Corrupt, match="records such as 'node/1'"):
        await load(store)
