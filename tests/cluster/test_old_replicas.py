"""The replicas of a stream are lost while a node that left it still has its old replica."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from poll import until

from loomlog.errors import DataLoss
from loomlog.testing.local import LocalCluster
from loomlog.wire.info import StreamInfo

pytestmark = pytest.mark.timeout(60)


def runs_on(*nodes: int) -> Callable[[StreamInfo], bool]:
    return lambda stream: (
        stream.state == "running" and {replica.node for replica in stream.replicas} == {*nodes}
    )


def node_directory(volumes: Path, node: int) -> Path:
    return volumes / f"vsn-{node}" / "cid=local" / f"snid={node}"


async def test_an_old_replica_is_named_and_can_be_moved_to_where_it_is_missing(
    tmp_path: Path,
) -> None:
    local = LocalCluster(2, directory=tmp_path)
    async with local as cluster:
        log = await cluster.create_log("events", replicas=1)

        async def shown() -> StreamInfo:
            return (await cluster.status()).logs[0].streams[0]

        for number in range(10):
            await log.append(b"%d" % number)
        (stream,) = (await log.describe()).streams
        old = stream.replicas[0].node
        new = 3 - old
        await cluster.add_replica(stream.id, new)
        await until(shown, runs_on(old, new))
        await cluster.unregister_replica(stream.id, old)
        await until(shown, runs_on(new))
        for number in range(10, 15):
            await log.append(b"%d" % number)
        await local.wipe_node(new)
        await local.start_node(new)

        lost = await until(shown, lambda found: "from LLSN 1 on is lost" in found.condition)
        assert f"node {old} has LLSN 1 to 10 of it in an old replica" in lost.condition
        with pytest.raises(DataLoss):
            await log.read(3)

        for node in (old, new):
            await local.stop_node(node)
        replica = f"lsid={stream.id}"
        shutil.move(node_directory(tmp_path, old) / replica, node_directory(tmp_path, new))
        for node in (old, new):
            await local.start_node(node)
        lost = await until(shown, lambda found: "from LLSN 11 on is lost" in found.condition)
        assert "old replica" not in lost.condition
        assert [(await log.read(position)).value for position in (1, 10)] == [b"0", b"9"]
        for position in range(11, 16):
            with pytest.raises(DataLoss):
                await log.read(position)
