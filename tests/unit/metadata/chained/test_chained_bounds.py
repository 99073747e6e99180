"""Head and tail of a chained log while metadata repositories come and go."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from cluster_requests import chained, is_whole
from scripted_node import PATIENCE_S
from small_cluster import QUICK, SmallCluster

from loomlog.core.chained.messages import (
    LIST_MAX,
    HandedOut,
    List,
    Next,
    TrimmedTo,
)
from loomlog.errors import InvalidArgument
from loomlog.metadata.chained import keeper
from loomlog.metadata.chained.removal import ChainTrimmer


async def hand_out(cluster: SmallCluster, count: int) -> int:
    """Hand out positions that are never written; return the last of them."""
    stream = chained(await cluster.describe())
    answer = await cluster.ask_sequencer(stream.loglet_id, Next(stream.projection.epoch, count))
    assert isinstance(answer, HandedOut)
    return answer.ticket.end - 1


async def test_the_tail_does_not_fall_when_positions_are_handed_out_again(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=3, heartbeat_s=0.1) as cluster:
        await cluster.create_chained(chains=2)
        await cluster.log.append(b"one", 3)
        last = await hand_out(cluster, 5)
        assert await cluster.bounds() == (1, 3)
        with pytest.raises(InvalidArgument):
            await cluster.trim(last)
        await cluster.restart_repository()
        assert await cluster.bounds() == (1, 3)
        assert await cluster.log.append(b"two") == 4
        assert await cluster.bounds() == (1, 4)


async def test_the_tail_is_told_by_a_new_epoch_when_a_node_is_lost(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=3, **QUICK) as cluster:
        await cluster.create_chained()
        await cluster.log.append(b"one", 3)
        await cluster.stop_node(3)
        assert await cluster.bounds() == (1, 3)


async def test_nothing_is_appended_below_what_was_trimmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last positions were handed out in an epoch that is over and never written, so no replica
    knows of them."""

    async def never(self: ChainTrimmer, *args: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(ChainTrimmer, "_step", never)
    monkeypatch.setattr(keeper, "TRIM_WAIT_S", 0.01)
    async with SmallCluster(tmp_path, real=3, heartbeat_s=0.1) as cluster:
        await cluster.create_chained()
        await cluster.log.append(b"one")
        last = await hand_out(cluster, 5)
        await cluster.new_epoch(chained(await cluster.describe()).loglet_id)
        assert await cluster.trim(last) == (last + 1, last)
        monkeypatch.undo()
        await cluster.restart_repository()
        assert await cluster.log.append(b"two") == last + 1
        log = await cluster.log_is(is_whole)
        assert (log.head, log.tail) == (last + 1, last + 1)
        assert chained(log).projection.start == last + 1
        assert await cluster.log.entries() == {last + 1: b"two"}
        (record,) = cluster.keeper.records
        request = List(record.projection.epoch, 1, LIST_MAX)
        async with asyncio.timeout(PATIENCE_S):  # the nodes are told of the trim by and by
            for replica in record.projection.replicas:
                while await cluster.driver.ask(replica, request) != TrimmedTo(last):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
