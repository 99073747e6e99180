"""Writers tell the replicas of a chained log what was acknowledged: with their next block, and by
themselves if none follows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from loglets_of import chains_of
from poll import until

from loomlog import columns
from loomlog.client.cluster import Cluster
from loomlog.client.log import Log
from loomlog.client.loglets.chained import chains
from loomlog.client.loglets.chained.chains import Chains, ChainView
from loomlog.client.loglets.chained.fixed_append import append_fixed, reserve
from loomlog.client.loglets.chained.requests import Answered, ChainRequests, PendingRequest
from loomlog.core.backoff import Backoff
from loomlog.core.chained.chain import Chain, Replica
from loomlog.core.chained.messages import Acknowledge, ChainedAsk, List, Listed
from loomlog.testing import LocalCluster
from loomlog.types import Glsn


@asynccontextmanager
async def chained(*, streams: int = 2) -> AsyncIterator[tuple[LocalCluster, Cluster, Log]]:
    local = LocalCluster(nodes=3, sync="none")
    async with local as cluster, asyncio.timeout(60):
        log = await cluster.create_log("log", "chained", streams=streams, replicas=3)
        yield local, cluster, log


async def view_of(log: Log) -> ChainView:
    return await chains_of(log).learn((await log.describe()).active_streams[0].id)


async def known(log: Log) -> list[set[Glsn]]:
    """Return for each node which blocks its replicas know to have been acknowledged."""
    found: dict[int, set[Glsn]] = {}
    view = await view_of(log)
    request = List(view.epoch, 1, 999, with_acknowledged=True)
    for replica in view.projection.replicas:
        answer = await chains_of(log).requests.ask_replica(view, replica, request)
        assert isinstance(answer, Listed)
        found.setdefault(replica.node_id, set()).update(answer.acknowledged)
    return list(found.values())


def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report acknowledged blocks only with further blocks."""
    monkeypatch.setattr(chains, "TELL_S", 3600.0)


async def test_a_block_tells_of_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    patient(monkeypatch)
    async with chained() as (_, _, log):
        positions = [(await log.append(b"%d" % number)).position for number in range(9)]
        assert await known(log) == [{*positions[:-2]}] * 3  # all but the last of each chain
        positions += [a.position for a in await asyncio.gather(*(log.append(b"") for _ in "1234"))]
        many = await log.append_many([b"one", b"two", b"three"])
        assert many[0].position not in set.union(*await known(log))


async def test_nothing_is_told_by_itself_while_blocks_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    patient(monkeypatch)
    notes: list[Acknowledge] = []
    ask = ChainRequests.ask

    def noted(
        self: ChainRequests,
        view: ChainView,
        asked: ChainedAsk,
        answered: Answered,
        *,
        wait_ms: int = 0,
    ) -> PendingRequest:
        if isinstance(asked.request, Acknowledge):
            notes.append(asked.request)
        return ask(self, view, asked, answered, wait_ms=wait_ms)

    monkeypatch.setattr(ChainRequests, "ask", noted)
    async with chained(streams=1) as (_, _, log):
        unreported = chains_of(log).unreported
        for _ in range(20):
            last = (await log.append(b"value")).position
            chains_of(log)._look_untold()  # as if half a second had passed
        assert notes == []
        assert unreported  # the last one
        chains_of(log)._look_untold()
        assert not unreported.is_watched  # nothing runs any more
        await until(lambda: not chains_of(log)._telling)
        assert [note.addresses for note in notes] == [(last,)] * 3
        assert last in set.intersection(*await known(log))


async def test_a_writer_tells_of_its_last_block_soon() -> None:
    async with chained() as (_, _, log):
        positions = [(await log.append(b"%d" % number)).position for number in range(3)]
        await until(lambda: known(log), lambda found: found == [{*positions}] * 3)
        assert not chains_of(log).unreported


async def test_a_client_that_is_closed_tells_of_its_last_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    patient(monkeypatch)
    async with chained() as (local, _, log):
        async with await local.connect() as client:
            positions = [(await client.log("log").append(b"")).position for _ in range(5)]
        assert await known(log) == [{*positions}] * 3


async def test_a_client_that_is_closed_tells_all_logs_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    patient(monkeypatch)
    monkeypatch.setattr(chains, "TELL_LAST_S", 60.0)
    names, real = ("one", "two", "three"), Chains._tell_once
    others = asyncio.Barrier(len(names))

    async def together(
        self: Chains, view: ChainView, chain: Chain, addresses: tuple[Glsn, ...]
    ) -> bool:
        await others.wait()
        return await real(self, view, chain, addresses)

    async with chained() as (local, cluster, _):
        logs = [await cluster.create_log(name, "chained", replicas=3) for name in names]
        monkeypatch.setattr(Chains, "_tell_once", together)
        async with await local.connect() as client:
            positions = [(await client.log(name).append(b"")).position for name in names]
        for log, position in zip(logs, positions, strict=True):
            assert await known(log) == [{position}] * 3


async def test_appends_at_reserved_positions_are_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    patient(monkeypatch)
    async with chained(streams=1) as (_, _, log):
        stream, positions = (await view_of(log)).stream, []
        for sequence in (1, 2, 3):
            batch = columns.encode([b"row"], timestamps_us=1, producer_id=7, sequence=sequence)
            fixed = await reserve(chains_of(log), stream, 1)
            positions.append(await append_fixed(chains_of(log), fixed, bytearray(batch)))
        assert await known(log) == [{*positions[:2]}] * 3
        await log.append(b"value")
        assert await known(log) == [{*positions}] * 3


@pytest.mark.parametrize("is_late", [False, True])
async def test_what_could_not_be_told_in_an_epoch_is_told_in_the_next(
    monkeypatch: pytest.MonkeyPatch, *, is_late: bool
) -> None:
    """This holds however long the client tries in vain."""
    patient(monkeypatch)
    failures = iter(range(5 if is_late else 0))
    real = Chains._tell_once

    async def failing(
        self: Chains, view: ChainView, chain: Chain, addresses: tuple[Glsn, ...]
    ) -> bool:
        return next(failures, None) is None and await real(self, view, chain, addresses)

    monkeypatch.setattr(chains, "TELL_AGAIN", Backoff(0.01, 0.1))
    monkeypatch.setattr(Chains, "_tell_once", failing)
    async with chained(streams=1) as (local, _, log):
        position = (await log.append(b"value")).position
        tail: Replica = (await view_of(log)).projection.chains[0][-1]
        await local.stop_node(tail.node_id)
        chains_of(log)._look_untold()
        chains_of(log)._look_untold()  # twice: it was idle in between

        async def chain() -> list[set[Glsn]]:
            await chains_of(log).log.refresh()
            view = await view_of(log)
            return await known(log) if len(view.projection.chains[0]) == 2 else []

        assert await until(chain, lambda found: found == [{position}] * 2)
