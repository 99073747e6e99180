"""Operators widen and narrow nodesets, and take the choice of a sequencer back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from cluster_requests import copyset, nodeset
from node_services import copyset_on
from small_cluster import QUICK, SmallCluster

from loomlog.core.copyset.storage import Erase
from loomlog.errors import InvalidArgument, NotFound
from loomlog.node.copyset.copies import looked_up
from loomlog.wire import loomlog_pb2 as pb

ADD, REMOVE, PRIMARY = pb.ChangeStream.ADD, pb.ChangeStream.REMOVE, pb.ChangeStream.PRIMARY


@asynccontextmanager
async def appending(cluster: SmallCluster) -> AsyncIterator[None]:
    """Append all the time; at the end, everything acknowledged is there, in order."""
    stop = False

    async def append() -> None:
        while not stop:
            await cluster.log.append(b"meanwhile")
            await asyncio.sleep(0.01)

    task = asyncio.create_task(append())
    try:
        yield
    finally:
        stop = True
        await task
    assert await cluster.log.entries() == cluster.log.acknowledged


async def stored_on(cluster: SmallCluster) -> list[int]:
    return nodeset(copyset(await cluster.describe()))


async def test_nodes_join_and_leave_the_nodeset_under_appends(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=4, **QUICK) as cluster:
        stream = (await cluster.create_copyset(nodeset=2)).streams[0].log_stream_id
        await cluster.log.append(b"one")
        first, second = await stored_on(cluster)
        third, fourth = {1, 2, 3, 4}.difference([first, second])
        async with appending(cluster):
            added = await cluster.change(ADD, log="events", nodes=[third, fourth])
            assert added.done == (
                f"stream {stream} stores new entries on node {third} and node {fourth}, too"
            )
            assert added.log_stream_id == stream
            assert await stored_on(cluster) == [1, 2, 3, 4]
            again = await cluster.change(ADD, log="events", nodes=[third])
            assert again.done == f"stream {stream} stores new entries on node {third} already"
            removed = await cluster.change(REMOVE, stream, nodes=[first, third])
            assert removed.done == (
                f"stream {stream} stores no new entries on node {first} and node {third}"
            )
            assert await stored_on(cluster) == sorted([second, fourth])
            await cluster.restart_repository()
            await asyncio.sleep(0.3)
            assert await stored_on(cluster) == sorted([second, fourth]), "and it stays so"


async def test_without_a_name_the_best_node_joins_and_the_last_one_leaves(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=3, **QUICK) as cluster:
        stream = (await cluster.create_copyset(nodeset=2)).streams[0].log_stream_id
        before = await stored_on(cluster)
        changed = await cluster.change(ADD, log="events")
        assert changed.next == "it does so with the first append"
        await cluster.log.append(b"one")
        assert await stored_on(cluster) == [1, 2, 3]
        with pytest.raises(InvalidArgument, match="there is no other node for stream"):
            await cluster.change(ADD, log="events")
        await cluster.change(REMOVE, stream)
        assert await stored_on(cluster) == before
        await cluster.change(ADD, log="events")
        assert await stored_on(cluster) == [1, 2, 3]
        assert await cluster.log.entries() == cluster.log.acknowledged


async def test_a_repeated_wish_counts_once_and_can_be_taken_back(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=5, **QUICK) as cluster:
        stream = (await cluster.create_copyset(nodeset=3)).streams[0].log_stream_id
        first, second, third = await stored_on(cluster)
        fourth, _ = {1, 2, 3, 4, 5}.difference([first, second, third])
        for _ in range(2):  # no epoch has begun
            await cluster.change(ADD, log="events", nodes=[fourth])
            for leaving in (second, third):
                await cluster.change(REMOVE, stream, nodes=[leaving])
        changed = await cluster.change(ADD, log="events", nodes=[second])
        assert changed.next == "it does so with the first append"
        await cluster.log.append(b"one")
        assert await stored_on(cluster) == sorted([first, second, fourth])


async def test_a_nodeset_is_not_changed_in_vain(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=3, **QUICK) as cluster:
        log = await cluster.create_copyset(nodeset=2)
        stream = log.streams[0].log_stream_id
        await cluster.log.append(b"one")
        before = (await cluster.describe()).streams[0].copyset
        (other,) = {1, 2, 3}.difference(before.history[-1].nodeset)
        inside = min(before.history[-1].nodeset)
        with pytest.raises(NotFound, match="there is no node 9"):
            await cluster.change(ADD, log="events", nodes=[other, 9])
        with pytest.raises(InvalidArgument, match="named twice"):
            await cluster.change(ADD, log="events", nodes=[other, other])
        with pytest.raises(NotFound, match="there is no node 9"):
            await cluster.change(REMOVE, stream, nodes=[9])
        with pytest.raises(InvalidArgument, match=f"not on {other}"):
            await cluster.change(REMOVE, stream, nodes=[other])
        with pytest.raises(InvalidArgument, match="have 2 copies, and 1 node would be left"):
            await cluster.change(REMOVE, stream, nodes=[inside])
        with pytest.raises(InvalidArgument, match="`loom stream add LOG` adds one first"):
            await cluster.change(REMOVE, stream)
        await cluster.change_node(pb.ChangeNode.DRAIN, other, force=True)
        with pytest.raises(InvalidArgument, match=f"node {other} is away, drained"):
            await cluster.change(ADD, log="events", nodes=[other])
        after = (await cluster.describe()).streams[0].copyset
        assert (after.epoch, after.history) == (before.epoch, before.history)


async def test_nothing_joins_a_segment_that_has_ended(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=3, **QUICK) as cluster:
        stream = (await cluster.create_copyset(nodeset=2)).streams[0].log_stream_id
        await cluster.log.append(b"one")
        await cluster.change(ADD, log="events")
        await cluster.change(PRIMARY, stream, to_node=1)
        await cluster.switch("copyset", streams=1, replicas=2, nodeset=2, compression="zstd")
        with pytest.raises(InvalidArgument, match="takes no more appends"):
            await cluster.change(REMOVE, stream)
        now = (await cluster.describe()).streams[-1]
        assert len(nodeset(now)) == 2, "a switch chooses anew"
        assert now.log_stream_id != stream


async def test_the_choice_of_a_sequencer_is_taken_back(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=3, **QUICK) as cluster:
        await cluster.create_copyset()
        await cluster.log.append(b"one")
        log = await cluster.describe()
        stream, usual = copyset(log).log_stream_id, copyset(log).copyset.sequencer
        node = min({1, 2, 3} - {usual})
        async with appending(cluster):
            await cluster.change(PRIMARY, stream, to_node=node)
            changed = await cluster.change(PRIMARY, stream, to_node=0)
            assert changed.done == f"any node may sequence stream {stream}, not only node {node}"
            again = await cluster.change(PRIMARY, stream, to_node=0)
            assert again.done == f"any node may sequence stream {stream} already"
            await cluster.stop_node(node)
            await cluster.log_is(lambda log: copyset(log).copyset.sequencer != node)
            await cluster.start_node(node)
            await asyncio.sleep(0.5)
            assert copyset(await cluster.describe()).copyset.sequencer != node


async def test_a_node_gets_what_it_lacks_of_another(tmp_path: Path) -> None:
    sync = pb.ChangeStream.SYNC
    async with SmallCluster(tmp_path, real=3, **QUICK) as cluster:
        stream = (await cluster.create_copyset(nodeset=2)).streams[0].log_stream_id
        position = await cluster.log.append(b"one")
        await cluster.log.append(b"two")  # the first one is released everywhere
        one, two = await stored_on(cluster)
        (other,) = {1, 2, 3}.difference([one, two])
        for source, target, match in (
            (one, one, "cannot be filled from itself"),
            (other, one, f"node {other} has no copies"),
            (one, other, f"`loom stream add events --nodes {other}`"),
        ):
            with pytest.raises(InvalidArgument, match=match):
                await cluster.change(sync, stream, from_node=source, to_node=target)
        with pytest.raises(NotFound, match="there is no node 9"):
            await cluster.change(sync, stream, from_node=9, to_node=one)
        [shard] = copyset_on(cluster.storage[two])._shards
        store = shard.volume.store
        assert store is not None
        [loglet] = store.logs()
        store._table.commit([(loglet, Erase(position, position))], sync=False)
        assert await looked_up(partial(store.head, loglet, position)) is None
        changed = await cluster.change(sync, stream, from_node=one, to_node=two)
        assert await looked_up(partial(store.head, loglet, position)) is not None
        assert changed.finished
        assert changed.done.startswith(f"node {two} has every copy of stream {stream}")
        await cluster.stop_node(one)
        with pytest.raises(InvalidArgument, match=f"node {one} is away"):
            await cluster.change(sync, stream, from_node=one, to_node=two)
