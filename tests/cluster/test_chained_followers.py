"""Followers of chained logs whose blocks are late or never written wait only for blocks that may
still be written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from loglets_of import chains_of

import loomlog
from loomlog import columns
from loomlog.client.log import Log
from loomlog.client.loglets.chained.chains import ChainView
from loomlog.client.loglets.chained.fixed_append import append_fixed, reserve
from loomlog.client.loglets.contract import Fixed
from loomlog.core.chained.chain import Replica
from loomlog.core.chained.follow import STALL_S
from loomlog.core.chained.messages import Answer, Request
from loomlog.testing import LocalCluster
from loomlog.types import Entry

FOREVER_S = 1000.0
LATE = 200


@asynccontextmanager
async def one_chain(
    directory: Path, *, hole_timeout_s: float
) -> AsyncIterator[tuple[LocalCluster, Log]]:
    local = LocalCluster(nodes=2, directory=directory)
    async with local as cluster, asyncio.timeout(60):
        await cluster.create_log("events", protocol="chained", streams=1, replicas=2)
        async with await loomlog.connect(local.address, hole_timeout_s=hole_timeout_s) as client:
            yield local, client.log("events")


async def take_ticket(log: Log) -> Fixed:
    stream = (await log.describe()).active_streams[0].id
    return await reserve(chains_of(log), stream, 1)


async def use_ticket(log: Log, fixed: Fixed, value: bytes) -> None:
    batch = columns.encode([value], timestamps_us=1, producer_id=9, sequence=fixed.above + 1)
    first = await append_fixed(chains_of(log), fixed, bytearray(batch))
    assert first == fixed.above + 1


async def test_who_is_a_little_late_is_not_waited_for_longer_than_it_takes(tmp_path: Path) -> None:
    """Prefetched blocks of fast writers do not hide the block of a slow one."""
    async with one_chain(tmp_path, hole_timeout_s=FOREVER_S) as (_, log):
        late = await take_ticket(log)
        await log.append(b"quick")
        async with aclosing(log.subscribe(1)) as entries:
            first = asyncio.ensure_future(anext(entries))
            done, _ = await asyncio.wait([first], timeout=0.2)
            assert not done
            await use_ticket(log, late, b"late")
            assert (await first).value == b"late"
            assert (await anext(entries)).value == b"quick"


async def all_late(log: Log, entries: AsyncGenerator[Entry]) -> None:
    """Write every second block after followers have fetched the later ones, while one of them waits
    for the first."""
    late = []
    for _ in range(LATE):
        late.append(await take_ticket(log))
        await log.append(b"quick")
    first = asyncio.ensure_future(anext(entries))
    done, _ = await asyncio.wait([first], timeout=0.2)
    assert not done
    for fixed in late:
        await use_ticket(log, fixed, b"late")
    assert (await first).position == 1


def questions_to_replicas(log: Log) -> list[str]:
    """Return a list that collects the requests of the log's client from now on."""
    chains = chains_of(log)
    ask = chains.requests.ask_replica
    asked: list[str] = []

    async def noted(
        view: ChainView, replica: Replica, request: Request, *, wait_ms: int = 0
    ) -> Answer:
        asked.append(type(request).__name__)
        return await ask(view, replica, request, wait_ms=wait_ms)

    chains.requests.ask_replica = noted  # type: ignore[method-assign]
    return asked


async def test_late_blocks_are_fetched_together(tmp_path: Path) -> None:
    """Otherwise a follower would be slower than the writers, and never catch up."""
    async with (
        one_chain(tmp_path, hole_timeout_s=FOREVER_S) as (_, log),
        aclosing(log.subscribe(1)) as entries,
    ):
        await all_late(log, entries)
        asked = questions_to_replicas(log)
        for position in range(2, 2 * LATE + 1):
            assert (await anext(entries)).position == position
        assert len(asked) < LATE / 10


async def test_late_blocks_of_an_older_epoch_are_not_waited_for(tmp_path: Path) -> None:
    async with (
        one_chain(tmp_path, hole_timeout_s=FOREVER_S) as (local, log),
        aclosing(log.subscribe(1)) as entries,
    ):
        await all_late(log, entries)
        await local.stop_metadata()
        await local.start_metadata()
        behind = (await log.append(b"in a new epoch")).position
        async with asyncio.timeout(LATE * STALL_S / 2):
            while (await anext(entries)).position < behind:
                pass


async def test_a_hole_of_an_older_epoch_is_passed_while_more_and_more_comes(tmp_path: Path) -> None:
    async with one_chain(tmp_path, hole_timeout_s=FOREVER_S) as (local, log):
        await take_ticket(log)
        behind = (await log.append(b"behind it")).position
        await local.stop_metadata()
        await local.start_metadata()
        await log.append(b"in a new epoch")

        async def go_on() -> None:
            while True:
                await log.append(b"more")
                await asyncio.sleep(0.02)  # steadily, and never much

        writing = asyncio.ensure_future(go_on())
        try:
            async with aclosing(log.subscribe(1)) as entries, asyncio.timeout(10):
                assert (await anext(entries)).position == behind
        finally:
            writing.cancel()


async def test_holes_that_lie_together_are_waited_for_once(tmp_path: Path) -> None:
    """The writers of all holes had as much time as the writer of the first."""
    async with one_chain(tmp_path, hole_timeout_s=1.0) as (_, log):
        for _ in range(20):
            await take_ticket(log)
        last = (await log.append(b"behind them")).position
        async with aclosing(log.subscribe(1)) as entries, asyncio.timeout(10):
            assert (await anext(entries)).position == last


@pytest.mark.parametrize("node", [1, 2])
async def test_a_node_may_come_back_at_another_address(tmp_path: Path, node: int) -> None:
    """The node was not missed, so no new epoch begins."""
    async with (
        one_chain(tmp_path, hole_timeout_s=FOREVER_S) as (local, log),
        aclosing(log.subscribe(1)) as entries,
    ):
        await log.append(b"before")
        assert (await anext(entries)).value == b"before"
        await local.stop_node(node)
        local._node_listen[node] = "127.0.0.1:0"
        await local.start_node(node)
        async with asyncio.timeout(20):
            await log.append(b"after")
            assert (await anext(entries)).value == b"after"
