"""The client on copyset logs, on real servers."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from loglets_of import copysets_of
from test_exactly_once_on_servers import ExactlyOnceServers, servers

from loomlog.client.cluster import Cluster
from loomlog.client.log import Log
from loomlog.core.copyset.record import epoch_of, make
from loomlog.errors import DataLoss, NotFound, NotYetWritten, Trimmed
from loomlog.testing import LocalCluster
from loomlog.types import Gap

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    local = LocalCluster(nodes=3, directory=tmp_path, sync="none")
    async with local:
        yield local


async def copyset(cluster: Cluster) -> Log:
    return await cluster.create_log("events", protocol="copyset", replicas=2)


async def values_of(log: Log) -> list[bytes]:
    return [entry.value async for entry in log.subscribe(stop=await log.tail())]


async def sequencer_of(log: Log) -> int:
    [stream] = (await log.describe()).active_streams
    assert stream.copyset is not None
    assert stream.copyset.sequencer is not None
    return stream.copyset.sequencer


# ---- reading


async def test_what_was_appended_is_followed_read_and_counted(local: LocalCluster) -> None:
    async with await local.connect() as cluster:
        log = await copyset(cluster)
        assert await log.is_empty()
        places = [await log.append(b"%d" % number) for number in range(5)]
        assert [place.llsn for place in places] == [place.position for place in places]
        assert await log.tail() == places[-1].position == (await log.describe()).tail
        assert await values_of(log) == [b"%d" % number for number in range(5)]
        assert (await log.read(places[2].position)).value == b"2"
        stream = [e.value async for e in log.subscribe_stream(1, 1, places[3].llsn)]
        assert stream == [b"0", b"1", b"2", b"3"]


async def test_nothing_stands_between_epochs(local: LocalCluster) -> None:
    async with await local.connect() as cluster:
        log = await copyset(cluster)
        place = (await log.append(b"a")).position
        with pytest.raises(NotFound):
            await log.read(1)
        with pytest.raises(NotFound):
            await log.read(make(1, 0))
        with pytest.raises(NotYetWritten):
            await log.read(place + 1)
        found = [item async for item in log.subscribe(1, place, gaps=True)]
        assert found[0] == Gap(1, make(1, 0), "bridge")
        assert [item.value for item in found[1:] if not isinstance(item, Gap)] == [b"a"]


async def test_who_reads_does_not_believe_what_was_asked_before(local: LocalCluster) -> None:
    """A sequencer that was replaced would be believed, and what its successor acknowledged would
    count as not written."""
    async with await local.connect() as cluster:
        log = await copyset(cluster)
        place = await log.append(b"one")
        [stream] = (await log.describe()).active_streams
        asked_before = asyncio.ensure_future(asyncio.Event().wait())
        log._parts.cached._refreshing = asked_before  # type: ignore[assignment]
        view = copysets_of(log).segments.view(stream.id)
        found = await asyncio.wait_for(copysets_of(log).tails.find(view), 10)
        log._parts.cached._refreshing = None
        asked_before.cancel()
        assert found == place.position


async def test_a_subscriber_waits_for_what_comes(local: LocalCluster) -> None:
    async with await local.connect() as cluster:
        log = await copyset(cluster)
        await log.append(b"old")
        latest = log.subscribe("latest")
        first = asyncio.ensure_future(anext(latest))
        everything = log.subscribe()
        assert (await anext(everything)).value == b"old"
        while not first.done():  # until it follows
            await log.append(b"new")
            await asyncio.sleep(0.01)
        assert (await first).value == b"new"
        assert (await anext(everything)).value == b"new"
        await latest.aclose()
        await everything.aclose()


async def test_a_reader_that_holds_little_gets_everything(local: LocalCluster) -> None:
    async with await local.connect() as cluster:
        log = await copyset(cluster)
        values = [bytes([number]) * 50_000 for number in range(60)]
        await asyncio.gather(*(log.append_many([value]) for value in values))
    async with await local.connect() as cluster:
        log = cluster.log("events")
        subscription = log._parts.pieces.stored_stream(
            1, 1, await log.tail(), read_ahead_bytes=100_000
        )
        rows = 0
        while (piece := await subscription.next()) is not None:
            assert not isinstance(piece, Gap)
            rows += piece.rows
        assert rows == len(values)


async def test_places_and_times_can_be_read_without_payloads(local: LocalCluster) -> None:
    async with await local.connect() as cluster:
        log = await copyset(cluster)
        await log.append(b"value", b"key")
        await log.append_many([b"x", b"y"])
        await cluster.switch_log("events", protocol="ordered", replicas=2)
        await log.append(b"value", b"key")
        tail = await log.tail()
        whole = [entry async for entry in log.subscribe(stop=tail)]
        bare = [entry async for entry in log.subscribe(stop=tail, payloads=False)]
        assert [e.position for e in bare] == [e.position for e in whole]
        assert {(e.key, e.value) for e in bare} == {(None, b"")}
        assert all(e.timestamp_us for e in bare)
        rows = [b async for b in log.subscribe_arrow(1, tail, payloads=False)]
        assert sum(batch.num_rows for batch in rows) == 4
        assert not any(b"".join(batch.column("value").to_pylist()) for batch in rows)


# ---- trim


@pytest.mark.parametrize("protocol", ["ordered", "chained", "copyset"])
async def test_what_was_trimmed_raises_or_is_a_gap_for_readers_that_ask_for_gaps(
    local: LocalCluster, protocol: str
) -> None:
    async with await local.connect() as cluster:
        log = await cluster.create_log(f"trimmed-{protocol}", protocol, replicas=2)
        places = [(await log.append(b"%d" % number)).position for number in range(6)]
        await log.trim(places[2])
        with pytest.raises(Trimmed):
            await log.read(places[2])
        found = [entry.value async for entry in log.subscribe("earliest", places[-1])]
        assert found == [b"3", b"4", b"5"]
        for start in (1, places[2]):
            with pytest.raises(Trimmed, match=str(places[2] + 1)):
                await anext(log.subscribe(start, places[-1]))
        items = [item async for item in log.subscribe(1, places[-1], gaps=True)]
        assert items[0] == Gap(1, places[2], "trim")
        assert [item.value for item in items if not isinstance(item, Gap)] == found
        items = [item async for item in log.subscribe(1, places[1], gaps=True)]
        assert items == [Gap(1, places[1], "trim")]


async def test_a_reader_that_is_overtaken_by_a_trim_is_told(local: LocalCluster) -> None:
    async with await local.connect() as cluster:
        log = await copyset(cluster)
        values = [bytes([number]) * 200_000 for number in range(40)]
        places = [(await log.append_many([value]))[0].position for value in values]
        reader = cluster.log("events")._parts.pieces.stored_stream(
            1, 1, None, read_ahead_bytes=100_000
        )
        assert await reader.next() is not None
        await log.trim(places[-2])

        async def read_on() -> None:
            while await reader.next() is not None:
                pass

        with pytest.raises(Trimmed):
            await read_on()
        reader.close()


async def test_where_a_time_begins_is_found_across_wide_gaps(local: LocalCluster) -> None:
    async with await local.connect() as cluster:
        log = await copyset(cluster)
        places = []
        for number in range(3):
            places.append((await log.append(b"%d" % number)).position)
            await cluster.switch_log("events", protocol="copyset")
        times = [(await log.read(place)).timestamp_us / 1e6 for place in places]
        assert [await log.find_time(time) for time in times] == places
        assert await log.find_time(0) == places[0]
        assert await log.find_time(times[-1] + 60) == await log.tail() + 1


# ---- failover


async def test_appends_and_readers_outlive_the_node_that_sequences(local: LocalCluster) -> None:
    async with await local.connect() as cluster:
        log = await copyset(cluster)
        before = (await log.append(b"before")).position
        following = log.subscribe()
        assert (await anext(following)).value == b"before"
        await local.stop_node(await sequencer_of(log))
        after = (await log.append(b"after")).position
        assert epoch_of(after) > epoch_of(before)
        assert (await anext(following)).value == b"after"
        assert (await log.read(before)).value == b"before"
        assert await values_of(log) == [b"before", b"after"]
        await following.aclose()


async def test_an_answer_that_was_lost_is_given_again(tmp_path: Path) -> None:
    async with servers(tmp_path, nodes=3) as cluster:
        log = await copyset(await cluster.client())
        await log.append(b"before")
        proxy = cluster.proxies[await sequencer_of(log)]
        proxy.answers_pass = False
        append = asyncio.ensure_future(log.append(b"once"))
        await proxy.swallowed.wait()
        proxy.heal()
        place = await append
        assert (await log.append(b"after")).position > place.position
        assert await values_of(log) == [b"before", b"once", b"after"]


async def test_what_a_dead_sequencer_took_is_found_by_the_next_one(tmp_path: Path) -> None:
    async with servers(tmp_path, nodes=4) as cluster:
        log = await copyset(await cluster.client())
        await log.append(b"before")
        append = await lose_answer(cluster, log)
        await append
        await log.append(b"after")
        assert await values_of(log) == [b"before", b"once", b"after"]


async def lose_answer(cluster: ExactlyOnceServers, log: Log) -> asyncio.Future[object]:
    """Begin an append; its answer is lost, and the sequencer dies."""
    sequencer = await sequencer_of(log)
    proxy = cluster.proxies[sequencer]
    proxy.answers_pass = False
    append: asyncio.Future[object] = asyncio.ensure_future(log.append(b"once"))
    await proxy.swallowed.wait()
    await cluster.stop_node(sequencer)
    proxy.heal()
    return append


async def test_what_was_taken_before_a_switch_is_not_appended_again_after_it(
    tmp_path: Path,
) -> None:
    async with servers(tmp_path, nodes=4) as cluster:
        client = await cluster.client()
        log = await copyset(client)
        await log.append(b"before")
        append = await lose_answer(cluster, log)
        other = await cluster.client()
        await other.switch_log("events", protocol="ordered", replicas=2)
        await append
        await log.append(b"after")
        assert await values_of(log) == [b"before", b"once", b"after"]


async def test_lost_entries_are_reported(tmp_path: Path) -> None:
    """Two nodes lose their disks: so what only they had is gone."""
    local = LocalCluster(nodes=3, directory=tmp_path, sync="none")
    async with local, await local.connect() as cluster:
        log = await copyset(cluster)
        places = [(await log.append(b"%d" % number)).position for number in range(20)]
        lost = {1, 2, 3} - {await sequencer_of(log)}
        for node in lost:  # both before one is filled again
            await local.stop_node(node)
            lose_disk(tmp_path, node)
        for node in lost:
            await local.start_node(node)
        with pytest.raises(DataLoss):
            async for _ in log.subscribe(places[0], places[-1]):
                pass
        found = [item async for item in log.subscribe(places[0], places[-1], gaps=True)]
        gaps = [item for item in found if isinstance(item, Gap)]
        assert {gap.kind for gap in gaps} == {"dataloss"}
        missing = {p for gap in gaps for p in range(gap.first, gap.last + 1)}
        read = {item.position for item in found if not isinstance(item, Gap)}
        assert read | missing == set(places)
        assert not read & missing


def lose_disk(directory: Path, node: int) -> None:
    [copies] = (directory / f"vsn-{node}").rglob("logs")
    shutil.rmtree(copies)


# ---- switching


async def test_switches_to_and_from_copyset_under_load_keep_the_order(local: LocalCluster) -> None:
    async with await local.connect() as cluster:
        log = await cluster.create_log("events", replicas=2)
        stopped = asyncio.Event()
        acknowledged: dict[int, bytes] = {}

        async def write(writer: int) -> None:
            for number in itertools.count():
                if stopped.is_set():
                    return
                value = b"%d-%d" % (writer, number)
                acknowledged[(await log.append(value)).position] = value

        read: dict[int, bytes] = {}

        async def follow() -> None:
            async for entry in log.subscribe():
                assert not read or entry.position > max(read)
                read[entry.position] = entry.value

        writers = [asyncio.ensure_future(write(writer)) for writer in range(3)]
        follower = asyncio.ensure_future(follow())
        for protocol in ("copyset", "chained", "copyset", "ordered"):
            count = len(acknowledged)
            await cluster.switch_log("events", protocol=protocol, replicas=2)
            while len(acknowledged) < count + 30:  # noqa: ASYNC110 - others append
                await asyncio.sleep(0.005)
        stopped.set()
        await asyncio.gather(*writers)
        while max(read) < max(acknowledged):
            assert not follower.done(), follower.result()
            await asyncio.sleep(0.005)
        follower.cancel()
        assert read == acknowledged
        for writer in range(3):
            own = [v for _, v in sorted(read.items()) if v.startswith(b"%d-" % writer)]
            assert own == [b"%d-%d" % (writer, number) for number in range(len(own))]
        for position in sorted(acknowledged)[:: max(1, len(acknowledged) // 20)]:
            assert (await log.read(position)).value == acknowledged[position]
