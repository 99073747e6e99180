"""An etcd that went back in time is recognised like any other metadata, and brought up to date."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from loomlog import Log, connect
from loomlog.cli.commands.rebuild import How, catch_up
from loomlog.cli.console.options import EtcdAccess
from loomlog.config import EtcdSettings
from loomlog.errors import AppendUnknown, Conflict, LoomError, RolledBack, SwapUnknown
from loomlog.metadata.catalog.records import HISTORY
from loomlog.metadata.store.contract import LateStore
from loomlog.metadata.store.etcd import EtcdStore
from loomlog.testing import LocalCluster, LocalEtcd

pytestmark = pytest.mark.timeout(120)

MEMBERS = (1, 2, 3)
PATIENCE_S = 60.0
SOON_S = 15.0  # half of what an append may take


class EtcdRollbackCluster(LocalCluster):
    """Three metadata repositories on an etcd that can be put back, with their directories."""

    def __init__(self, directory: Path, etcd: LocalEtcd) -> None:
        super().__init__(nodes=3, metadata=3, directory=directory / "servers")
        self.settings = EtcdSettings(etcd.endpoints)
        self._connect_to_etcd()
        self._etcd = etcd
        self._live = [directory / "etcd" / "member-1", *map(self.data, MEMBERS)]
        self._copies = directory / "copies"

    def data(self, number: int) -> Path:
        assert self._directory is not None
        return self._directory / f"vmr-{number}"

    def _connect_to_etcd(self) -> None:
        self._store = LateStore(lambda: EtcdStore.open(self.settings))  # type: ignore[assignment]

    async def stop_all(self) -> None:
        for number in MEMBERS:
            await self.stop_metadata(number)
        if self._store is not None:
            await self._store.close()
        self._connect_to_etcd()  # new processes know no revision

    async def start_all(self) -> None:
        await asyncio.gather(*map(self.start_metadata, MEMBERS))

    async def back_up(self) -> None:
        await self.stop_all()
        await asyncio.to_thread(self._etcd.stop, 1)
        for path in self._live:
            shutil.copytree(path, self._copies / path.name)
        await self._start_etcd()
        await self.start_all()

    async def restore(self) -> None:
        await self.stop_all()
        await asyncio.to_thread(self._etcd.stop, 1)
        for path in self._live:
            shutil.rmtree(path)
            shutil.copytree(self._copies / path.name, path)
        await self._start_etcd()
        await self.start_all()

    async def restore_etcd(self, *, copy: bool = False) -> None:
        """Put back, or copy, only etcd, while the metadata repositories run."""
        live, kept = self._live[0], self._copies / "etcd alone"
        await asyncio.to_thread(self._etcd.stop, 1)
        if not copy:
            shutil.rmtree(live)
        shutil.copytree(*((live, kept) if copy else (kept, live)))
        await self._start_etcd()

    async def _start_etcd(self) -> None:
        await asyncio.to_thread(self._etcd.start, 1)
        await asyncio.to_thread(self._etcd.wait_healthy, 1)


async def test_a_restored_etcd_serves_nobody_until_it_was_brought_up_to_date(
    tmp_path: Path,
) -> None:
    (tmp_path / "etcd").mkdir()
    with LocalEtcd(directory=tmp_path / "etcd") as etcd:
        servers = EtcdRollbackCluster(tmp_path, etcd)
        async with servers as cluster:
            log = await cluster.create_log("events", replicas=2)
            first = await log.append(b"one")
            register = cluster.register("r")
            version = await register.swap(b"old", expected=0)
            await servers.back_up()
            second = await log.append(b"two")
            await register.swap(b"new", expected=version)
            await servers.restore()
            with pytest.raises(RolledBack, match="loom metadata catch-up"):
                await register.swap(b"again", expected=version)
            status = await cluster.status()
            assert any("went back in time" in each.text for each in status.conditions)

            await servers.stop_all()
            shared = ",".join(servers.settings.endpoints)
            how = How(listen=servers._listen[1], timeout=PATIENCE_S, etcd=shared, as_json=True)
            await catch_up(how, EtcdAccess())
            for number in MEMBERS:
                shutil.rmtree(servers.data(number))
            await servers.start_all()
            async with asyncio.timeout(PATIENCE_S):
                third = await log.append(b"three")
                assert first.position < second.position < third.position
                entries = log.subscribe(start=1, stop=third.position)
                assert [entry.value async for entry in entries] == [b"one", b"two", b"three"]
            with pytest.raises(Conflict):
                await register.swap(b"again", expected=version)


async def append_forever(log: Log) -> None:
    while True:
        await log.append(b"two")


@pytest.mark.parametrize("led_by_another", [False, True])
async def test_an_etcd_that_goes_back_under_running_repositories_is_noticed(
    tmp_path: Path, led_by_another: bool
) -> None:
    """Changes and appends say what to do, whether or not the copy knows the leader."""
    (tmp_path / "etcd").mkdir()
    with LocalEtcd(directory=tmp_path / "etcd") as etcd:
        servers = EtcdRollbackCluster(tmp_path, etcd)
        async with servers as cluster:
            log = await cluster.create_log("events", replicas=2)
            await log.append(b"one")
            await servers.restore_etcd(copy=True)
            if led_by_another:
                for number in MEMBERS:
                    await servers.stop_metadata(number)
                    await servers.start_metadata(number)
            assert await cluster.register("r").swap(b"acknowledged", expected=0)
            for number in range(20):  # more changes than a takeover makes
                await cluster.register(f"r{number}").swap(b"x", expected=0)
            await servers.restore_etcd()
            # On a slow machine another one may try to take over, and finds out.
            with pytest.raises((RolledBack, SwapUnknown), match="loom metadata catch-up"):
                await cluster.register("r").swap(b"the other is lost", expected=0)
            async with asyncio.timeout(SOON_S):
                # A stream takes some until its nodes hear of it.
                with pytest.raises((RolledBack, AppendUnknown), match="went back in time"):
                    await append_forever(log)
            async with asyncio.timeout(SOON_S), await servers.connect() as other:
                with pytest.raises(RolledBack, match="loom metadata catch-up"):
                    await other.log("events").append(b"three")


async def test_a_process_that_knew_more_refuses_everything_but_to_record_it(
    tmp_path: Path,
) -> None:
    """Others that write as much as was lost change nothing about that."""
    (tmp_path / "etcd").mkdir()
    with LocalEtcd(directory=tmp_path / "etcd") as etcd:
        servers = EtcdRollbackCluster(tmp_path, etcd)
        store = await EtcdStore.open(servers.settings)
        began = await store.compare_and_swap(HISTORY, 0, b"a run")
        before = await store.compare_and_swap("key", 0, b"before")
        await servers.restore_etcd(copy=True)
        await store.compare_and_swap("key", before, b"lost")
        await servers.restore_etcd()
        with pytest.raises(RolledBack, match="`loom metadata catch-up`"):
            await store.compare_and_swap("other", 0, b"value")
        other = await EtcdStore.open(servers.settings)
        for number in range(5):
            await other.compare_and_swap(f"key{number}", 0, b"value")
        for request in (
            store.get("key"),
            store.get(HISTORY),
            store.list("k"),
            store.compare_and_swap("other", 0, b"value"),
        ):
            with pytest.raises(RolledBack):
                await request
        await store.compare_and_swap(HISTORY, began, b"went back")
        recorded = await other.get(HISTORY)
        assert recorded is not None
        assert recorded.value == b"went back"
        assert await other.get("other") is None
        await store.close()
        await other.close()


async def test_appends_say_why_no_repository_leads(tmp_path: Path) -> None:
    """The round logs know a newer leader than the restored etcd, so none takes over."""
    (tmp_path / "etcd").mkdir()
    with LocalEtcd(directory=tmp_path / "etcd") as etcd:
        servers = EtcdRollbackCluster(tmp_path, etcd)
        async with servers as cluster:
            await cluster.create_log("events", replicas=2)
            await servers.restore_etcd(copy=True)
            await servers.stop_all()
            await servers.start_all()
            where = servers.address
            async with await connect(where, append_timeout_s=4.0, request_timeout_s=1.0) as client:
                log = client.log("events")
                await log.append(b"one")
                await servers.stop_all()
                await servers.restore_etcd()
                await servers.start_all()
                for _ in range(2):  # one in flight, and one for which there is no place
                    with pytest.raises(LoomError, match="loom metadata catch-up"):
                        await log.append(b"two")
