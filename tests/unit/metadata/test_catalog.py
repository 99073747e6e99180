"""The catalog over crashes: whatever write was the last, a restart finds something whole."""

from __future__ import annotations

import pytest

from loomlog.errors import Corrupt, InvalidArgument
from loomlog.metadata.catalog import Catalog
from loomlog.metadata.memory import MemoryStore
from loomlog.metadata.records import NodeRecord
from loomlog.metadata.store import Conflict


class PowerLoss(Exception):  # noqa: N818 - what happens, not what is wrong
    pass


class DyingStore(MemoryStore):
    """Takes so many writes, then dies; `revive` and hand it to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.writes_left = 1_000_000

    async def compare_and_swap(self, key: str, expected: int, value: bytes | None) -> int:
        if not self.writes_left:
            raise PowerLoss
        self.writes_left -= 1
        return await super().compare_and_swap(key, expected, value)


async def load(store: MemoryStore) -> Catalog:
    return await Catalog.load(store, "test", lambda: "secret")


async def test_everything_is_read_back() -> None:
    store = MemoryStore()
    catalog = await load(store)
    await catalog.put_node(NodeRecord(1, "a:1", "s", "always", ("/v1", "/v2")))
    await catalog.create_log("events", "ordered", 1, [(1,), (1,)])
    await catalog.log_created("events")
    await catalog.update_stream(2, epoch=4, sealed=False)
    await catalog.trim_log("events", 17)
    again = await load(store)
    assert again.cluster == catalog.cluster
    assert again.nodes == catalog.nodes
    assert again.logs == catalog.logs
    assert again.streams == catalog.streams
    assert again.version_of(again.log("events")) == catalog.version_of(catalog.log("events"))


async def create(catalog: Catalog) -> None:
    await catalog.create_log("events", "ordered", 1, [(1,), (2,), (3,)])
    await catalog.log_created("events")


@pytest.mark.parametrize("writes", range(6))
async def test_a_creation_cut_at_any_write_is_taken_back_or_whole(writes: int) -> None:
    store = DyingStore()
    catalog = await load(store)
    store.writes_left = writes
    with pytest.raises(PowerLoss):
        await create(catalog)
    store.writes_left = 1_000_000
    again = await load(store)
    assert again.logs == {}
    assert again.streams == {}
    # Only a log that was written down can have replicas; those are to be removed.
    assert len(again.tombstones) == (1 if writes == 5 else 0)
    log = await again.create_log("events", "ordered", 1, [(1,)])
    assert log.log_id == (1 if writes == 0 else 2)
    assert log.streams == ((1,) if writes == 0 else (4,))


@pytest.mark.parametrize("writes", range(4))
async def test_a_deletion_cut_at_any_write_happened_or_not(writes: int) -> None:
    store = DyingStore()
    catalog = await load(store)
    await catalog.create_log("events", "ordered", 1, [(1,), (2,)])
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
        assert again.tombstones[1].remains == ((1, (1,)), (2, (2,)))


async def test_a_tombstone_goes_with_the_last_replica() -> None:
    store = MemoryStore()
    catalog = await load(store)
    await catalog.create_log("events", "ordered", 2, [(1, 2), (2, 3)])
    await catalog.delete_log("events")
    await catalog.replicas_gone(1, {1, 2}, 2)
    assert catalog.tombstones[1].remains == ((1, (1,)), (2, (3,)))
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
