"""Metadata of chained segments is moved with the rest, and the loss of all rounds is survived."""

from __future__ import annotations

import shutil
from pathlib import Path

from cluster_requests import chained, is_whole, segments
from small_cluster import SmallCluster

from loomlog.metadata.offline import embedded
from loomlog.metadata.offline.transfer import Dump
from loomlog.metadata.ordered.rebuild import OrderedRebuild
from loomlog.wire import loomlog_pb2 as pb

PATIENCE_S = 30.0  # never waited for in full, unless something is broken


async def mixed_log(cluster: SmallCluster) -> None:
    """[1 … 3] chained, [4 … 5] ordered, [6 … 8] chained, [9 …] ordered."""
    await cluster.create_chained()
    await cluster.log.append(b"one", 3)
    await cluster.switch("ordered", streams=2)
    for value in (b"four", b"five"):
        await cluster.log.append(value)
    await cluster.switch("chained", streams=2)
    await cluster.log.append(b"six", 3)
    await cluster.switch("ordered", streams=1)
    for value in (b"nine", b"ten"):
        await cluster.log.append(value)


async def test_rounds_are_rebuilt_between_segments_of_another_protocol(tmp_path: Path) -> None:
    directory = str(tmp_path / "vmr")
    async with SmallCluster(tmp_path, real=3, heartbeat_s=0.1) as cluster:
        await mixed_log(cluster)
        before = segments(await cluster.describe())
        address = cluster.address
        await cluster.stop_repository()
        shutil.rmtree(f"{directory}/rounds")
        async with (
            embedded.opened(directory) as store,
            OrderedRebuild.listening(store, address) as rebuild,
        ):
            found = await rebuild.examine(
                without=(), timeout_s=PATIENCE_S, waiting=lambda missing: None
            )
        assert found.certain, found.logs
        assert [log.tail for log in found.logs] == [10]
        embedded.write_rounds(directory, found.records, found.epoch)
        await cluster.start_repository()
        assert await cluster.log.append(b"eleven") == 11
        assert segments(await cluster.describe()) == before
        assert await cluster.log.entries() == cluster.log.acknowledged


async def test_chained_segments_move_with_the_metadata(tmp_path: Path) -> None:
    old = tmp_path / "vmr"
    async with SmallCluster(tmp_path, real=3, heartbeat_s=0.1) as cluster:
        await mixed_log(cluster)
        await cluster.switch("chained")
        await cluster.log.append(b"eleven")
        await cluster.stop_repository()
        exported = (await embedded.export(str(old))).encode()
        shutil.rmtree(old)
        await embedded.fill(str(old), Dump.decode(exported, "file"))
        await cluster.start_repository()
        log = await cluster.log_is(lambda log: chained(log).state == pb.RUNNING)
        assert is_whole(log)
        assert await cluster.log.append(b"twelve") == 12
        assert await cluster.log.entries() == cluster.log.acknowledged
