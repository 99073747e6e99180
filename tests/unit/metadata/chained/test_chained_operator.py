"""Operators change the number of chains, and choose where a replica is filled from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cluster_requests import chained, nodes_of, segments
from small_cluster import QUICK, SmallCluster

from loomlog.core.chained.chain import Replica
from loomlog.core.chained.messages import ChainedAsk, Pull
from loomlog.errors import Busy, InvalidArgument, NotFound
from loomlog.metadata.chained.driver import Driver
from loomlog.metadata.chained.newcomers import Newcomers
from loomlog.wire import loomlog_pb2 as pb

ADD, REMOVE, SYNC = pb.ChangeStream.ADD, pb.ChangeStream.REMOVE, pb.ChangeStream.SYNC


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


async def chains(cluster: SmallCluster) -> list[list[int]]:
    return nodes_of(chained(await cluster.describe()))


async def test_a_chain_is_added_and_another_one_removed_under_appends(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=4, **QUICK) as cluster:
        log = await cluster.create_chained(replicas=2)
        (first,) = nodes_of(chained(log))
        new = sorted({1, 2, 3, 4}.difference(first), reverse=True)
        async with appending(cluster):
            added = await cluster.change(ADD, log="events", nodes=new)
            assert "protocol 'chained', 2 streams, 2 replicas from position" in added.done
            assert await chains(cluster) == [first, new], "the other chain stays where it is"
            stream = chained(await cluster.describe()).log_stream_id
            assert added.log_stream_id == stream != log.streams[0].log_stream_id
            with pytest.raises(InvalidArgument, match="takes no more appends"):
                await cluster.change(REMOVE, log.streams[0].log_stream_id)
            removed = await cluster.change(REMOVE, stream, part=0)
            assert "protocol 'chained', 1 streams" in removed.done
            assert await chains(cluster) == [new]
        assert len(segments(await cluster.describe())) == 3


async def test_without_a_name_the_best_nodes_get_a_chain_and_the_last_one_goes(
    tmp_path: Path,
) -> None:
    async with SmallCluster(tmp_path, real=4, **QUICK) as cluster:
        (first,) = nodes_of(chained(await cluster.create_chained(replicas=2)))
        await cluster.change(ADD, log="events")
        before, added = await chains(cluster)
        assert (before, len(added)) == (first, 2)
        assert set(added).isdisjoint(first), "the least busy ones"
        await cluster.change(REMOVE, chained(await cluster.describe()).log_stream_id)
        assert await chains(cluster) == [first]


async def test_a_chain_that_cannot_stay_is_placed_again(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=4, **QUICK) as cluster:
        (first,) = nodes_of(chained(await cluster.create_chained(replicas=2)))
        await cluster.stop_node(first[0])
        await cluster.log_is(lambda log: first[0] not in nodes_of(chained(log))[0])
        await cluster.change(ADD, log="events")
        for chain in await chains(cluster):
            assert first[0] not in chain
            assert len(chain) == 2


async def test_what_cannot_be_changes_nothing(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=4, **QUICK) as cluster:
        log = await cluster.create_chained()
        stream, (chain,) = log.streams[0].log_stream_id, nodes_of(chained(log))
        (other,) = {1, 2, 3, 4}.difference(chain)
        with pytest.raises(InvalidArgument, match="the log has 3 replicas: name as many"):
            await cluster.change(ADD, log="events", nodes=[1, 2])
        with pytest.raises(NotFound, match="there is no node 9"):
            await cluster.change(ADD, log="events", nodes=[1, 2, 9])
        with pytest.raises(InvalidArgument, match="`loom stream add events` first"):
            await cluster.change(REMOVE, stream)
        with pytest.raises(InvalidArgument, match="has no chain 4: the last is 0"):
            await cluster.change(REMOVE, stream, part=4)
        with pytest.raises(InvalidArgument, match="name one with --part"):
            await cluster.change(REMOVE, stream, nodes=[1])
        for source, target, match in (
            (chain[0], chain[0], "cannot be filled from itself"),
            (other, chain[0], f"node {other} has no replica of chain 0"),
            (chain[0], other, f"`loom stream move {stream} --part 0 --from NODE --to {other}`"),
        ):
            with pytest.raises(InvalidArgument, match=match):
                await cluster.change(SYNC, stream, from_node=source, to_node=target)
        with pytest.raises(InvalidArgument, match="is not chosen for good"):
            await cluster.change(pb.ChangeStream.PRIMARY, stream, to_node=0)
        done = await cluster.change(SYNC, stream, from_node=chain[0], to_node=chain[1])
        assert done.finished
        assert done.done == f"node {chain[1]} has all of chain 0 of stream {stream} already"
        now = await cluster.describe()
        assert segments(now) == segments(log)
        assert chained(now).projection == chained(log).projection


async def test_a_missing_replica_is_filled_on_a_node_from_a_node_that_are_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = []
    answer = Driver._answer

    async def note(self: Driver, loglet: int, ask: ChainedAsk) -> object:
        if isinstance(ask.request, Pull):
            sources.append(ask.request.source.node_id)
        return await answer(self, loglet, ask)

    monkeypatch.setattr(Driver, "_answer", note)
    async with SmallCluster(tmp_path, real=5, replace_after_s=600.0, **QUICK) as cluster:
        log = await cluster.create_chained()
        stream, (chain,) = log.streams[0].log_stream_id, nodes_of(chained(log))
        target = max({1, 2, 3, 4, 5}.difference(chain))
        for value in (b"one", b"two", b"three"):
            await cluster.log.append(value)
        await cluster.stop_node(chain[1])
        async with appending(cluster):
            await cluster.log_is(lambda log: nodes_of(chained(log)) == [[chain[0], chain[2]]])
            changed = await cluster.change(SYNC, stream, from_node=chain[0], to_node=target)
            assert not changed.finished
            assert f"from node {chain[0]} to node {target}" in changed.done
            whole = [chain[0], chain[2], target]
            await cluster.log_is(lambda log: nodes_of(chained(log)) == [whole])
        assert sources[0] == chain[0] != chain[2], "not the tail"
        again = await cluster.change(SYNC, stream, from_node=chain[0], to_node=target)
        assert again.finished
        await cluster.stop_node(chain[0])
        await cluster.stop_node(chain[2])
        await cluster.log_is(lambda log: nodes_of(chained(log)) == [[target]])
        assert await cluster.log.entries() == cluster.log.acknowledged


async def test_a_repeated_request_to_fill_a_replica_makes_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newcomers = []
    admit = Newcomers.admit

    async def note(self: Newcomers, replica: Replica) -> None:
        newcomers.append(replica)
        await admit(self, replica)

    monkeypatch.setattr(Newcomers, "admit", note)
    async with SmallCluster(tmp_path, real=4, replace_after_s=600.0, **QUICK) as cluster:
        log = await cluster.create_chained()
        stream, (chain,) = log.streams[0].log_stream_id, nodes_of(chained(log))
        (target,) = {1, 2, 3, 4}.difference(chain)
        await cluster.log.append(b"one")
        await cluster.stop_node(chain[1])
        await cluster.log_is(lambda log: nodes_of(chained(log)) == [[chain[0], chain[2]]])
        requests = [
            cluster.change(SYNC, stream, from_node=chain[0], to_node=target) for _ in range(2)
        ]
        for answer in await asyncio.gather(*requests, return_exceptions=True):
            assert isinstance(answer, pb.Changed | Busy)
        whole = [chain[0], chain[2], target]
        await cluster.log_is(lambda log: nodes_of(chained(log)) == [whole])
        assert [replica.node_id for replica in newcomers] == [target]
