"""Metadata of copyset segments is moved with the rest, and the loss of all rounds is survived."""

from __future__ import annotations

import shutil
from pathlib import Path

from cluster_requests import segments
from small_cluster import SmallCluster

from loomlog.core.copyset.record import epoch_of
from loomlog.metadata.offline import embedded
from loomlog.metadata.offline.transfer import Dump
from loomlog.metadata.ordered.rebuild import OrderedRebuild

PATIENCE_S = 30.0  # never waited for in full, unless something is broken


async def test_copyset_segments_move_with_the_metadata(tmp_path: Path) -> None:
    old = tmp_path / "vmr"
    async with SmallCluster(tmp_path, real=3, heartbeat_s=0.1) as cluster:
        await cluster.create(replicas=2)
        await cluster.switch("copyset", streams=1, replicas=2)
        position = await cluster.log.append(b"one")
        before = await cluster.describe()
        await cluster.stop_repository()
        exported = (await embedded.export(str(old))).encode()
        shutil.rmtree(old)
        await embedded.fill(str(old), Dump.decode(exported, "file"))
        await cluster.start_repository()
        after = (await cluster.describe()).streams[-1].copyset
        assert after.history == before.streams[-1].copyset.history
        assert after.epoch == epoch_of(position)
        assert await cluster.log.append(b"two") == position + 1


async def test_rounds_are_rebuilt_behind_a_copyset_segment(tmp_path: Path) -> None:
    directory = str(tmp_path / "vmr")
    async with SmallCluster(tmp_path, real=3, heartbeat_s=0.1) as cluster:
        await cluster.create(replicas=2)
        await cluster.log.append(b"one")
        await cluster.switch("copyset", streams=1, replicas=2)
        position = await cluster.log.append(b"two")
        await cluster.switch("ordered", streams=1, replicas=2)
        assert await cluster.log.append(b"three") == position + 1
        before, address = segments(await cluster.describe()), cluster.address
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
        embedded.write_rounds(directory, found.records, found.epoch)
        await cluster.start_repository()
        assert await cluster.log.append(b"four") == position + 2
        assert segments(await cluster.describe()) == before
