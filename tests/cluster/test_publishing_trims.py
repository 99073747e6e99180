"""Publications, staged rows and writers that are trimmed, deleted or forgotten."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pyarrow as pa
import pytest
from published_rows import left_intent, published, read, rows, values

from loomlog import connect
from loomlog.client.cluster import Cluster
from loomlog.client.log import Log
from loomlog.client.log_parts import LogParts
from loomlog.client.publish import publications
from loomlog.client.publish.writer import Published, Writer
from loomlog.errors import DataLoss, Trimmed
from loomlog.testing import LocalCluster

DAY_S = 86_400


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


async def test_trimming_takes_what_was_staged_along(cluster: Cluster, log: Log) -> None:
    writer = await published(log, 1000)
    staging = cluster.log("events.staged")
    await log.trim(450)
    assert 1 < await staging.head() <= 401
    assert values(await read(log, 451)) == list(range(451, 1001))
    await log.trim(1000)
    assert await staging.head() <= 1001
    await writer.publish(11, await log.stage(rows(1001, 10)))
    assert values(await read(log, 1001)) == list(range(1001, 1011))


async def test_what_others_have_staged_and_not_published_is_kept(
    cluster: Cluster, log: Log
) -> None:
    slow = await log.writer("slow")
    staged = await log.stage(rows(5000, 10))
    await published(log, 1000)
    await log.trim(1000)
    assert await cluster.log("events.staged").head() == 1
    assert await slow.publish(1, staged) == Published(1001, 1010)
    assert values(await read(log, 1001)) == list(range(5000, 5010))


async def with_a_fast_clock(local: LocalCluster) -> Cluster:
    """Connect a client by whose clock all others have been silent for days."""
    return await connect(local.address, clock=lambda: time.time() + 2 * DAY_S)


async def publish_again(log: Log, writer: Writer, number: int, batch: pa.RecordBatch) -> None:
    """Stage and publish rows again after they were refused because they may be gone."""
    staged = await log.stage(batch)
    assert (await writer.publish(number, staged)).last


async def test_whose_rows_may_be_gone_publishes_them_not(
    local: LocalCluster, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds even if the writer counts as dead because of a wrong clock."""
    await log.append(b"0")
    slow = await log.writer("slow")
    staged = await log.stage(rows(5000, 10))
    first_needed = publications._first_needed

    async def publish_meanwhile(log_: LogParts, otherwise: int) -> int:
        found = await first_needed(log_, otherwise)
        with pytest.raises(Trimmed, match="stage them again"):
            await slow.publish(1, staged)
        return found

    monkeypatch.setattr(publications, "_first_needed", publish_meanwhile)
    async with await with_a_fast_clock(local) as late:
        await late.log("events").trim(1)
    await publish_again(log, slow, 1, rows(5000, 10))
    assert values(await read(log, 2)) == list(range(5000, 5010))


async def test_a_publication_takes_no_rows_of_a_writer_that_counts_as_dead(
    local: LocalCluster, log: Log
) -> None:
    await log.append(b"0")
    slow = await log.writer("slow")
    staged = await log.stage(rows(5000, 10))
    async with await with_a_fast_clock(local) as late:
        quick = await late.log("events").writer("quick")
        await quick.publish(1, await log.stage(rows(1, 10)))
        with pytest.raises(Trimmed, match="stage them again"):
            await slow.publish(1, staged)
        await publish_again(log, slow, 1, rows(5000, 10))
        await quick.publish(2, await log.stage(rows(11, 10)))
    await log.trim(1)
    expected = [*range(1, 11), *range(5000, 5010), *range(11, 21)]
    assert values(await read(log, 2)) == expected


async def test_what_is_decided_is_kept(cluster: Cluster, log: Log) -> None:
    await left_intent(log, rows(1, 10))
    other = await log.writer("other")
    for number in range(1, 5):
        await other.publish(number, await log.stage(rows(100 * number, 100)))
    await log.trim(400)
    assert await (await log.writer("w")).sequence() == 1
    assert values(await read(log, 401)) == list(range(1, 11))


async def test_a_reader_of_rows_that_are_gone_hears_which(cluster: Cluster, log: Log) -> None:
    await published(log, 300)
    await cluster.log("events.staged").trim(150)  # by hand: nobody should
    assert values(await read(log, 201)) == list(range(201, 301))
    with pytest.raises(DataLoss, match=r"positions 1 to 100 of log .events.+are gone"):
        await read(log)
    with pytest.raises(DataLoss, match="position"):
        await log.read(120)


async def test_a_reader_who_is_overtaken_by_a_trim_hears_of_a_trim(
    cluster: Cluster, log: Log
) -> None:
    await published(log, 1000, batch=500)
    reading = log.subscribe(1, 1000)
    assert (await anext(reading)).position == 1
    await log.trim(1000)
    await cluster.log("events.staged").trim(1000)
    fresh = log._parts.pieces.stored(1, 1000)
    with pytest.raises(Trimmed):
        await fresh.next()
    await reading.aclose()
    with pytest.raises(Trimmed):
        await log.read(7)


async def test_deleting_a_log_deletes_what_was_staged_for_it(cluster: Cluster, log: Log) -> None:
    await published(log, 100)
    assert {info.name for info in await cluster.logs()} == {"events", "events.staged"}
    await cluster.delete_log("events")
    assert await cluster.logs() == []
    assert await cluster.registers() == {}
    again = await cluster.create_log("events", streams=1, replicas=2)
    await published(again, 100)
    assert values(await read(again)) == list(range(1, 101))


async def test_a_writer_that_is_forgotten_leaves_no_register(cluster: Cluster, log: Log) -> None:
    writer = await published(log, 100)
    await writer.forget()
    await writer.forget()
    assert await cluster.registers() == {}
    again = await log.writer("w")  # somebody else: its numbers are not those of the first
    assert await again.publish(1, await log.stage(rows(101, 10))) == Published(101, 110)
    assert values(await read(log)) == list(range(1, 111))
