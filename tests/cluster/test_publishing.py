"""Publishing on real servers: all rows at once, and once, whoever dies or comes twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from dying_writers import Crash, Dying, own_loglet
from published_rows import WAIT_S, forget_producers, left_intent, published, read, rows, values

from loomlog import connect, connect_sync
from loomlog.client.cluster import Cluster
from loomlog.client.log import Log
from loomlog.client.publish.stager import Staged
from loomlog.client.publish.writer import Published
from loomlog.errors import Fenced, InvalidArgument, NotFound, Trimmed
from loomlog.testing import LocalCluster
from loomlog.types import Entry


@pytest.fixture
async def local() -> AsyncIterator[LocalCluster]:
    local = LocalCluster(nodes=3, sync="none", failure_detection_s=0.5)
    async with local:
        yield local


@pytest.fixture
async def cluster(local: LocalCluster) -> Cluster:
    return await local.connect()


@pytest.fixture
async def log(cluster: Cluster) -> Log:
    return await cluster.create_log("events", streams=2, replicas=2)


# ---- what readers see -------------------------------------------------------------


async def test_published_rows_stand_in_the_log_like_any_others(log: Log) -> None:
    writer = await log.writer("w")
    one = await log.stage([rows(2, 500), rows(502, 500)])
    assert await log.tail() == 0
    assert values([await log.read((await log.append(b"1")).position)]) == [1]
    assert await writer.publish(1, one) == Published(2, 1001)
    await log.append_many([b"1002", b"1003"])
    assert await writer.publish(2, await log.stage(rows(1004, 10))) == Published(1004, 1013)

    entries = await read(log)
    assert values(entries) == list(range(1, 1014))
    assert [entry.position for entry in entries] == list(range(1, 1014))
    assert entries[1].timestamp_us == 2
    assert (entries[1].key, entries[2].key) == (b"key", None)
    arrow = [batch async for batch in log.subscribe_arrow(1, 1013)]
    assert pa.Table.from_batches(arrow).column("position").to_pylist() == list(range(1, 1014))
    assert values([await log.read(n) for n in (2, 600, 1001, 1004, 1013)]) == [
        *(2, 600, 1001, 1004, 1013)
    ]


async def test_each_stream_is_whole_and_says_where_its_rows_stand(log: Log) -> None:
    await published(log, 400)
    await log.append_many([b"%d" % n for n in range(401, 450)])
    entries = {entry.position: entry for entry in await read(log)}
    found: list[int] = []
    for stream in (await log.describe()).streams:
        if stream.entries:
            of_stream = [e async for e in log.subscribe_stream(stream.id, 1, stream.entries)]
            assert [entry.llsn for entry in of_stream] == list(range(1, stream.entries + 1))
            assert all(entries[entry.position] == entry for entry in of_stream)
            found += [entry.position for entry in of_stream]
    assert sorted(found) == list(range(1, 450))


async def test_a_reader_may_begin_and_end_within_a_publication(log: Log) -> None:
    await log.append(b"0")
    writer = await log.writer("w")
    parts = [await log.stage(rows(1 + 5 * n, 5)) for n in range(4)]
    await writer.publish(1, parts[0] + parts[1] + parts[2] + parts[3])
    await log.append(b"21")
    everything = values(await read(log))
    assert sorted(everything) == list(range(22))
    for start in range(1, 23):
        for stop in range(start, 23):
            assert values(await read(log, start, stop)) == everything[start - 1 : stop]


async def test_a_reader_that_waits_gets_rows_when_they_are_published(
    log: Log, cluster: Cluster
) -> None:
    writer = await log.writer("w")

    async def follow() -> list[Entry]:
        return [entry async for entry in log.subscribe(1, 300)]

    following = asyncio.create_task(follow())
    for number in range(3):
        await writer.publish(number + 1, await log.stage(rows(1 + 100 * number, 100)))
    assert values(await asyncio.wait_for(following, WAIT_S)) == list(range(1, 301))


async def test_a_publication_may_have_more_rows_than_any_memory(log: Log) -> None:
    """One small append publishes the same rows many times: two thousand million positions."""
    writer = await log.writer("w")
    one = await log.stage(rows(0, 100_000))
    many = replace(one, parts=one.parts * 20_000)
    assert await writer.publish(1, many) == Published(1, 2_000_000_000)
    middle = 1_000_000_000
    assert values(await read(log, middle + 99_999, middle + 100_002)) == [99_998, 99_999, 0, 1]
    assert (await log.read(2_000_000_000)).value == b"99999"
    assert (await log.append(b"next")).position == 2_000_000_001


async def test_rows_keep_their_order_within_what_was_staged_together(log: Log) -> None:
    writer = await log.writer("w")
    tasks = [log.stage([rows(10_000 * n, 3000), rows(10_000 * n + 3000, 3000)]) for n in range(4)]
    one, *others = await asyncio.gather(*tasks)
    await writer.publish(1, sum(others, start=one))
    found = values(await read(log))
    assert sorted(found) == sorted(n + 10_000 * t for t in range(4) for n in range(6000))
    for task in range(4):
        own = [n for n in found if n // 10_000 == task]
        assert all(a < b for a, b in pairwise(own))


async def test_the_blocking_client_is_the_same(local: LocalCluster, log: Log) -> None:
    def work() -> tuple[list[int], list[int], int]:
        with connect_sync(local.address) as cluster:
            own = cluster.log("events")
            writer = own.writer("w")
            assert writer.publish(1, own.stage(rows(1, 5))) == Published(1, 5)
            more = iter([rows(6, 5), rows(11, 5)])
            assert writer.publish(2, own.stage(more)) == Published(6, 15)
            assert writer.publish(2, own.stage(rows(6, 10))) == Published(6, 15)
            found = values(list(own.subscribe(1, 15)))
            (used,) = [stream.id for stream in own.describe().streams if stream.entries]
            tables = own.subscribe_stream_arrow(used, 4, 12)
            part = [int(v) for table in tables for v in table.column("value").to_pylist()]
            assert own.read(9).value == b"9"
            writer.forget()
            return found, part, writer.sequence()

    found, part, sequence = await asyncio.to_thread(work)
    assert (found, part) == (list(range(1, 16)), list(range(4, 13)))
    assert sequence == 0  # it was forgotten: somebody new under the same name


# ---- once, whoever dies -----------------------------------------------------------


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", [1, 2, 3])  # decide, append, done
async def test_a_writer_that_dies_anywhere_is_continued_by_another(
    local: LocalCluster, log: Log, step: int, after: bool
) -> None:
    await published(log, 100)
    first = await log.writer("w")
    staged = await log.stage(rows(101, 50))
    Dying(first, step, after=after)
    with pytest.raises(Crash):
        await first.publish(2, staged)

    client = await local.connect()
    again = await client.log("events").stage(rows(101, 50))
    second = await client.log("events").writer("w")
    assert await second.publish(2, again) == Published(101, 150)
    assert await second.publish(3, await client.log("events").stage(rows(151, 5))) == (151, 155)
    assert values(await read(log)) == list(range(1, 156))


@pytest.mark.parametrize("step", [2, 3])
async def test_what_was_decided_is_what_counts(log: Log, step: int) -> None:
    """A replay may compute other rows: no reader sees both, or a mixture."""
    dying = await log.writer("w")
    Dying(dying, step, after=False)
    with pytest.raises(Crash):
        await dying.publish(1, await log.stage(rows(1, 50)))
    writer = await log.writer("w")
    assert await writer.publish(1, await log.stage(rows(7000, 9))) == Published(1, 50)
    assert values(await read(log)) == list(range(1, 51))


async def test_a_writer_says_how_far_it_is_once_that_is_certain(log: Log) -> None:
    dying = await log.writer("w")
    assert await dying.sequence() == 0
    Dying(dying, 2, after=False)
    with pytest.raises(Crash):
        await dying.publish(5, await log.stage(rows(1, 3)))
    writer = await log.writer("w")
    assert await writer.sequence() == 5
    assert values(await read(log)) == [1, 2, 3]


async def test_clients_that_end_at_any_moment_leave_nothing_doubled(local: LocalCluster) -> None:
    chance = random.Random(4)
    log = await (await local.connect()).create_log("events", streams=2, replicas=2)
    for number in range(1, 16):
        async with await connect(local.address) as client:
            own = client.log("events")
            writer = await own.writer("w")
            work = asyncio.create_task(writer.publish(number, await own.stage(rows(number, 1))))
            await asyncio.sleep(chance.random() * 0.01)
        await asyncio.gather(work, return_exceptions=True)
        await (await log.writer("w")).publish(number, await log.stage(rows(number, 1)))
    assert values(await read(log)) == list(range(1, 16))


async def test_many_processes_that_are_the_same_writer_publish_each_number_once(
    local: LocalCluster, log: Log
) -> None:
    clients = [await local.connect() for _ in range(4)]

    async def publish_all(client: Cluster) -> list[Published]:
        own = client.log("events")
        writer = await own.writer("w")
        return [await writer.publish(n + 1, await own.stage(rows(10 * n, 10))) for n in range(8)]

    told = await asyncio.gather(*map(publish_all, clients))
    assert values(await read(log)) == list(range(80))
    for positions in zip(*told, strict=True):
        assert len({found for found in positions if found.first}) == 1


async def test_a_zombie_that_wakes_up_late_adds_nothing(log: Log) -> None:
    """The process was about to append when others continued without it."""
    zombie = await log.writer("w")
    frozen, thawed = asyncio.Event(), asyncio.Event()
    loglet = own_loglet(zombie, "ordered")
    append = loglet.append_fixed

    async def late(*given: Any) -> Any:
        frozen.set()
        await thawed.wait()
        return await append(*given)

    loglet.append_fixed = late
    work = asyncio.create_task(zombie.publish(1, await log.stage(rows(1, 10))))
    await asyncio.wait_for(frozen.wait(), WAIT_S)
    writer = await log.writer("w")
    for number in range(1, 40):  # more than a stream remembers of one producer
        await writer.publish(number, await log.stage(rows(10 * number - 9, 10)))
    thawed.set()
    assert await asyncio.wait_for(work, WAIT_S) == Published(0, 0)
    assert values(await read(log)) == list(range(1, 391))


async def test_a_zombie_adds_nothing_where_all_memory_of_it_is_gone(
    local: LocalCluster, log: Log
) -> None:
    """Another process appended its publication, which was then trimmed and forgotten."""
    zombie = await log.writer("w")
    frozen, thawed = asyncio.Event(), asyncio.Event()
    loglet = own_loglet(zombie, "ordered")
    fetch = loglet._log.fetch

    async def late() -> Any:
        frozen.set()
        await thawed.wait()
        return await fetch()

    loglet._log = SimpleNamespace(name=log.name, fetch=late)
    work = asyncio.create_task(zombie.publish(1, await log.stage(rows(1, 10))))
    await asyncio.wait_for(frozen.wait(), WAIT_S)
    writer = await log.writer("w")
    await writer.publish(1, Staged("events"))
    await writer.publish(2, await log.stage(rows(11, 10)))
    await log.trim(15)
    forget_producers(local)
    thawed.set()
    assert await asyncio.wait_for(work, WAIT_S) == Published(0, 0)
    assert values(await read(log, 16)) == list(range(16, 21))


async def test_no_trim_takes_a_reference_that_nobody_has_noted_yet(
    local: LocalCluster, log: Log
) -> None:
    await left_intent(log, rows(1, 10), step=3)
    await log.append(b"11")
    await log.trim(10)
    forget_producers(local)
    writer = await log.writer("w")
    assert await writer.publish(1, await log.stage(rows(1, 10))) == Published(1, 10)
    assert await log.tail() == 11


async def test_who_lost_the_lease_publishes_nothing(cluster: Cluster, log: Log) -> None:
    lease = await cluster.acquire_lease("site", "one", 60.0)
    assert lease is not None
    writer = await log.writer("w", lease)
    await writer.publish(1, await log.stage(rows(1, 5)))
    await lease.release()
    assert await cluster.acquire_lease("site", "two", 60.0) is not None
    with pytest.raises(Fenced):
        await writer.publish(2, await log.stage(rows(6, 5)))
    assert await log.tail() == 5


# ---- what is refused --------------------------------------------------------------


async def test_what_cannot_be_published_is_refused(cluster: Cluster, log: Log) -> None:
    writer = await log.writer("w")
    staged = await log.stage(rows(1, 5))
    with pytest.raises(InvalidArgument, match="staged for log 'others'"):
        await writer.publish(1, Staged("others"))
    for sequence in (0, -1, 1 << 63, "1"):
        with pytest.raises(InvalidArgument, match="a sequence is a number from 1 on"):
            await writer.publish(sequence, staged)  # type: ignore[arg-type]
    scattered = replace(staged, parts=one_row_each(staged, 300_000))
    with pytest.raises(InvalidArgument, match="300000 pieces of rows are too many"):
        await writer.publish(1, scattered)
    with pytest.raises(InvalidArgument, match="a writer's name"):
        await log.writer("")
    with pytest.raises(Trimmed, match="staged before it was opened"):
        await (await log.writer("late")).publish(1, staged)
    assert await log.tail() == 0
    assert await writer.publish(1, staged) == Published(1, 5)


def one_row_each(staged: Staged, count: int) -> Any:
    piece = staged.parts[0][0]._replace(rows=1)
    return ((piece, piece._replace(first=3)) * (count // 2),)


async def test_staging_logs_are_not_for_others(cluster: Cluster, log: Log) -> None:
    with pytest.raises(InvalidArgument, match="the name of a staging log"):
        await cluster.create_log("mine.staged")
    await log.stage(rows(1, 1))
    with pytest.raises(InvalidArgument, match="is a staging log"):
        await cluster.log("events.staged").stage(rows(1, 1))
    with pytest.raises(NotFound, match="nobody"):
        await cluster.log("nobody").stage(rows(1, 1))


async def test_no_rows_are_published_as_nothing(log: Log) -> None:
    writer = await log.writer("w")
    assert await writer.publish(3, await log.stage([])) == Published(0, 0)
    assert await writer.sequence() == 3
    assert await log.tail() == 0


# ---- metadata restored from a copy --------------------------------------------------


@pytest.mark.parametrize("protocol", ["ordered", "chained", "copyset"])
async def test_rows_are_published_under_a_number_that_the_metadata_forgot(
    cluster: Cluster, protocol: str
) -> None:
    """The stream knows the number, and the rows that were published under it are others."""
    log = await cluster.create_log(protocol, protocol=protocol, replicas=2)
    writer, register = await log.writer("w"), cluster.register(f"writer/{protocol}/w")
    await writer.publish(1, await log.stage(rows(1, 2)))
    copied = await register.get()
    await writer.publish(2, await log.stage(rows(3, 2)))
    newer = await register.get()
    assert copied is not None
    assert newer is not None
    await register.swap(copied.value, newer.version)  # as `loom metadata catch-up` does
    assert await writer.sequence() == 1
    again = await writer.publish(2, await log.stage(rows(5, 3)))
    assert values([await log.read(n) for n in range(again.first, again.last + 1)]) == [5, 6, 7]
    await log.append(b"8")
    assert values(await read(log)) == list(range(1, 9))
    await writer.publish(3, await log.stage(rows(9, 1)))
    assert values(await read(log)) == list(range(1, 10))
