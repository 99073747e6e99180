"""Logs that are switched to `chained`, and away from it again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from chained_node_rig import block
from cluster_requests import chained, is_whole, nodes_of, segments
from small_cluster import QUICK, SmallCluster

from loomlog.core.chained.messages import EpochOver, HandedOut, Next, Refused, Write
from loomlog.errors import InvalidArgument
from loomlog.wire import loomlog_pb2 as pb


@asynccontextmanager
async def log_with_two_entries(path: Path, nodes: int = 3) -> AsyncIterator[SmallCluster]:
    """Create a log of protocol `ordered` with two entries."""
    async with SmallCluster(path, real=nodes, **QUICK) as cluster:
        await cluster.create(streams=2, replicas=2)
        for value in (b"one", b"two"):
            await cluster.log.append(value)
        yield cluster


async def test_from_ordered_to_chained_and_back_and_forth(tmp_path: Path) -> None:
    async with log_with_two_entries(tmp_path) as cluster:
        changed = await cluster.switch("chained", streams=1, replicas=3)
        assert "from position 3 on" in changed.done
        assert await cluster.bounds() == (1, 2)
        assert [await cluster.log.append(b"three"), await cluster.log.append(b"four", 3)] == [
            3,
            4,
        ]
        assert await cluster.bounds() == (1, 6)

        await cluster.switch("ordered", streams=2, replicas=2)
        assert chained(await cluster.describe()).projection.epoch == 2, "no more than it takes"
        assert await cluster.bounds() == (1, 6)
        assert await cluster.log.append(b"seven") == 7
        assert await cluster.log.append(b"eight") == 8

        await cluster.switch("chained", streams=2, replicas=2)
        assert await cluster.log.append(b"nine") == 9
        log = await cluster.describe()
        assert segments(log) == [
            *(("ordered", 1, 2), ("chained", 3, 6), ("ordered", 7, 8), ("chained", 9, None)),
        ]
        assert await cluster.log.entries() == cluster.log.acknowledged
        assert [s.state for s in log.streams if s.protocol == "chained"] == [
            *(pb.STREAM_SEALED, pb.RUNNING),
        ]


async def test_a_log_that_was_chained_goes_on_behind_it_after_a_restart(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=3, **QUICK) as cluster:
        await cluster.create_chained(replicas=2)
        for number in range(1, 6):
            assert await cluster.log.append(b"%d" % number) == number
        await cluster.switch("ordered", streams=2)
        await cluster.restart_repository()  # before any round
        assert await cluster.bounds() == (1, 5)
        assert await cluster.log.append(b"six") == 6
        await cluster.restart_repository()
        assert await cluster.log.append(b"seven") == 7
        assert await cluster.log.append(b"eight") == 8
        assert await cluster.bounds() == (1, 8)
        await cluster.switch("chained")
        await cluster.restart_repository()
        assert await cluster.log.append(b"nine") == 9
        assert await cluster.log.entries() == cluster.log.acknowledged


async def test_writers_of_the_old_segment_are_refused(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=3, heartbeat_s=0.1) as cluster:
        await cluster.create_chained()
        await cluster.log.append(b"one")
        old = chained(await cluster.describe())
        answer = await cluster.ask_sequencer(old.loglet_id, Next(1, 1))
        assert isinstance(answer, HandedOut)
        await cluster.switch("ordered", streams=1)
        (record,) = cluster.keeper.records
        for replica in record.projection.replicas:
            late = Write(1, block(answer.ticket.first))
            assert await cluster.driver.ask(replica, late) == EpochOver(2)
        refused = await cluster.ask_sequencer(old.loglet_id, Next(1, 1))
        assert isinstance(refused, Refused)
        assert chained(await cluster.describe()).loglet_id == old.loglet_id
        await cluster.log.append(b"two")
        assert await cluster.log.entries() == cluster.log.acknowledged


async def test_a_switch_that_cannot_be_made_leaves_nothing_behind(tmp_path: Path) -> None:
    async with log_with_two_entries(tmp_path) as cluster:
        with pytest.raises(InvalidArgument, match="stays as it is"):
            await cluster.switch("chained", replicas=4)
        assert segments(await cluster.describe()) == [("ordered", 1, None)]
        assert await cluster.log.append(b"three") == 3
        await cluster.no_records_left()
        await cluster.no_chains_left(1, 2, 3)


async def test_the_ended_segment_keeps_all_its_replicas(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=4, **QUICK) as cluster:
        await cluster.create_chained()
        for number in range(10):
            await cluster.log.append(b"%d" % number)
        await cluster.switch("ordered", streams=1, replicas=2)
        dead = nodes_of(chained(await cluster.describe()))[0][2]
        await cluster.stop_node(dead)
        log = await cluster.log_is(
            lambda log: is_whole(log) and dead not in nodes_of(chained(log))[0]
        )
        assert chained(log).state == pb.STREAM_SEALED
        assert await cluster.log.entries() == cluster.log.acknowledged


async def test_a_trim_drops_ended_segments_with_all_they_had(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=3, heartbeat_s=0.1) as cluster:
        await cluster.create_chained()
        for number in range(1, 11):
            await cluster.log.append(b"%d" % number)
        assert await cluster.trim(4) == (5, 10)
        assert sorted(await cluster.log.entries()) == [5, 6, 7, 8, 9, 10]
        await cluster.switch("ordered", streams=1)
        assert await cluster.log.append(b"eleven") == 11
        assert await cluster.trim(10) == (11, 11)
        assert segments(await cluster.describe()) == [("ordered", 11, None)]
        await cluster.no_chains_left(1, 2, 3)
        await cluster.no_records_left()
        with pytest.raises(InvalidArgument, match="ends at position 11"):
            await cluster.trim(12)


async def test_a_log_cannot_be_trimmed_above_what_was_handed_out(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=3, heartbeat_s=0.1) as cluster:
        await cluster.create_chained()
        await cluster.log.append(b"one", 3)
        with pytest.raises(InvalidArgument, match="ends at position 3"):
            await cluster.trim(4)
        assert await cluster.trim(2) == (3, 3)
        await cluster.restart_repository()
        assert await cluster.log.append(b"two") == 4
        assert await cluster.bounds() == (3, 4)


async def test_operators_move_replicas_of_chains_and_do_nothing_else_with_them(
    tmp_path: Path,
) -> None:
    async with SmallCluster(tmp_path, real=4, heartbeat_s=0.1) as cluster:
        log = await cluster.create_chained()
        stream = log.streams[0].log_stream_id
        for action, instead in (
            (pb.ChangeStream.SEAL, "loom acl revoke"),
            (pb.ChangeStream.ADD_REPLICA, "--replicas N"),
        ):
            with pytest.raises(InvalidArgument, match=instead):
                await cluster.change(action, stream)
        (chain,) = nodes_of(chained(log))
        (other,) = {1, 2, 3, 4}.difference(chain)
        move = pb.ChangeStream.MOVE
        with pytest.raises(InvalidArgument, match=f"node {other} has no replica of chain 0"):
            await cluster.change(move, stream, from_node=other)
        with pytest.raises(InvalidArgument, match="has no replica of chain 1"):
            await cluster.change(move, stream, from_node=chain[0], part=1)
        changed = await cluster.change(move, stream, from_node=chain[0])
        assert f"from node {chain[0]} to node {other}" in changed.done
        await cluster.log_is(lambda log: {*nodes_of(chained(log))[0]} == {*chain[1:], other})
