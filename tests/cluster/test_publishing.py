"""Publishing on real servers: all rows at once, and once, whoever dies or comes twice."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from dying_writers import Crash, Dying, own_loglet
from node_services import ordered_on

from loomlog import connect, connect_sync
from loomlog.client.cluster import Cluster
from loomlog.client.log import Log
from loomlog.client.log_parts import LogParts
from loomlog.client.publish import publications, stager
from loomlog.client.publish.stager import Staged
from loomlog.client.publish.writer import Published, Writer
from loomlog.errors import DataLoss, Fenced, InvalidArgument, NotFound, Trimmed, Unavailable
from loomlog.node.ordered.appends import ProducerTable
from loomlog.testing import LocalCluster
from loomlog.types import Entry

WAIT_S = 20.0
DAY_S = 86_400


def rows(first: int, count: int) -> pa.RecordBatch:
    """Return rows with the values b"first", …"""
    numbers = range(first, first + count)
    return pa.record_batch(
        {
            "value": [b"%d" % n for n in numbers],
            "key": pa.array([b"key" if n % 3 else None for n in numbers], pa.binary()),
            "timestamp": pa.array(numbers, pa.timestamp("us", "UTC")),
        }
    )


def values(entries: list[Entry]) -> list[int]:
    return [int(entry.value) for entry in entries]


async def read(log: Log, start: int = 1, stop: int | None = None) -> list[Entry]:
    stop = await log.tail() if stop is None else stop
    return [entry async for entry in log.subscribe(start, stop)] if stop >= start else []


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


async def published(log: Log, count: int, *, batch: int = 100) -> Writer:
    """Publish the values 1 to `count` in publications of `batch`."""
    writer = await log.writer("w")
    for number, first in enumerate(range(1, count + 1, batch), 1):
        await writer.publish(number, await log.stage(rows(first, batch)))
    return writer


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
    """The same rows many times over: two thousand million positions by one small append."""
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


def forget_producers(local: LocalCluster) -> None:
    """Forget producers, like replicas that join after the batches were trimmed."""
    for node in local.nodes.values():
        for held in ordered_on(node).held.values():
            held.driver.producers = ProducerTable()


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


# ---- streams that come and go -----------------------------------------------------


async def left_intent(log: Log, staged: pa.RecordBatch, step: int = 2) -> int:
    """Let a writer die after its first decision; return the stream of the publication."""
    dying = await log.writer("w")
    Dying(dying, step, after=False)
    with pytest.raises(Crash):
        await dying.publish(1, await log.stage(staged))
    intent = (await dying._load())[0].intent
    assert intent is not None
    return intent.fixed.stream


async def test_a_stream_that_was_sealed_by_hand_is_waited_for_and_then_named(
    local: LocalCluster, cluster: Cluster, log: Log
) -> None:
    stream = await left_intent(log, rows(1, 10))
    await cluster.seal_stream(stream)
    async with await connect(local.address, append_timeout_s=0.5) as client:
        writer = await client.log("events").writer("w")
        with pytest.raises(Unavailable, match=f"stream {stream} took no append.*unseal it"):
            await writer.publish(1, await log.stage(rows(1, 10)))
    await cluster.unseal_stream(stream)
    writer = await log.writer("w")
    assert await writer.publish(1, await log.stage(rows(1, 10))) == Published(1, 10)
    assert values(await read(log)) == list(range(1, 11))


@pytest.mark.parametrize("step", [2, 3], ids=["decided", "appended"])
async def test_what_was_decided_for_a_segment_that_has_ended_is_published_once(
    cluster: Cluster, log: Log, step: int
) -> None:
    await left_intent(log, rows(1, 10), step)
    await cluster.switch_log(log.name, streams=1)
    writer = await log.writer("w")
    assert await writer.sequence() == 1
    await writer.publish(2, await log.stage(rows(11, 5)))
    assert values(await read(log, 1, 15)) == list(range(1, 16))
    assert await log.tail() == 15


async def test_a_segment_may_go_while_a_reference_is_searched_in_it(
    local: LocalCluster, cluster: Cluster, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process published it, and its whole segment was trimmed."""
    await left_intent(log, rows(1, 10), step=3)
    open_stored_stream = log._parts.pieces.stored_stream

    def open_and_lose(*given: Any) -> Any:
        monkeypatch.undo()
        pieces = open_stored_stream(*given)
        following = pieces.next

        async def next_when_it_is_gone() -> Any:
            async with await connect(local.address) as client:
                assert await (await client.log("events").writer("w")).sequence() == 1
            await cluster.switch_log("events", streams=1)
            await log.trim(10)
            assert len((await log.describe()).segments) == 1
            monkeypatch.undo()
            return await following()

        monkeypatch.setattr(pieces, "next", next_when_it_is_gone)
        return pieces

    monkeypatch.setattr(log._parts.pieces, "stored_stream", open_and_lose)
    writer = await asyncio.wait_for(log.writer("w"), WAIT_S)
    assert await writer.publish(2, await log.stage(rows(11, 5))) == Published(11, 15)
    assert values(await read(log, 11)) == list(range(11, 16))


async def test_rows_are_staged_elsewhere_when_their_stream_takes_none(
    cluster: Cluster, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stager, "PATIENCE_S", 0.2)
    writer = await log.writer("w")
    streams = [stream.id for stream in (await cluster.log("events.staged").describe()).streams]
    stagers = [await log._stager() for _ in range(8)]
    await cluster.seal_stream(streams[0])
    for number, one in enumerate(stagers):
        await one.add(rows(1 + 10 * number, 10))
    staged = [await asyncio.wait_for(one.finish(), WAIT_S) for one in stagers]
    assert {piece.stream for part in staged for run in part.parts for piece in run} == {streams[1]}
    assert await writer.publish(1, sum(staged, start=Staged("events"))) == Published(1, 80)
    await cluster.unseal_stream(streams[0])
    assert sorted(values(await read(log))) == list(range(1, 81))


async def test_a_writer_goes_to_another_stream_when_its_own_is_sealed(
    cluster: Cluster, log: Log
) -> None:
    writer = await published(log, 100)
    (used,) = [stream.id for stream in (await log.describe()).streams if stream.entries]
    await cluster.seal_stream(used)
    assert await writer.publish(2, await log.stage(rows(101, 10))) == Published(101, 110)
    await cluster.unseal_stream(used)
    assert values(await read(log)) == list(range(1, 111))


@pytest.mark.parametrize("step", [2, 3])
async def test_the_primary_dies_while_a_publication_is_open(
    local: LocalCluster, log: Log, step: int
) -> None:
    stream = await left_intent(log, rows(1, 100), step)
    (primary,) = [s.replicas[0].node for s in (await log.describe()).streams if s.id == stream]
    await local.stop_node(primary)
    writer = await log.writer("w")
    assert await asyncio.wait_for(writer.publish(1, Staged("events")), WAIT_S) == Published(1, 100)
    assert values(await read(log)) == list(range(1, 101))


async def test_a_reference_is_found_also_when_its_stream_has_forgotten_who_sent_it(
    local: LocalCluster, log: Log
) -> None:
    await log.append(b"0")
    await left_intent(log, rows(1, 10), step=3)
    for number in range(11, 14):
        await log.append(b"%d" % number)
    forget_producers(local)
    writer = await log.writer("w")
    assert await writer.publish(1, await log.stage(rows(1, 10))) == Published(2, 11)
    assert values(await read(log)) == list(range(14))


# ---- trimming and deleting --------------------------------------------------------


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
    """Connect a client to whose clock all others have been silent for days."""
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
