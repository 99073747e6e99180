"""If a round log lost rounds, this is reported, and no reader gets a shorter log."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import pytest
from keepers import stream_records
from poll import until

from loomlog import connect
from loomlog.cli.commands.rebuild import How, rebuild
from loomlog.cli.console.options import EtcdAccess
from loomlog.errors import Corrupt, NotLeader, RolledBack
from loomlog.metadata.store.contract import StoredItem
from loomlog.testing import LocalCluster

ENTRIES = 60


def forget_the_end(rounds: Path) -> None:
    """Zero the second half of the written data, as if it had never reached the disk."""
    (path,) = rounds.iterdir()
    data = path.read_bytes()
    kept = len(data.rstrip(b"\0")) // 2 // 64 * 64
    path.write_bytes(data[:kept] + bytes(len(data) - kept))


async def test_readers_are_told_and_a_rebuild_brings_everything_back(tmp_path: Path) -> None:
    local = LocalCluster(nodes=3, directory=tmp_path)
    async with local as cluster:
        log = await cluster.create_log("events", streams=2, replicas=3)
        for number in range(1, ENTRIES + 1):
            await log.append(b"%d" % number)
        vmr = tmp_path / "vmr"
        await local.stop_metadata()
        forget_the_end(vmr / "rounds")
        await local.start_metadata()

        with pytest.raises(RolledBack, match=rf"position {ENTRIES}, .*loom metadata rebuild"):
            await log.tail()
        await check_what_is_shown(local)
        assert (await log.read(ENTRIES)).value == b"%d" % ENTRIES
        found = [entry.value async for entry in log.subscribe(stop=ENTRIES)]
        assert found == [b"%d" % number for number in range(1, ENTRIES + 1)]

        await local.stop_metadata()
        (vmr / "rounds").rename(tmp_path / "damaged")
        await rebuild(How(str(vmr), local.address, timeout=30, as_json=True), EtcdAccess())
        await local.start_metadata()
        assert await log.tail() == ENTRIES
        assert (await log.append(b"more")).position == ENTRIES + 1


async def test_rounds_are_rebuilt_though_a_stream_was_removed(tmp_path: Path) -> None:
    local = LocalCluster(nodes=2, directory=tmp_path)
    async with local as cluster:
        log = await cluster.create_log("events", streams=2, replicas=2)
        first, second = (await log.describe()).streams
        for number in range(1, ENTRIES + 1):
            await log.append(b"%d" % number, stream=(first, second)[number % 2].id)
        await cluster.remove_stream(first.id)
        await log.trim(ENTRIES)
        async with asyncio.timeout(30):
            while len((await log.describe()).streams) > 1:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
        await log.append(b"after it")
        vmr = tmp_path / "vmr"
        await local.stop_metadata()
        (vmr / "rounds").rename(tmp_path / "lost")
        await rebuild(How(str(vmr), local.address, timeout=30, as_json=True), EtcdAccess())
        await local.start_metadata()
        assert await log.tail() == ENTRIES + 1
        assert (await log.read(ENTRIES + 1)).value == b"after it"
        assert (await log.append(b"more")).position == ENTRIES + 2
        await cluster.delete_log("events")
        assert local.metadata is not None
        records = stream_records(local.metadata)
        await until(lambda: not records.abandoned)


async def check_what_is_shown(local: LocalCluster) -> None:
    async with await connect(local.address) as cluster:
        async with asyncio.timeout(10):  # far less than an append may take
            with pytest.raises(RolledBack, match=r"rounds are lost.*`loom metadata rebuild`"):
                await cluster.log("events").append(b"x")
        # Nodes come back one by one.
        status = await until(cluster.status, lambda s: all(node.alive for node in s.nodes))
        (log,) = status.logs
        assert log.tail is None
        assert log.reached == sum(stream.entries or 0 for stream in log.streams) == ENTRIES
        assert all("rounds are lost" in stream.condition for stream in log.streams)
    assert local.metadata is not None
    assert 'loomlog_log_rounds_lost{log="events"} 1' in await local.metadata.metrics()


async def test_damage_in_the_middle_is_named_and_the_vmr_does_not_start(tmp_path: Path) -> None:
    local = LocalCluster(nodes=1, directory=tmp_path)
    async with local as cluster:
        log = await cluster.create_log("events", replicas=1)
        await asyncio.gather(*(log.append(b"x") for _ in range(20)))
        for _ in range(20):
            await log.append(b"x")
        await local.stop_metadata()
        (path,) = (tmp_path / "vmr" / "rounds").iterdir()
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[256] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(Corrupt, match=r"is damaged \(from byte \d+ on\).*metadata rebuild"):
            await local.start_metadata()
        path.write_bytes(whole)
        await local.start_metadata()
        assert await log.tail() == 40


async def test_a_damaged_member_is_filled_from_the_others_and_counts_again(tmp_path: Path) -> None:
    local = LocalCluster(nodes=1, metadata=3, directory=tmp_path)
    async with local as cluster:
        log = await cluster.create_log("events", replicas=1)
        for _ in range(20):
            await log.append(b"x")
        damaged, other = (number for number in (1, 2, 3) if number != local.leader)
        await local.stop_metadata(damaged)
        (path,) = (tmp_path / f"vmr-{damaged}" / "quorum").glob("rounds-*.log")
        content = bytearray(path.read_bytes())
        content[320] ^= 1  # some record in the middle
        path.write_bytes(content)
        await local.start_metadata(damaged)
        async with asyncio.timeout(30):
            while any(m.lag or not m.reachable for m in (await cluster.status()).members):
                pass
        await local.stop_metadata(other)  # from here on the damaged one is needed
        assert (await log.append(b"more")).position == 21
        assert await log.tail() == 21


async def test_clients_are_told_that_most_members_lost_their_rounds(tmp_path: Path) -> None:
    local = LocalCluster(nodes=1, metadata=3, directory=tmp_path)
    async with local as cluster:
        log = await cluster.create_log("events", replicas=1)
        await log.append(b"x")
        for number in (1, 2, 3):
            await local.stop_metadata(number)
        for number in (1, 3):
            (tmp_path / f"vmr-{number}" / "quorum").rename(tmp_path / f"lost-{number}")
        for number in (1, 2, 3):
            await local.start_metadata(number)
        why = r"1 and 3 lost their rounds.*`loom metadata rebuild`"

        async def told(address: str) -> bool:
            async with await connect(address, request_timeout_s=0.5) as client:
                with pytest.raises(NotLeader) as caught:
                    await client.logs()
                return re.search(why, str(caught.value)) is not None

        for repository in local.repositories.values():
            await until(lambda at=repository.address: told(at))  # type: ignore[misc]

        await local.stop_metadata(1)  # a copy was found
        shutil.rmtree(tmp_path / "vmr-1" / "quorum")
        (tmp_path / "lost-1").rename(tmp_path / "vmr-1" / "quorum")
        await local.start_metadata(1)
        assert (await log.append(b"y")).position == 2


async def test_clients_are_told_which_members_a_takeover_waits_for(tmp_path: Path) -> None:
    local = LocalCluster(nodes=1, metadata=3, directory=tmp_path)
    async with local as cluster:
        log = await cluster.create_log("events", replicas=1)
        await log.append(b"x")
        for number in (1, 2, 3):
            await local.stop_metadata(number)
        (tmp_path / "vmr-1" / "quorum").rename(tmp_path / "lost")
        for number in (1, 2):
            await local.start_metadata(number)
        why = "metadata repository 3 is away, and 1 lost its rounds"

        async def told() -> bool:
            async with await connect(local.address, request_timeout_s=0.5) as client:
                with pytest.raises(NotLeader) as caught:
                    await client.logs()
                return why in str(caught.value)

        await until(told)
        await local.start_metadata(3)
        assert (await log.append(b"y")).position == 2


async def test_while_a_record_is_damaged_no_vmr_leads(tmp_path: Path) -> None:
    """A leader would not know all logs, and could decide to delete one that exists.
    Once the record is restored, the cluster continues by itself."""
    local = LocalCluster(nodes=1, metadata=3, directory=tmp_path)
    async with local as cluster:
        log = await cluster.create_log("events", replicas=1)
        await log.append(b"x")
        assert local._store is not None
        whole = local._store._items["log/events"]
        local._store._items["log/events"] = StoredItem(whole.value[:-1] + b"!", whole.version)
        before = dict(local._store._items)
        await local.stop_metadata(local.leader or 0)
        async with await connect(local.address, request_timeout_s=2.0) as impatient:
            with pytest.raises(NotLeader, match="'log/events' is damaged"):
                await impatient.logs()
        changed = {key for key, item in local._store._items.items() if before.get(key) != item}
        assert changed == {"leader"}
        local._store._items["log/events"] = whole
        assert (await log.read(1)).value == b"x"
        assert (await log.append(b"y")).position == 2
