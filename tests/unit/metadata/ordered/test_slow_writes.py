"""Requests while the metadata store is slow, or fails, to write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from faulty_store import FaultyStore
from keepers import stream_records
from poll import until
from scripted_node import Peer, ScriptedNode
from small_cluster import QUICK, SmallCluster

from loomlog.core.backoff import Backoff
from loomlog.errors import Busy, InvalidArgument, LoomError, SwapUnknown, Unavailable
from loomlog.metadata.ordered import orders
from loomlog.metadata.ordered.records import StreamRecords
from loomlog.metadata.store.contract import Fence
from loomlog.types import StreamId
from loomlog.wire import loomlog_pb2 as pb

CHANGE = pb.ChangeStream


class SlowCluster(SmallCluster):
    """The test decides when the next write happens."""

    def __init__(self, directory: Path) -> None:
        self.store = FaultyStore()
        super().__init__(directory, store=self.store)
        self._arrived, self.release = asyncio.Event(), asyncio.Event()

    @property
    def records(self) -> StreamRecords:
        return stream_records(self.repository)

    async def ask_slowly(self, action: pb.ChangeStream.Action, **more: Any) -> asyncio.Task[None]:
        """Ask for it, and return when it is being written."""

        async def held() -> None:
            self._arrived.set()
            await self.release.wait()

        self.store.before = held
        asked = asyncio.create_task(self.ask_beside(action, **more))
        await self._arrived.wait()
        return asked

    async def ask_beside(self, action: pb.ChangeStream.Action, **more: Any) -> None:
        """Ask as another client does."""
        client = Peer()
        await client.connect(self.address)
        try:
            await client.ask(
                pb.Frame(change_stream=pb.ChangeStream(action=action, log_stream_id=1, **more))
            )
        finally:
            await client.disconnect()

    async def look(self, node: ScriptedNode) -> None:
        """Have the reconciler look at the stream."""
        node.replicas[1].damaged ^= True
        node.report(1)
        for _ in range(5):
            await node.ask(pb.Frame(get_bounds=pb.GetBounds(name="events")))


@asynccontextmanager
async def running(tmp_path: Path, nodes: int) -> AsyncIterator[SlowCluster]:
    async with SlowCluster(tmp_path) as cluster:
        await cluster.add_nodes(nodes)
        await cluster.create(replicas=2)
        yield cluster


@pytest.mark.parametrize(
    ("action", "more", "expected"),
    [
        (CHANGE.MOVE, {"from_node": 2, "to_node": 3}, (1, 3)),
        (CHANGE.ADD_REPLICA, {"to_node": 3}, (1, 2, 3)),
        (CHANGE.UNREGISTER, {"from_node": 2}, (1,)),
    ],
)
async def test_nothing_is_done_before_it_is_written(
    tmp_path: Path, action: pb.ChangeStream.Action, more: dict[str, int], expected: tuple[int, ...]
) -> None:
    async with running(tmp_path, 3) as cluster:
        before = [list(node.orders) for node in cluster.nodes]
        asked = await cluster.ask_slowly(action, **more)
        await cluster.look(cluster.nodes[0])
        assert [node.orders for node in cluster.nodes] == before
        await cluster.look(cluster.nodes[0])
        cluster.release.set()
        await asked
        await cluster.runs_on(*expected)


async def test_a_wish_that_is_not_written_leaves_no_trace(tmp_path: Path) -> None:
    async with running(tmp_path, 3) as cluster:
        asked = await cluster.ask_slowly(CHANGE.MOVE, from_node=2, to_node=3)
        cluster.store.loses = "request"
        await cluster.look(cluster.nodes[0])
        await cluster.look(cluster.nodes[0])
        cluster.release.set()
        with pytest.raises(SwapUnknown):
            await asked
        await cluster.look(cluster.nodes[0])
        await cluster.look(cluster.nodes[0])
        assert cluster.nodes[2].orders == []
        await cluster.change(CHANGE.MOVE, from_node=1, to_node=3)
        await cluster.runs_on(2, 3)


@pytest.mark.parametrize(
    ("action", "more"),
    [
        (CHANGE.MOVE, {"from_node": 1, "to_node": 4}),
        (CHANGE.ADD_REPLICA, {"to_node": 4}),
        (CHANGE.UNREGISTER, {"from_node": 1}),
    ],
)
async def test_of_two_operators_at_once_the_second_is_told_to_wait(
    tmp_path: Path, action: pb.ChangeStream.Action, more: dict[str, int]
) -> None:
    async with running(tmp_path, 4) as cluster:
        cluster.nodes[2].refuse["add_log_stream"] = Busy("not now")
        first = await cluster.ask_slowly(CHANGE.MOVE, from_node=2, to_node=3)
        second = asyncio.create_task(cluster.ask_beside(action, **more))
        await cluster.look(cluster.nodes[0])
        await cluster.look(cluster.nodes[0])
        cluster.release.set()
        await first
        with pytest.raises(Busy, match="have just changed"):
            await second
        cluster.nodes[2].refuse.clear()
        await cluster.runs_on(1, 3)


# ---- deletions


async def test_a_replica_is_dropped_though_the_store_fails_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "RETRY", Backoff(0.01, 0.01))
    async with running(tmp_path, 3) as cluster:
        cluster.nodes[1].refuse["remove_log_stream"] = Unavailable("not now")
        await cluster.change(CHANGE.MOVE, from_node=2, to_node=3)
        await cluster.runs_on(1, 3)
        cluster.store.loses = "request"
        cluster.nodes[1].refuse.clear()
        await until(lambda: not cluster.records.streams[1].dropping)
        await cluster.change(CHANGE.MOVE, from_node=1, to_node=2)
        await cluster.runs_on(3, 2)


async def test_a_log_is_deleted_though_the_store_fails_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "RETRY", Backoff(0.01, 0.01))
    async with running(tmp_path, 2) as cluster:
        forget, fails = cluster.records.forget, iter(range(4))

        async def fail_at_first(stream_id: StreamId) -> None:
            if next(fails, None) is not None:
                cluster.store.loses = "request"
            await forget(stream_id)

        monkeypatch.setattr(cluster.records, "forget", fail_at_first)
        await cluster.delete()
        await until(lambda: not cluster.records.abandoned)
        assert next(fails, None) is None
        assert not any(node.replicas for node in cluster.nodes)


async def test_a_name_is_free_again_though_its_deletion_was_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, 2) as cluster:
        lose_write_of(cluster, monkeypatch, "log/events", after=1)
        with pytest.raises(SwapUnknown):
            await cluster.delete()
        assert await cluster.names() == []
        await cluster.create(replicas=2)
        assert await cluster.names() == ["events"]
        await until(lambda: [set(node.replicas) for node in cluster.nodes] == [{2}, {2}])


async def test_a_name_is_free_again_though_its_creation_was_not_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, 2) as cluster:
        cluster.nodes[1].refuse["add_log_stream"] = InvalidArgument("not here")
        lose_write_of(cluster, monkeypatch, "log/other", after=1)
        with pytest.raises(LoomError):
            await cluster.create("other", replicas=2)
        cluster.nodes[1].refuse.clear()
        await cluster.create("other", replicas=2)
        assert await cluster.names() == ["events", "other"]


def lose_write_of(
    cluster: SlowCluster, monkeypatch: pytest.MonkeyPatch, key: str, after: int = 0
) -> None:
    """Fail a write of a record, after this many others of it."""
    swap, earlier = cluster.store.compare_and_swap, iter(range(after))

    async def fail(written: str, *given: Any, **more: Any) -> int:
        if written == key and next(earlier, None) is None:
            cluster.store.loses = "request"
            monkeypatch.setattr(cluster.store, "compare_and_swap", swap)
        return await swap(written, *given, **more)

    monkeypatch.setattr(cluster.store, "compare_and_swap", fail)


async def test_a_stream_that_cannot_be_taken_back_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, 2) as cluster:
        update = cluster.records.update

        async def fail(stream_id: StreamId, **changes: Any) -> None:
            if "taken_back" in changes:
                cluster.store.loses = "request"
            await update(stream_id, **changes)

        monkeypatch.setattr(cluster.records, "update", fail)
        cluster.nodes[1].refuse["add_log_stream"] = InvalidArgument("not here")
        with pytest.raises(SwapUnknown):
            await cluster.change(CHANGE.ADD, log="events")
        cluster.nodes[1].refuse.clear()
        await cluster.until(lambda s: s.state == pb.RUNNING, stream_id=2)


class UnwritableStore(FaultyStore):
    """Fails to write stream 1 as long as the test wants."""

    fails = False

    async def compare_and_swap(
        self, key: str, expected: int, value: bytes | None, *, fences: tuple[Fence, ...] = ()
    ) -> int:
        if self.fails and key == "stream/1":
            raise Unavailable("the disk is full")
        return await super().compare_and_swap(key, expected, value, fences=fences)


async def test_a_stream_whose_seal_is_not_recorded_is_not_sealed_in_the_epoch_in_which_it_ran(
    tmp_path: Path,
) -> None:
    """Otherwise it could run in that epoch again, with other entries than an absent replica."""
    store = UnwritableStore()
    async with SmallCluster(tmp_path, store=store, **QUICK) as cluster:
        nodes = await cluster.add_beating_nodes(3)
        await cluster.create(replicas=3)
        epoch = (await cluster.runs_on(1, 2, 3)).seal_epoch
        store.fails = True
        for node in nodes:
            await node.crash()
        await cluster.until(lambda s: s.state != pb.RUNNING)
        for node in nodes[:2]:
            await node.restart(cluster.address)
            node.start_heartbeat()
        await cluster.until(lambda s: "the disk is full" in s.condition)
        seals = [order for order in nodes[0].orders if order.startswith("seal")]
        assert seals == [f"seal 1 epoch {epoch}"], "when it was made"
        store.fails = False
        await nodes[2].restart(cluster.address)
        nodes[2].start_heartbeat()
        await cluster.until(lambda s: s.state == pb.RUNNING and s.seal_epoch > epoch)
