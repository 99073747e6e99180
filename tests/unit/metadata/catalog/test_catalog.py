"""The catalog is consistent after a restart, whichever write was the last before a crash."""

from __future__ import annotations

from dataclasses import replace

import pytest
from faulty_store import DyingStore, FaultyStore, PowerLoss

from loomlog.core.segments import Settings
from loomlog.errors import Conflict, Corrupt, InvalidArgument, SwapUnknown
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.catalog.records import NodeRecord
from loomlog.metadata.store.memory import MemoryStore

SETTINGS = Settings("ordered", 1, 1)


async def load(store: MemoryStore) -> Catalog:
    return await Catalog.load(store, "test", lambda: "secret")


async def create(catalog: Catalog) -> None:
    await catalog.create_log("events", SETTINGS)
    await catalog.log_created("events")


async def know_nodes(catalog: Catalog, count: int) -> None:
    for node in range(1, count + 1):
        await catalog.put_node(NodeRecord(node, f"n{node}:1", "s", "always", ()))


async def test_everything_is_read_back() -> None:
    store = MemoryStore()
    catalog = await load(store)
    await catalog.put_node(NodeRecord(1, "a:1", "s", "always", ("/v1", "/v2")))
    await create(catalog)
    await catalog.trim_log("events", 17)
    again = await load(store)
    assert again.cluster == catalog.cluster
    assert again.nodes == catalog.nodes
    assert again.logs == catalog.logs
    assert again.version_of(again.log("events")) == catalog.version_of(catalog.log("events"))


@pytest.mark.parametrize("writes", range(3))
async def test_a_creation_cut_at_any_write_is_taken_back(writes: int) -> None:
    store = DyingStore()
    catalog = await load(store)
    store.writes_left = writes
    with pytest.raises(PowerLoss):
        await create(catalog)
    store.writes_left = 1_000_000
    again = await load(store)
    assert again.logs == {}
    log = await again.create_log("events", SETTINGS)
    assert log.log_id == (1 if writes == 0 else 2), "ids are never used again"


@pytest.mark.parametrize("writes", range(2))
async def test_a_deletion_cut_at_any_write_happened_or_not(writes: int) -> None:
    store = DyingStore()
    catalog = await load(store)
    await create(catalog)
    store.writes_left = writes
    with pytest.raises(PowerLoss):
        await catalog.delete_log("events")
    store.writes_left = 1_000_000
    again = await load(store)
    assert list(again.logs) == ([] if writes else ["events"])
    assert list(await store.list("log/")) == ([] if writes else ["log/events"])


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


async def test_old_records_load_with_what_was_added_later() -> None:
    store = MemoryStore()
    await load(store)
    segment = b'[1,["ordered",1,2],1,null]'
    log = b'{"log_id":1,"name":"a","segments":[%b]}' % segment
    await store.compare_and_swap("log/a", 0, log)
    node = b'{"node_id":1,"address":"a:1","node_secret":"s","sync_mode":"none","volumes":[]}'
    await store.compare_and_swap("node/1", 0, node)
    catalog = await load(store)
    assert (catalog.log("a").trimmed, catalog.log("a").successor) == (0, None)
    assert not catalog.nodes[1].draining


async def test_numbers_that_a_node_has_are_never_given() -> None:
    store = MemoryStore()
    catalog = await load(store)
    await catalog.raise_ids(7, 12)
    await catalog.raise_ids(3, 2)
    again = await load(store)
    assert (await again.new_loglet(), list(await again.new_streams(2))) == (8, [13, 14])
    with pytest.raises(InvalidArgument, match="found log 0, stream 4294967295"):
        await catalog.raise_ids(0, (1 << 32) - 1)


# ---- a store on other machines


@pytest.mark.parametrize("loses", ["request", "answer"])
async def test_a_write_that_may_have_happened_is_replaced_by_the_next(loses: str) -> None:
    store = FaultyStore()
    catalog = await load(store)
    await create(catalog)
    store.loses = loses
    with pytest.raises(SwapUnknown):
        await catalog.trim_log("events", 2)
    assert catalog.log("events").trimmed == 0, "nobody may act upon it"
    await catalog.trim_log("events", 3)
    store.loses = loses
    with pytest.raises(SwapUnknown):
        await catalog.delete_log("events")
    await catalog.delete_log("events")
    again = await load(store)
    assert again.logs == catalog.logs == {}


async def test_a_damaged_record_is_named_and_nothing_is_changed() -> None:
    store = FaultyStore()
    catalog = await load(store)
    await know_nodes(catalog, 3)
    await create(catalog)
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


async def test_a_node_that_took_a_number_is_not_replaced_by_a_wish_for_the_one_before() -> None:
    """An operator may ask twice, and the new node registers in between (statuses, seed 6)."""
    catalog = await load(MemoryStore())
    await know_nodes(catalog, 1)
    before = catalog.node(1)
    await catalog.make_replaceable(before)
    assert catalog.node(1).replaceable
    await catalog.put_node(NodeRecord(1, "n1:1", "another", "always", ()))
    await catalog.make_replaceable(before)
    assert not catalog.node(1).replaceable


def test_a_drained_volume_is_known_by_its_shard_while_it_is_there() -> None:
    node = NodeRecord(1, "a:1", "s", "always", ("/a", "/b"), shards=(0, 2))
    assert node.draining_shards == frozenset()
    assert replace(node, draining_volumes=("/b", "/left-out")).draining_shards == {2}
    assert replace(node, draining=True).draining_shards == {0, 2}
