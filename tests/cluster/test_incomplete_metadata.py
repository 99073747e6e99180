"""A vmr whose data directory holds a part of a cluster's metadata does not begin a new cluster."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from loomlog.config import MetadataSettings
from loomlog.errors import Corrupt, InvalidArgument
from loomlog.metadata import MetadataRepository
from loomlog.metadata.store.memory import MemoryStore
from loomlog.testing import LocalCluster


def rounds_are_deleted(vmr: Path) -> None:
    shutil.rmtree(vmr / "rounds")


def database_is_deleted(vmr: Path) -> None:
    (vmr / "metadata.sqlite").unlink()


def database_is_empty(vmr: Path) -> None:
    (vmr / "metadata.sqlite").write_bytes(b"")


@pytest.mark.parametrize("protocol", ["ordered", "chained"])
@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (rounds_are_deleted, "loom metadata rebuild"),
        (database_is_deleted, r"metadata.sqlite holds no metadata.*loom metadata import"),
        (database_is_empty, r"metadata.sqlite holds no metadata.*loom metadata import"),
    ],
)
async def test_one_that_is_incomplete_is_refused_and_goes_on_when_restored(
    tmp_path: Path, harm: Callable[[Path], None], message: str, protocol: str
) -> None:
    local = LocalCluster(nodes=1, directory=tmp_path)
    async with local as cluster:
        log = await cluster.create_log("events", replicas=1, protocol=protocol)
        await log.append(b"one")
        await local.stop_metadata()
        vmr, copy = tmp_path / "vmr", tmp_path / "copy"
        shutil.copytree(vmr, copy)
        harm(vmr)
        for _ in range(2):  # a refused start leaves nothing that the next one takes for whole
            with pytest.raises(Corrupt, match=message):
                await local.start_metadata()
        shutil.rmtree(vmr)
        shutil.copytree(copy, vmr)
        await local.start_metadata()
        assert (await log.append(b"two")).position == 2


async def test_a_database_without_its_wal_is_refused(tmp_path: Path) -> None:
    """A vmr was killed, and only the main file of SQLite was kept."""
    vmr, killed = tmp_path / "vmr", tmp_path / "killed"
    async with LocalCluster(nodes=1, directory=tmp_path) as cluster:
        await cluster.create_log("events", replicas=1)
        shutil.copytree(vmr, killed)
    assert (killed / "metadata.sqlite-wal").stat().st_size
    (killed / "metadata.sqlite-wal").unlink()
    with pytest.raises(Corrupt, match=r"restore that file \(and its -wal\)"):
        await vmr_on(killed).start()


async def test_directories_of_the_other_form_are_refused(tmp_path: Path) -> None:
    async with LocalCluster(nodes=1, directory=tmp_path / "alone"):
        pass
    async with LocalCluster(nodes=1, metadata=3, directory=tmp_path / "several"):
        pass
    with pytest.raises(InvalidArgument, match="belongs to one of several vmr"):
        await vmr_on(tmp_path / "several" / "vmr-1").start()
    several = vmr_on(tmp_path / "alone" / "vmr", peers={1: "127.0.0.1:1"}, store=MemoryStore())
    with pytest.raises(InvalidArgument, match="the metadata of a vmr alone"):
        await several.start()


async def test_several_on_an_empty_store_do_not_begin_a_new_cluster(tmp_path: Path) -> None:
    local = LocalCluster(nodes=1, metadata=3, directory=tmp_path)
    async with local as cluster:
        log = await cluster.create_log("events", replicas=1)
        await log.append(b"one")
        for number in (1, 2, 3):
            await local.stop_metadata(number)
        store, local._store = local._store, MemoryStore()
        for number in (1, 2, 3):
            await local.start_metadata(number)
        for repository in local.repositories.values():
            while "is empty" not in (await repository.status()).get("waits_for", ""):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert local.leader is None
        assert await local._store.get("cluster") is None
        for number in (1, 2, 3):
            await local.stop_metadata(number)
        local._store = store
        for number in (1, 2, 3):
            await local.start_metadata(number)
        assert (await log.append(b"two")).position == 2


def vmr_on(
    directory: Path, peers: dict[int, str] | None = None, store: MemoryStore | None = None
) -> MetadataRepository:
    settings = MetadataSettings(
        cluster_id="local",
        directory=str(directory),
        listen="127.0.0.1:0",
        http=None,
        peers=peers or {},
    )
    return MetadataRepository(settings, store=store)
