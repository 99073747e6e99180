"""Metadata in one file is imported into either form exactly as it was exported."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from loomlog.config import EtcdSettings
from loomlog.core.quorum.member import Leader
from loomlog.errors import AlreadyExists, Corrupt, NotFound, Unavailable, VersionMismatch
from loomlog.metadata.catalog.records import (
    AccessRecord,
    ClusterRecord,
    TokenRecord,
    decode,
    encode,
)
from loomlog.metadata.data_directory import rounds_in
from loomlog.metadata.leader import membership
from loomlog.metadata.offline import embedded, replicated, transfer
from loomlog.metadata.offline.transfer import Dump, MovableStore
from loomlog.metadata.rounds import RoundLog, imported_rounds
from loomlog.metadata.rounds.round_files import FileRoundLog
from loomlog.metadata.store.contract import Fence, FencedStore
from loomlog.metadata.store.etcd import EtcdStore
from loomlog.metadata.store.memory import MemoryStore
from loomlog.metadata.store.sqlite import SqliteStore
from loomlog.storage.disk import RealFiles, ThreadWorker
from loomlog.testing import LocalEtcd

DUMP = Dump(
    epoch=7,
    version=1_000_000,
    items={
        "cluster": encode(ClusterRecord("prod", "secret")),
        "log/ä": b"{}",
        "register/a": bytes(range(256)),
    },
    rounds=(b"first", b"", b"third" * 100),
)


@pytest.fixture(scope="module")
def etcd() -> Iterator[LocalEtcd]:
    with LocalEtcd() as etcd:
        yield etcd


@pytest.fixture
def settings(etcd: LocalEtcd, tmp_path: Path) -> EtcdSettings:
    return EtcdSettings(etcd.endpoints, prefix=str(tmp_path))


@pytest.fixture
def worker() -> Iterator[ThreadWorker]:
    loop = asyncio.new_event_loop()
    worker = ThreadWorker(loop)
    yield worker
    worker.close()
    loop.close()


# ---- the file


def test_a_file_holds_all_of_it() -> None:
    assert Dump.decode(DUMP.encode(), "file") == DUMP
    assert DUMP.cluster_id == "prod"


def test_every_damage_is_noticed() -> None:
    whole = DUMP.encode()
    rng = random.Random(1)
    for _ in range(200):
        at = rng.randrange(len(whole))
        damaged = bytearray(whole)
        damaged[at] ^= 1 << rng.randrange(8)
        with pytest.raises(Corrupt, match="file"):
            Dump.decode(bytes(damaged), "file")
    for size in range(0, len(whole), 7):
        with pytest.raises(Corrupt, match="file"):
            Dump.decode(whole[:size], "file")


def test_a_file_of_a_later_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "FORMAT", 9)
    later = DUMP.encode()
    monkeypatch.undo()
    with pytest.raises(VersionMismatch, match="format 9"):
        Dump.decode(later, "file")


# ---- the embedded form


async def test_a_directory_comes_out_as_it_went_in(tmp_path: Path) -> None:
    directory = str(tmp_path / "vmr")
    await embedded.fill(directory, DUMP)
    again = await embedded.export(directory)
    assert (again.items, again.rounds, again.epoch) == (DUMP.items, DUMP.rounds, DUMP.epoch)
    assert again.version > DUMP.version


def damage(directory: str, content: bytes) -> None:
    path = Path(directory) / "metadata.sqlite"
    data = path.read_bytes()
    assert data.count(content) == 1
    path.write_bytes(data.replace(content, content[:-1] + bytes([content[-1] ^ 1])))


async def test_damaged_registers_are_left_out_if_that_is_wanted(tmp_path: Path) -> None:
    directory = str(tmp_path / "vmr")
    await embedded.fill(directory, DUMP)
    damage(directory, bytes(range(256)))
    with pytest.raises(Corrupt, match="'register/a'"):
        await embedded.export(directory)
    found = await embedded.export(directory, skip_damaged=True)
    assert found.left_out == ("register/a",)
    assert found.items == {k: v for k, v in DUMP.items.items() if k != "register/a"}
    await embedded.fill(str(tmp_path / "new"), found)
    assert (await embedded.export(str(tmp_path / "new"))).items == found.items


async def test_other_damaged_records_are_never_left_out(tmp_path: Path) -> None:
    directory = str(tmp_path / "vmr")
    await embedded.fill(directory, DUMP)
    damage(directory, DUMP.items["cluster"])
    with pytest.raises(Corrupt, match="'cluster'"):
        await embedded.export(directory, skip_damaged=True)


async def test_who_opens_the_rounds_leads_in_a_later_epoch_also_without_rounds(
    tmp_path: Path, worker: ThreadWorker
) -> None:
    embedded.write_rounds(str(tmp_path), (), epoch=7)
    opened = FileRoundLog.open(RealFiles(), rounds_in(str(tmp_path)), worker, create=False)
    assert opened.epoch == 8
    opened.close()


async def test_an_import_that_was_interrupted_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "vmr.importing").mkdir()
    (tmp_path / "vmr.importing" / "rest").write_bytes(b"of the first attempt")
    await embedded.fill(str(tmp_path / "vmr"), DUMP)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["vmr"]
    assert not (tmp_path / "vmr" / "rest").exists()


async def test_only_new_directories_are_filled_and_only_metadata_is_exported(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(AlreadyExists, match="not empty"):
        await embedded.fill(str(tmp_path), DUMP)
    with pytest.raises(NotFound, match="--data of a vmr"):
        await embedded.export(str(tmp_path))


async def test_a_directory_in_use_is_not_exported(tmp_path: Path) -> None:
    directory = str(tmp_path / "vmr")
    await embedded.fill(directory, DUMP)
    async with embedded.opened(directory):
        with pytest.raises(Unavailable, match="in use"):
            await embedded.export(directory)


# ---- the replicated form


async def test_etcd_gets_what_new_members_begin_with(settings: EtcdSettings) -> None:
    await replicated.fill(settings, DUMP, {1: "a:1", 2: "b:1"})
    async with replicated.opened(settings) as store:
        leader, _ = await membership.read_leader(store)
        assert leader == Leader(DUMP.epoch, 0, "")
        assert (await membership.known_membership(store)).members == {1: "a:1", 2: "b:1"}
        assert await imported_rounds.read(store) == list(DUMP.rounds)
        kept = await transfer.dump(store, (), 0, "etcd")
        assert kept.items == DUMP.items, "what belongs to one form alone does not move on"
    with pytest.raises(AlreadyExists, match="holds metadata already"):
        await replicated.fill(settings, DUMP, {1: "a:1"})


async def test_an_etcd_without_a_cluster_is_not_exported(settings: EtcdSettings) -> None:
    with pytest.raises(NotFound, match="was ever started"):
        await replicated.export(settings, [])


# ---- versions


@pytest.fixture(params=["sqlite", "etcd"])
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, settings: EtcdSettings
) -> AsyncIterator[MovableStore]:
    if request.param == "sqlite":
        worker = ThreadWorker(asyncio.get_running_loop())
        sqlite = await SqliteStore.open(str(tmp_path / "metadata.sqlite"), worker)
        yield sqlite
        await sqlite.close()
        worker.close()
        return
    opened = await EtcdStore.open(settings)
    yield opened
    await opened.close()


async def test_versions_never_go_back_when_metadata_moves(store: MovableStore) -> None:
    await store.raise_versions(1_000_000)
    first = await store.compare_and_swap("a", 0, b"one")
    assert first > 1_000_000
    told: list[int] = []
    unwatch = store.watch("", lambda change: told.append(change.item.version if change.item else 0))
    fenced = FencedStore(store, Fence("a", first))
    other = await fenced.compare_and_swap("b", 0, b"")
    second = await store.compare_and_swap("a", first, b"two")
    assert first < other < second
    found = await store.get("a")
    assert found is not None
    assert (found.version, await store.last_version()) == (second, second)
    assert {key: item.version for key, item in (await store.list("")).items() if len(key) == 1} == {
        "a": second,
        "b": other,
    }
    async with asyncio.timeout(30):
        while told != [other, second]:  # noqa: ASYNC110 - etcd tells later
            await asyncio.sleep(0.01)
    unwatch()


async def test_versions_stay_above_over_a_restart_of_etcd_clients(settings: EtcdSettings) -> None:
    async with replicated.opened(settings) as store:
        await store.raise_versions(5_000_000)
        version = await store.compare_and_swap("a", 0, b"one")
    async with replicated.opened(settings) as store:
        found = await store.get("a")
        assert found is not None
        assert found.version == version > 5_000_000
        await store.compare_and_swap("a", version, None)


# ---- rounds to begin with


def open_log(directory: Path, worker: ThreadWorker) -> FileRoundLog:
    return FileRoundLog.open(RealFiles(), str(directory), worker, create=True)


async def test_a_first_leader_begins_with_the_rounds_that_wait_and_stores_them(
    tmp_path: Path,
) -> None:
    store, worker = MemoryStore(), ThreadWorker(asyncio.get_running_loop())
    records = [bytes([number]) * imported_rounds.PART_BYTES for number in range(3)]
    await imported_rounds.write(store, [b"of an earlier attempt"])
    await imported_rounds.write(store, records)
    log = open_log(tmp_path, worker)
    imported: RoundLog = await imported_rounds.import_rounds(store, log)
    assert imported.read() == records
    assert await store.list("") == {}, "and nobody begins with them again"
    log.close()
    log = open_log(tmp_path, worker)
    assert log.read() == records
    assert await imported_rounds.import_rounds(store, log) is log
    worker.close()
    log.close()


async def test_rounds_that_wait_and_are_damaged_are_refused(tmp_path: Path) -> None:
    store = MemoryStore()
    await imported_rounds.write(store, [b"round"])
    (part,) = (await store.list("metadata/seed/")).items()
    await store.compare_and_swap(part[0], part[1].version, b"other")
    with pytest.raises(Corrupt, match="import or rebuild"):
        await imported_rounds.read(store)


def test_an_export_says_that_it_has_keys_or_leaves_them_out() -> None:
    token = TokenRecord("id", "billing", ("read:*",), 1, 2, 1)
    access = AccessRecord(3, True, (("alice", "read", "*"),), ((1, "ab" * 32),), (token,))
    dump = Dump(7, 9, {**DUMP.items, "access": encode(access)}, ())
    assert dump.secrets.endswith("and the keys that sign tokens")
    without = dump.without_token_keys()
    assert without.secrets == DUMP.secrets == "the secrets of cluster and nodes"
    assert b"ab" * 32 not in without.encode()
    kept = decode(AccessRecord, "access", without.items["access"])
    assert (kept.enforced, kept.grants, kept.keys, kept.tokens) == (True, access.grants, (), ())
    assert DUMP.without_token_keys() == DUMP
