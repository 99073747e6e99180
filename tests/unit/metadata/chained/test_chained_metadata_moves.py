"""Metadata of chained segments is moved with the rest, and the loss of all rounds is survived."""

from __future__ import annotations

import shutil
from pathlib import Path

from chained_cluster import ChainedCluster, chained, is_whole
from test_chained_switch import append_ordered, segments

from loomlog.metadata.offline import embedded
from loomlog.metadata.offline.transfer import Dump
from loomlog.metadata.ordered.rebuild import rebuilding
from loomlog.wire import loomlog_pb2 as pb

PATIENCE_S = 30.0  # never waited for in full, unless something is broken


async def mixed_log(cluster: ChainedCluster) -> None:
    """[1 … 3] chained, [4 … 5] ordered, [6 … 8] chained, [9 …] ordered."""
    await cluster.create_chained()
    await cluster.chains.append(b"one", 3)
    await cluster.switch("ordered", streams=2)
    await append_ordered(cluster, b"four", b"five")
    await cluster.switch("chained", streams=2)
    await cluster.chains.append(b"six", 3)
    await cluster.switch("ordered", streams=1)
    await append_ordered(cluster, b"nine", b"ten")


async def test_rounds_are_rebuilt_between_segments_of_another_protocol(tmp_path: Path) -> None:
    directory = str(tmp_path / "vmr")
    async with ChainedCluster(tmp_path) as cluster:
        await mixed_log(cluster)
        before = segments(await cluster.describe())
        address = cluster.address
        await cluster.stop_repository()
        shutil.rmtree(f"{directory}/rounds")
        async with (
            embedded.opened(directory) as store,
            rebuilding(store, address) as rebuild,
        ):
            found = await rebuild.examine(
                without=(), timeout_s=PATIENCE_S, waiting=lambda missing: None
            )
        assert found.certain, found.logs
        assert [log.tail for log in found.logs] == [10]
        embedded.write_rounds(directory, found.records, found.epoch)
        await cluster.start_repository()
        assert await append_ordered(cluster, b"eleven") == [11]
        assert segments(await cluster.describe()) == before
        assert await cluster.chains.entries() == cluster.chains.acknowledged


async def test_chained_segments_move_with_the_metadata(tmp_path: Path) -> None:
    old = tmp_path / "vmr"
    async with ChainedCluster(tmp_path) as cluster:
        await mixed_log(cluster)
        await cluster.switch("chained")
        await cluster.chains.append(b"eleven")
        await cluster.stop_repository()
        exported = (await embedded.export(str(old))).encode()
        shutil.rmtree(old)
        await embedded.fill(str(old), Dump.decode(exported, "file"))
        await cluster.start_repository()
        log = await cluster.log_is(lambda log: chained(log).state == pb.RUNNING)
        assert is_whole(log)
        assert await cluster.chains.append(b"twelve") == 12
        assert await cluster.chains.entries() == cluster.chains.acknowledged
