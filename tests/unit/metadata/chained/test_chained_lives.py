"""Replicas of nodes that crashed wait for a new epoch, which gives them back what they forgot."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from cluster_requests import chained, is_whole, nodes_of
from poll import until
from small_cluster import SmallCluster

from loomlog.core.chained.chain import Projection, Replica
from loomlog.core.chained.messages import Answer, Check, Done, Pull, Request
from loomlog.core.chained.replica import FORGETFUL
from loomlog.metadata.chained.driver import Driver
from loomlog.metadata.chained.epochs import Epochs
from loomlog.wire import loomlog_pb2 as pb

NODE = 2


@pytest.fixture
def may_begin(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Return what lets epochs begin; it is not set."""
    event, real = asyncio.Event(), Epochs.attempt

    async def attempt(self: Epochs, *args: Any, **options: Any) -> Projection:
        await event.wait()
        return await real(self, *args, **options)

    monkeypatch.setattr(Epochs, "attempt", attempt)
    return event


async def test_a_node_that_stops_after_its_crash_still_waits_for_an_epoch(
    tmp_path: Path, may_begin: asyncio.Event
) -> None:
    async with SmallCluster(tmp_path, real=3, heartbeat_s=0.1) as cluster:
        await cluster.create_chained()
        await cluster.log.append(b"one")
        (record,) = cluster.keeper.records
        replica = next(r for r in record.projection.replicas if r.node_id == NODE)
        check = Check(record.projection.epoch)
        assert await cluster.driver.ask(replica, check) == Done()

        await cluster.crash_node(NODE)
        await cluster.start_node(NODE)
        assert await cluster.driver.ask(replica, check) == FORGETFUL
        await cluster.stop_node(NODE)
        await cluster.start_node(NODE)
        assert await cluster.driver.ask(replica, check) == FORGETFUL

        may_begin.set()
        await cluster.log_is(lambda log: chained(log).projection.epoch > 1 and is_whole(log))
        (record,) = cluster.keeper.records
        assert record.projection.life_of(NODE) == 2
        assert await cluster.driver.ask(replica, Check(record.projection.epoch)) == Done()
        await cluster.log.append(b"two")
        assert await cluster.log.entries() == cluster.log.acknowledged


async def test_a_segment_that_has_ended_gets_an_epoch_too(
    tmp_path: Path, may_begin: asyncio.Event
) -> None:
    """A new leader does that, too. It gives no epoch to other segments that have ended."""
    async with SmallCluster(tmp_path, real=3, heartbeat_s=0.1) as cluster:
        await cluster.create_chained()
        await cluster.log.append(b"one")
        may_begin.set()
        await cluster.switch("ordered")
        may_begin.clear()
        (record,) = cluster.keeper.records
        assert record.projection.closed

        await cluster.crash_node(NODE)
        await cluster.start_node(NODE)
        await cluster.stop_node(NODE)
        await cluster.restart_repository()
        await cluster.start_node(NODE)
        may_begin.set()
        await until(lambda: next(iter(cluster.keeper.records)).projection.life_of(NODE) == 2)
        assert await cluster.log.entries() == cluster.log.acknowledged


async def test_a_newcomer_that_crashes_while_it_is_filled_is_filled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied, may_continue = asyncio.Event(), asyncio.Event()
    real = Driver.ask

    async def ask(self: Driver, replica: Replica, request: Request) -> Answer:
        answer = await real(self, replica, request)
        if isinstance(request, Pull):
            copied.set()
            await may_continue.wait()
        return answer

    monkeypatch.setattr(Driver, "ask", ask)
    async with SmallCluster(tmp_path, real=4, heartbeat_s=0.1) as cluster:
        log = await cluster.create_chained()
        for number in range(10):
            await cluster.log.append(b"%d" % number)
        await cluster.new_epoch(log.streams[0].loglet_id)  # so it is filled before it joins
        (chain,) = nodes_of(log.streams[0])
        (spare,) = {1, 2, 3, 4}.difference(chain)
        await cluster.change_node(pb.ChangeNode.DRAIN, chain[0])
        await copied.wait()
        (first,) = next(iter(cluster.keeper.records)).joining
        assert first.node_id == spare

        await cluster.crash_node(spare)
        await cluster.start_node(spare)
        may_continue.set()
        await cluster.log_is(lambda log: spare in nodes_of(chained(log))[0] and is_whole(log))
        (record,) = cluster.keeper.records
        assert first not in record.projection.replicas
        await cluster.replicas_agree()
