"""The tails of logs, as lists of logs show them and as clients ask for them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from loomlog.client.cluster import Cluster
from loomlog.core.chained.messages import HandedOut, Next
from loomlog.metadata.chained.keeper import ChainedKeeper
from loomlog.testing import LocalCluster
from loomlog.wire.info import StreamInfo


async def shown(cluster: Cluster, name: str) -> int | None:
    """Return the tail as a list of all logs shows it."""
    return next(log.tail for log in await cluster.logs() if log.name == name)


@pytest.mark.parametrize("protocol", ["ordered", "chained", "copyset"])
async def test_a_list_of_logs_shows_their_tails_soon(tmp_path: Path, protocol: str) -> None:
    local = LocalCluster(nodes=3, directory=tmp_path)
    async with local as cluster:
        log = await cluster.create_log("events", protocol=protocol, replicas=2)
        assert await shown(cluster, "events") == 0
        for _ in range(2):
            last = (await log.append_many([b"one", b"two", b"three"]))[-1].position
            assert await log.tail() == (await log.describe()).tail == last
            async with asyncio.timeout(10):
                while await shown(cluster, "events") != last:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.01)
            await local.stop_metadata()  # the next one has to be told again
            await local.start_metadata()


async def test_who_begins_at_the_latest_misses_nothing_that_comes(tmp_path: Path) -> None:
    """Positions that were handed out and never written are handed out again by the next one."""
    local = LocalCluster(nodes=2, directory=tmp_path)
    async with local as cluster:
        log = await cluster.create_log("events", protocol="chained", replicas=2)
        before = (await log.append(b"before")).position
        hand_out(local, (await log.describe()).streams[0], 5)
        assert await log.tail() == (await log.describe()).tail == before
        following = log.subscribe("latest")
        first = asyncio.create_task(anext(following))
        await begun(cluster)
        await local.stop_metadata()
        await local.start_metadata()
        assert await log.tail() == before
        later = (await log.append(b"after")).position
        async with asyncio.timeout(10):
            entry = await first
        assert (entry.position, entry.value) == (later, b"after")
        await following.aclose()


async def begun(cluster: Cluster) -> None:
    """Wait until the only subscription knows where it begins."""
    async with asyncio.timeout(10):
        subscriptions = cluster._client.subscriptions
        while not any(s._next for s in subscriptions._open):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.005)


def hand_out(local: LocalCluster, stream: StreamInfo, count: int) -> None:
    """Reserve positions that are never written."""
    assert local.metadata is not None
    assert local.metadata.term is not None
    keeper = local.metadata.term.keepers["chained"]
    assert isinstance(keeper, ChainedKeeper)
    answer = keeper.sequencers.answer(stream.segment, Next(stream.epoch, count))
    assert isinstance(answer, HandedOut)
