"""The promises of every MetaStore, run on all of them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from poll import until

from loomlog.config import EtcdSettings
from loomlog.errors import Conflict, Corrupt, NotLeader, Unavailable, VersionMismatch
from loomlog.metadata.store.contract import Fence, FencedStore, ItemChange, MetaStore, StoredItem
from loomlog.metadata.store.etcd import EtcdStore
from loomlog.metadata.store.etcd.connection import rpc
from loomlog.metadata.store.memory import MemoryStore
from loomlog.metadata.store.sqlite import SqliteStore
from loomlog.storage.disk import ThreadWorker
from loomlog.testing import LocalEtcd


class Place:
    """The place where a store keeps its content over restarts."""

    def __init__(self, kind: str, directory: Path, etcd: LocalEtcd) -> None:
        self.kind = kind
        self.etcd = EtcdSettings(etcd.endpoints, prefix=str(directory))
        self.path = str(directory / "metadata.sqlite")
        self.worker = ThreadWorker(asyncio.get_running_loop())
        self.memory = MemoryStore()

    async def damage(self, key: str) -> None:
        """Flip a bit of a stored value, behind the store's back."""
        if self.kind == "memory":
            stored, version = self.memory._items[key]
            self.memory._items[key] = StoredItem(flipped(stored), version)
        elif self.kind == "sqlite":
            connection = self.sqlite._connection
            query = "SELECT value FROM items WHERE key = ?"
            (stored,) = connection.execute(query, (key,)).fetchone()
            connection.execute("UPDATE items SET value = ? WHERE key = ?", (flipped(stored), key))
        else:
            store = await EtcdStore.open(self.etcd)
            found = await store._connection.ask_now(
                lambda e: e.kv.Range, rpc.RangeRequest(key=store._keys.key(key))
            )
            stored = flipped(found.kvs[0].value)
            put = rpc.PutRequest(key=store._keys.key(key), value=stored)
            await store._connection.ask_now(lambda e: e.kv.Put, put)
            await store.close()

    async def open(self) -> MetaStore:
        if self.kind == "memory":
            return self.memory
        if self.kind == "etcd":
            return await EtcdStore.open(self.etcd)
        self.sqlite = await SqliteStore.open(self.path, self.worker)
        return self.sqlite


def flipped(stored: bytes) -> bytes:
    return stored[:-1] + bytes([stored[-1] ^ 1])


@pytest.fixture(scope="session")
def etcd() -> Iterator[LocalEtcd]:
    with LocalEtcd() as etcd:
        yield etcd


@pytest.fixture(params=["memory", "sqlite", "etcd"])
async def place(
    request: pytest.FixtureRequest, tmp_path: Path, etcd: LocalEtcd
) -> AsyncIterator[Place]:
    place = Place(request.param, tmp_path, etcd)
    yield place
    place.worker.close()


@pytest.fixture
async def store(place: Place) -> AsyncIterator[MetaStore]:
    store = await place.open()
    yield store
    await store.close()


async def test_an_absent_key_is_none(store: MetaStore) -> None:
    assert await store.get("nothing") is None
    assert await store.list("") == {}


async def test_what_was_swapped_in_is_read_back_with_its_version(store: MetaStore) -> None:
    version = await store.compare_and_swap("log/a", 0, b"one")
    assert version > 0
    assert await store.get("log/a") == StoredItem(b"one", version)


async def test_a_damaged_value_is_neither_returned_nor_absent(
    place: Place, store: MetaStore
) -> None:
    await store.compare_and_swap("log/a", 0, b"one")
    intact = await store.compare_and_swap("log/b", 0, b"two")
    await place.damage("log/a")
    found = await store.get("log/a")
    assert found is not None
    with pytest.raises(Corrupt, match="'log/a' is damaged"):
        _ = found.value
    listed = await store.list("log/")
    assert listed["log/b"] == StoredItem(b"two", intact)
    with pytest.raises(Corrupt, match="'log/a' is damaged"):
        _ = listed["log/a"].value
    with pytest.raises(Conflict):
        await store.compare_and_swap("log/a", 0, b"new")


async def test_only_the_expected_version_is_replaced(store: MetaStore) -> None:
    first = await store.compare_and_swap("k", 0, b"one")
    with pytest.raises(Conflict):
        await store.compare_and_swap("k", 0, b"two")
    second = await store.compare_and_swap("k", first, b"two")
    with pytest.raises(Conflict, match="'k'"):
        await store.compare_and_swap("k", first, b"three")
    assert await store.get("k") == StoredItem(b"two", second)


async def test_of_many_who_swap_at_once_one_wins(store: MetaStore) -> None:
    swaps = (store.compare_and_swap("name", 0, bytes([i])) for i in range(10))
    results = await asyncio.gather(*swaps, return_exceptions=True)
    assert sum(isinstance(result, int) for result in results) == 1
    assert sum(isinstance(result, Conflict) for result in results) == 9


async def test_versions_grow_over_the_whole_store_and_never_come_back(store: MetaStore) -> None:
    first = await store.compare_and_swap("a", 0, b"")
    other = await store.compare_and_swap("b", 0, b"")
    gone = await store.compare_and_swap("a", first, None)
    again = await store.compare_and_swap("a", 0, b"")
    assert first < other < gone < again


async def test_a_deleted_key_is_absent(store: MetaStore) -> None:
    version = await store.compare_and_swap("a", 0, b"x")
    with pytest.raises(Conflict):
        await store.compare_and_swap("a", version + 1, None)
    await store.compare_and_swap("a", version, None)
    assert await store.get("a") is None
    assert await store.list("") == {}


async def test_list_takes_a_prefix_literally_and_sorts(store: MetaStore) -> None:
    for key in ("log/b", "log/a", "logs", "node/1", "log_/x", "LOG/a"):
        await store.compare_and_swap(key, 0, key.encode())
    assert list(await store.list("log/")) == ["log/a", "log/b"]
    assert list(await store.list("log_")) == ["log_/x"]
    assert len(await store.list("")) == 6


async def test_watchers_hear_of_changes_under_their_prefix(store: MetaStore) -> None:
    heard: list[ItemChange] = []
    unwatch = store.watch("log/", heard.append)
    first = await store.compare_and_swap("log/a", 0, b"x")
    await store.compare_and_swap("node/1", 0, b"y")
    await store.compare_and_swap("log/a", first, None)
    await until(lambda: len(heard) == 2)
    unwatch()
    await store.compare_and_swap("log/b", 0, b"z")
    assert heard == [ItemChange("log/a", StoredItem(b"x", first)), ItemChange("log/a", None)]


async def test_watchers_hear_of_all_changes_in_order(store: MetaStore) -> None:
    heard: list[ItemChange] = []
    await store.compare_and_swap("before", 0, b"")
    store.watch("", heard.append)
    versions = await asyncio.gather(*(store.compare_and_swap(f"{i}", 0, b"") for i in range(30)))
    await until(lambda: len(heard) >= 30)
    assert [change.item.version for change in heard if change.item] == sorted(versions)


async def test_a_fenced_store_writes_while_its_fence_stands(store: MetaStore) -> None:
    leads = await store.compare_and_swap("leader", 0, b"1")
    fenced = FencedStore(store, Fence("leader", leads))
    version = await fenced.compare_and_swap("a", 0, b"x")
    assert await fenced.get("a") == StoredItem(b"x", version)
    assert list(await fenced.list("")) == ["a", "leader"]
    with pytest.raises(Conflict):
        await fenced.compare_and_swap("a", 0, b"y")


@pytest.mark.parametrize("successor", [b"2", None])
async def test_nothing_is_written_once_the_fence_fell(
    store: MetaStore, successor: bytes | None
) -> None:
    leads = await store.compare_and_swap("leader", 0, b"1")
    fenced = FencedStore(store, Fence("leader", leads))
    version = await fenced.compare_and_swap("a", 0, b"x")
    await store.compare_and_swap("leader", leads, successor)
    for expected, value in ((version, b"y"), (version, None), (0, b"y")):
        with pytest.raises(NotLeader, match="'leader'"):
            await fenced.compare_and_swap("a", expected, value)
    assert await fenced.get("a") == StoredItem(b"x", version)


async def test_every_fence_around_a_store_has_to_stand(store: MetaStore) -> None:
    inner = await store.compare_and_swap("inner", 0, b"")
    outer = await store.compare_and_swap("outer", 0, b"")
    fenced = FencedStore(FencedStore(store, Fence("outer", outer)), Fence("inner", inner))
    await fenced.compare_and_swap("a", 0, b"x")
    await store.compare_and_swap("outer", outer, b"")
    with pytest.raises(NotLeader, match="'outer'"):
        await fenced.compare_and_swap("b", 0, b"x")


async def test_who_holds_the_fence_may_move_it_once(store: MetaStore) -> None:
    leads = await store.compare_and_swap("leader", 0, b"1")
    fenced = FencedStore(store, Fence("leader", leads))
    await fenced.compare_and_swap("leader", leads, b"moved")
    with pytest.raises(NotLeader):
        await fenced.compare_and_swap("a", 0, b"x")


async def test_a_fenced_view_that_is_closed_leaves_the_store_open(store: MetaStore) -> None:
    leads = await store.compare_and_swap("leader", 0, b"1")
    await FencedStore(store, Fence("leader", leads)).close()
    assert await store.get("leader") == StoredItem(b"1", leads)


async def test_content_and_versions_survive_a_restart(place: Place) -> None:
    store = await place.open()
    first = await store.compare_and_swap("a", 0, b"\x00\xff")
    second = await store.compare_and_swap("b", 0, b"")
    await store.compare_and_swap("b", second, None)
    await store.close()
    store = await place.open()
    assert await store.get("a") == StoredItem(b"\x00\xff", first)
    assert await store.compare_and_swap("c", 0, b"") > second + 1
    await store.close()


# ---- only SQLite


async def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    worker = ThreadWorker(asyncio.get_running_loop())
    path = tmp_path / "metadata.sqlite"
    path.write_bytes(b"certainly not a database" * 100)
    with pytest.raises(Corrupt, match=r"metadata\.sqlite"):
        await SqliteStore.open(str(path), worker)
    worker.close()


async def test_a_missing_directory_is_an_error_in_one_line(tmp_path: Path) -> None:
    worker = ThreadWorker(asyncio.get_running_loop())
    with pytest.raises(Unavailable, match="nowhere"):
        await SqliteStore.open(str(tmp_path / "nowhere" / "metadata.sqlite"), worker)
    worker.close()


async def test_a_format_of_the_future_is_refused(tmp_path: Path) -> None:
    worker = ThreadWorker(asyncio.get_running_loop())
    path = str(tmp_path / "metadata.sqlite")
    program = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('PRAGMA user_version=9')"
    subprocess.run([sys.executable, "-c", program, path], check=True)
    with pytest.raises(VersionMismatch, match="format 9"):
        await SqliteStore.open(path, worker)
    worker.close()


async def test_another_process_cannot_use_an_open_file(tmp_path: Path) -> None:
    worker = ThreadWorker(asyncio.get_running_loop())
    path = str(tmp_path / "metadata.sqlite")
    program = f"""
import sqlite3
connection = sqlite3.connect({path!r}, isolation_level=None)
connection.execute("PRAGMA locking_mode = EXCLUSIVE")
connection.execute("PRAGMA journal_mode = WAL")
connection.execute("BEGIN EXCLUSIVE")
connection.execute("CREATE TABLE t (x)")
connection.execute("COMMIT")
print("open", flush=True)
input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(Unavailable, match="another process"):
            await SqliteStore.open(path, worker)
        other.communicate("\n")
    worker.close()


async def test_a_store_that_is_open_cannot_be_opened_again(tmp_path: Path) -> None:
    worker = ThreadWorker(asyncio.get_running_loop())
    path = str(tmp_path / "metadata.sqlite")
    store = await SqliteStore.open(path, worker)
    with pytest.raises(Unavailable, match="another process"):
        await SqliteStore.open(path, worker)
    await store.close()
    worker.close()
