"""Publications while streams are sealed, switched and moved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from published_rows import WAIT_S, forget_producers, left_intent, published, read, rows, values

from loomlog import connect
from loomlog.client.cluster import Cluster
from loomlog.client.log import Log
from loomlog.client.publish import stager
from loomlog.client.publish.stager import Staged
from loomlog.client.publish.writer import Published
from loomlog.errors import Unavailable
from loomlog.testing import LocalCluster


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
