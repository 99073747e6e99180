"""Subscriptions where a copyset segment ends: its last bridge reaches into the next segment's
positions, and hides nothing there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from loomlog.client.cluster import Cluster
from loomlog.client.log import Log
from loomlog.testing import LocalCluster
from loomlog.types import Entry, Gap


@asynccontextmanager
async def copyset_log(tmp_path: Path) -> AsyncIterator[tuple[Cluster, Log]]:
    async with asyncio.timeout(30), LocalCluster(nodes=3, directory=tmp_path) as cluster:
        yield cluster, await cluster.create_log("log", protocol="copyset", replicas=2)


@pytest.mark.parametrize("gaps", [True, False])
@pytest.mark.parametrize("written", [0, 2])
async def test_a_follower_sees_all_of_the_next_segment(
    tmp_path: Path, gaps: bool, written: int
) -> None:
    async with copyset_log(tmp_path) as (cluster, log):
        places = [(await log.append(b"before")).position for _ in range(written)]
        async with aclosing(log.subscribe(1, gaps=gaps)) as items:
            seen = [await _next_entry(items) for _ in range(written)]
            following = asyncio.ensure_future(_next_entry(items))
            await cluster.switch_log("log", protocol="ordered")
            places += [(await log.append(b"behind")).position for _ in range(2)]
            seen += [await following, await _next_entry(items)]
        assert [entry.position for entry in seen] == places


async def test_who_stops_in_a_bridge_ends_when_the_log_goes_on_behind_it(tmp_path: Path) -> None:
    async with copyset_log(tmp_path) as (cluster, log):
        first = (await log.append(b"before")).position
        stop = first + 10
        following = asyncio.ensure_future(_all(log, stop))
        await cluster.switch_log("log", protocol="ordered")
        await log.append_many([b"behind"] * 20)
        seen = await following
        assert [item.position for item in seen if isinstance(item, Entry)] == [
            *range(first, stop + 1)
        ]
        assert all(item.last < first for item in seen if isinstance(item, Gap))


async def _all(log: Log, stop: int) -> list[Entry | Gap]:
    return [item async for item in log.subscribe(1, stop, gaps=True)]


async def _next_entry(items: AsyncIterator[Entry | Gap]) -> Entry:
    async for item in items:
        if isinstance(item, Entry):
            return item
    raise AssertionError("the log ended")
