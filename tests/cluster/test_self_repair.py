"""A whole cluster repairs itself, with real nodes: replaced, moved, drained, and nothing lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from poll import until

from loomlog.client.cluster import Cluster
from loomlog.client.log import Log
from loomlog.errors import InvalidArgument
from loomlog.testing import LocalCluster
from loomlog.wire.info import StreamInfo

PATIENCE_S = 30.0


class Writer:
    """Appends numbers one after the other for as long as the block runs; every one is counted."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.acknowledged: dict[int, bytes] = {}
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Writer:
        self._task = asyncio.get_running_loop().create_task(self._write())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _write(self) -> None:
        number = 0
        while True:
            value = b"%d" % number
            at = await self._log.append(value)
            assert at.position not in self.acknowledged
            self.acknowledged[at.position] = value
            number += 1

    async def more(self, count: int = 20) -> None:
        """Wait for `count` more appends."""
        target = len(self.acknowledged) + count
        async with asyncio.timeout(PATIENCE_S):
            while len(self.acknowledged) < target:
                assert self._task is not None
                assert not self._task.done(), "the writer failed"
                await asyncio.sleep(0.01)


async def stream_of(client: Cluster, stream_id: int = 1) -> StreamInfo:
    status = await client.status()
    (found,) = (s for log in status.logs for s in log.streams if s.id == stream_id)
    return found


async def runs_on(client: Cluster, nodes: set[int], stream_id: int = 1) -> None:
    await until(
        lambda: stream_of(client, stream_id),
        lambda stream: stream.state == "running" and {r.node for r in stream.replicas} == nodes,
    )


async def read_back(log: Log, acknowledged: dict[int, bytes]) -> None:
    """Check that every acknowledged entry is at its position, once, and that there are no holes."""
    tail = await log.tail()
    found = {}
    async for entry in log.subscribe(start=1, stop=tail):
        found[entry.position] = entry.value
    assert list(found) == list(range(1, tail + 1))
    assert {position: found[position] for position in acknowledged} == acknowledged
    assert len(set(found.values())) == len(found), "nothing came twice"


@pytest.mark.parametrize("dead", [1, 3])
async def test_a_dead_node_is_replaced_while_appends_and_a_subscriber_run(
    tmp_path: Path, dead: int
) -> None:
    local = LocalCluster(4, directory=tmp_path, sync="none", failure_detection_s=0.5)
    async with local as client:
        log = await client.create_log("events", streams=1, replicas=3)
        seen: list[int] = []

        async def follow() -> None:
            async for entry in log.subscribe(start=1):
                seen.append(entry.position)  # noqa: PERF401 - it never ends

        following = asyncio.get_running_loop().create_task(follow())
        async with Writer(log) as writer:
            await writer.more()
            await local.stop_node(dead)
            await runs_on(client, {1, 2, 3, 4} - {dead})
            await writer.more()
        await read_back(log, writer.acknowledged)
        await until(lambda: bool(seen) and seen[-1] >= max(writer.acknowledged))
        assert seen == list(range(1, len(seen) + 1))
        following.cancel()

        await local.start_node(dead)  # a zombie now
        zombie = (dead, (1,))
        await until(
            client.status, lambda s: zombie in [(n.id, tuple(n.unknown_streams)) for n in s.nodes]
        )
        await client.cleanup_node(dead)
        await client.move_stream(1, 2, dead)
        await runs_on(client, {1, 3, 4, dead})
        await read_back(log, writer.acknowledged)


async def test_a_node_that_lost_its_disk_is_filled_again(tmp_path: Path) -> None:
    local = LocalCluster(3, directory=tmp_path, sync="none", failure_detection_s=0.5)
    async with local as client:
        log = await client.create_log("events", streams=2, replicas=3)
        async with Writer(log) as writer:
            await writer.more()
            await local.wipe_node(2)
            await local.start_node(2)
            await runs_on(client, {1, 2, 3}, 1)
            await runs_on(client, {1, 2, 3}, 2)
            await writer.more()
        await local.stop_node(1)
        await local.stop_node(3)  # what is read now is from the new disk
        await read_back(log, writer.acknowledged)


async def test_a_node_is_drained_and_removed_while_appends_run(tmp_path: Path) -> None:
    local = LocalCluster(4, directory=tmp_path, sync="none", failure_detection_s=0.5)
    async with local as client:
        log = await client.create_log("events", streams=3, replicas=2)
        async with Writer(log) as writer:
            await writer.more()
            await client.drain_node(1)

            async def empty() -> bool:
                (node,) = (n for n in (await client.status()).nodes if n.id == 1)
                return node.replicas == 0 and not node.unknown_streams

            await until(empty)
            await writer.more()
            await client.remove_node(1)
            refused = await local.nodes[1].failed
            assert "was removed" in str(refused)
            added = await client.add_stream("events")
            assert added.stream == 4
            await writer.more()
        await read_back(log, writer.acknowledged)


async def test_a_replica_is_unregistered_and_added_again(tmp_path: Path) -> None:
    local = LocalCluster(3, directory=tmp_path, sync="none", failure_detection_s=0.5)
    async with local as client:
        log = await client.create_log("events", streams=1, replicas=3)
        async with Writer(log) as writer:
            await writer.more()
            await client.unregister_replica(1, 2)
            await runs_on(client, {1, 3})
            await writer.more()
            for _ in range(2):
                with pytest.raises(InvalidArgument, match="loom node cleanup 2"):
                    await client.add_replica(1, 2)
                await local.stop_node(2)
                await local.start_node(2)
            # The data of a stream that is sealed for a moment is kept.
            while (await client.cleanup_node(2)).next != "nothing is left":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            await client.add_replica(1, 2)
            await runs_on(client, {1, 2, 3})
            await writer.more()
        await local.stop_node(1)
        await local.stop_node(3)
        await read_back(log, writer.acknowledged)


async def test_an_operator_seals_and_unseals(tmp_path: Path) -> None:
    local = LocalCluster(3, directory=tmp_path, sync="none", failure_detection_s=0.5)
    async with local as client:
        log = await client.create_log("events", streams=2, replicas=2)
        async with Writer(log) as writer:
            await writer.more()
            await client.seal_stream(1)
            await writer.more()
            await read_back(log, dict(writer.acknowledged))
            assert (await stream_of(client)).condition == "sealed by an operator"
            await local.stop_metadata()
            await local.start_metadata()
            await until(lambda: _is(client, "sealed by an operator"))
            await client.unseal_stream(1)
            await until(lambda: _is(client, ""))
            await writer.more()
        await read_back(log, writer.acknowledged)


async def _is(client: Cluster, condition: str) -> bool:
    return (await stream_of(client)).condition == condition
