"""A new leader finishes what another left half done with chained segments."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cluster_requests import chained, is_whole
from node_services import chained_on
from poll import until
from small_cluster import QUICK, SmallCluster

from loomlog.core.chained.chain import Replica
from loomlog.core.chained.messages import Answer, FindEnd, Refused, Request, Seal
from loomlog.errors import LoomError, Unavailable
from loomlog.metadata.chained import keeper
from loomlog.metadata.chained.driver import Driver
from loomlog.metadata.chained.epochs import Epochs
from loomlog.metadata.chained.keeper import ChainedKeeper
from loomlog.wire import loomlog_pb2 as pb

Hang = Callable[..., None]


@pytest.fixture
def hang(monkeypatch: pytest.MonkeyPatch) -> Hang:
    """Let calls of a method never return, until `monkeypatch` undoes it."""

    def replace(owner: type, name: str, reached: asyncio.Event) -> None:
        async def never(self: Any, *args: Any) -> Any:
            reached.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(owner, name, never)

    return replace


async def interrupted(
    cluster: SmallCluster, reached: asyncio.Event, undo: Callable[[], None], **switch: Any
) -> None:
    """Let the metadata repository die during a switch."""

    async def ask() -> None:
        while not reached.is_set():
            with suppress(LoomError):
                await cluster.switch(**switch)

    asking = asyncio.create_task(ask())
    await reached.wait()
    undo()
    await cluster.restart_repository()
    await asking


def protocols(log: pb.Log) -> list[str]:
    return [segment.protocol for segment in log.segments]


async def test_when_it_is_lost_while_chains_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = asyncio.Event()
    real = Driver.ask

    async def ask(self: Driver, replica: Replica, request: Request) -> Answer:
        if isinstance(request, Seal):
            reached.set()
            await asyncio.Event().wait()
        return await real(self, replica, request)

    async with SmallCluster(tmp_path, real=3, heartbeat_s=0.1) as cluster:
        await cluster.create(streams=1, replicas=3)
        monkeypatch.setattr(Driver, "ask", ask)
        await interrupted(cluster, reached, monkeypatch.undo, protocol="chained")
        await cluster.log_is(lambda log: protocols(log) == ["ordered", "chained"])
        assert await cluster.log.append(b"one") == 1
        log = await cluster.describe()
        births = {r.birth for c in chained(log).projection.chains for r in c.replicas}
        assert len(births) == 1, "those of one attempt"
        nodes = cluster.storage.values()
        await until(lambda: all(len(chained_on(node).found()) == 1 for node in nodes))


@pytest.mark.parametrize(("owner", "name"), [(Epochs, "next"), (ChainedKeeper, "seal")])
async def test_when_it_is_lost_while_chains_are_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hang: Hang, owner: type, name: str
) -> None:
    async with SmallCluster(tmp_path, real=3, heartbeat_s=0.1) as cluster:
        await cluster.create_chained()
        await cluster.log.append(b"one", 3)
        reached = asyncio.Event()
        hang(owner, name, reached)
        await interrupted(cluster, reached, monkeypatch.undo, protocol="ordered")
        log = await cluster.log_is(lambda log: protocols(log) == ["chained", "ordered"])
        assert [segment.start for segment in log.segments] == [1, 4]
        assert chained(log).projection.closed
        assert is_whole(log)
        assert await cluster.log.entries() == dict.fromkeys((1, 2, 3), b"one")


async def test_when_it_is_lost_before_a_segment_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hang: Hang
) -> None:
    async with SmallCluster(tmp_path, real=3, heartbeat_s=0.1) as cluster:
        await cluster.create_chained()
        await cluster.log.append(b"one", 3)
        reached = asyncio.Event()
        hang(ChainedKeeper, "begin", reached)
        await interrupted(cluster, reached, monkeypatch.undo, protocol="chained", streams=2)
        await cluster.log_is(lambda log: protocols(log) == ["chained", "chained"])
        assert await cluster.log.append(b"two") == 4
        assert await cluster.log.entries() == {1: b"one", 2: b"one", 3: b"one", 4: b"two"}


async def test_when_it_is_lost_between_the_seals_and_the_swap_of_an_ended_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replicas are sealed for an epoch that never comes: readers would be refused forever."""
    async with SmallCluster(tmp_path, real=3, heartbeat_s=0.1) as cluster:
        await cluster.create_chained()
        await cluster.log.append(b"one")
        await cluster.switch("ordered")
        (record,) = cluster.keeper.records
        driver = cluster.keeper.driver
        epoch = record.projection.epoch + 1
        for replica in record.projection.replicas:
            await driver.ask(replica, Seal(epoch))
        await cluster.restart_repository()
        await cluster.log_is(lambda log: chained(log).projection.epoch == epoch)
        assert await cluster.log.entries() == {1: b"one"}


async def test_several_logs_begin_a_new_epoch_together(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=3, heartbeat_s=0.1) as cluster:
        names = [f"log-{number}" for number in range(20)]
        for name in names:
            await cluster.create_chained(name)
        await cluster.restart_repository()
        for name in names:
            log = await cluster.log_is(lambda log: chained(log).state == pb.RUNNING, name)
            assert is_whole(log)
            assert chained(log).projection.epoch == 2


async def test_a_log_that_waits_for_its_nodes_is_described_but_its_end_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "TAIL_WAIT_S", 0.1)
    async with SmallCluster(tmp_path, real=1, **QUICK) as cluster:
        await cluster.create_chained(replicas=1)
        await cluster.log.append(b"one", 3)
        await cluster.stop_node(1)
        await cluster.restart_repository()
        log = await cluster.describe()
        assert (log.tail, chained(log).state) == (0, pb.SEALING), "what is known for certain"
        assert log.tail_unknown
        [listed] = (await cluster.status()).logs
        assert (listed.name, listed.tail_unknown) == ("events", True)
        with pytest.raises(Unavailable, match="0 of 1 storage nodes have confirmed"):
            await cluster.bounds()
        answer = await cluster.ask_sequencer(chained(log).loglet_id, FindEnd(1))
        assert isinstance(answer, Refused)
        await cluster.start_node(1)
        await cluster.log_is(lambda log: chained(log).state == pb.RUNNING)
        assert await cluster.bounds() == (1, 3)
        assert not (await cluster.describe()).tail_unknown
