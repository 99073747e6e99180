"""Reading one entry, and saying precisely why not."""

from __future__ import annotations

import random

import pytest
from fake_cluster import FakeCluster, cut, refuse

from loomlog import connect, errors


async def test_an_entry_is_found_in_whichever_stream_holds_it() -> None:
    clock = iter(range(10**9, 2 * 10**9))
    async with (
        FakeCluster() as fake,
        await connect(
            fake.address, rng=random.Random(1), clock=lambda: float(next(clock))
        ) as cluster,
    ):
        fake.add_log("events", streams=3)
        log = cluster.log("events")
        for number in range(20):
            await log.append(b"%d" % number, key=b"k%d" % number)
        for number in range(20):
            entry = await log.read(number + 1)
            assert (entry.position, entry.value) == (number + 1, b"%d" % number)
            assert entry.key == b"k%d" % number
            assert entry.timestamp_us == (10**9 + number) * 1_000_000


async def test_reading_beside_the_log_says_where_it_begins_and_ends() -> None:
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        fake.add_log("events", streams=2)
        log = cluster.log("events")
        await log.append_many([b"x"] * 10)
        await log.trim(4)
        with pytest.raises(errors.Trimmed):
            await log.read(4)
        assert (await log.read(5)).position == 5
        with pytest.raises(errors.NotYetWritten, match="the last one is 10"):
            await log.read(11)
        for nonsense in (0, -1, 1 << 64, "1", None):
            with pytest.raises(errors.InvalidArgument):
                await log.read(nonsense)  # type: ignore[arg-type]
        with pytest.raises(errors.NotFound):
            await cluster.log("nothing").read(1)


async def test_a_replica_that_lags_is_not_believed() -> None:
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        fake.add_log("events")
        log = cluster.log("events")
        await log.append(b"x")
        fake.read_faults.extend([refuse(errors.Unavailable("I lag"))] * 3)
        assert (await log.read(1)).value == b"x"
        assert fake.reads == 4


async def test_a_read_survives_a_broken_connection() -> None:
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        fake.add_log("events")
        log = cluster.log("events")
        await log.append(b"x")
        fake.read_faults.append(cut)
        assert (await log.read(1)).value == b"x"


async def test_an_entry_in_a_stream_that_is_new_is_found() -> None:
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        events = fake.add_log("events")
        log = cluster.log("events")
        await log.append(b"old")
        new = fake.add_stream(events)
        async with await connect(fake.address) as other:
            await other.log("events").append(b"new", stream=new.id)
        assert (await log.read(2)).value == b"new"


async def test_a_read_gives_up_in_time() -> None:
    async with (
        FakeCluster() as fake,
        await connect(fake.address, request_timeout_s=1.0) as cluster,
    ):
        fake.add_log("events")
        log = cluster.log("events")
        await log.append(b"x")
        fake.read_faults.extend([refuse(errors.Unavailable("I lag"))] * 1000)
        with pytest.raises(errors.Unavailable, match="position 1 of log 'events'"):
            await log.read(1)


async def test_an_entry_that_is_broken_on_every_replica_fails_at_once() -> None:
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        fake.add_log("events", streams=2)
        log = cluster.log("events")
        await log.append(b"x")
        fake.read_faults.extend([refuse(errors.Corrupt("broken"))] * 1000)
        with pytest.raises(errors.DataLoss, match=r"position 1 of log 'events' .*broken"):
            await log.read(1)
        assert fake.reads <= 2 * 4  # all replicas, and once more with the latest metadata


async def test_an_entry_that_one_replica_may_still_have_is_waited_for() -> None:
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        fake.add_log("events")
        log = cluster.log("events")
        await log.append(b"x")
        broken = refuse(errors.Corrupt("broken"))
        absent = refuse(errors.Unavailable("I restart"))
        fake.read_faults.extend([broken, absent, absent, broken] * 3)
        assert (await log.read(1)).value == b"x"
