"""Logs that are switched to `copyset`, and away from it, on real storage nodes."""

from __future__ import annotations

import asyncio
from pathlib import Path

from chained_cluster import ChainedCluster, until
from copyset_cluster import copyset
from scripted_node import PATIENCE_S, Peer

import loomlog
from loomlog.batch import build
from loomlog.core.copyset.nodeset import sequencer_of
from loomlog.core.copyset.record import epoch_of, make
from loomlog.errors import LoomError
from loomlog.metadata.copyset.keeper import CopysetKeeper
from loomlog.types import Glsn
from loomlog.wire import loomlog_pb2 as pb


class CopysetClient:
    """Appends to a copyset segment, no more than tests need."""

    def __init__(self, cluster: ChainedCluster) -> None:
        self._cluster = cluster
        self._sequence = 0

    async def append(self, value: bytes, count: int = 1) -> Glsn:
        """The first position."""
        self._sequence += 1
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    return await self._append(self._batch(value, count))
                except LoomError:
                    await asyncio.sleep(0.05)

    def _batch(self, value: bytes, count: int) -> bytearray:
        return build(
            value,
            codec=0,
            flags=0,
            count=count,
            raw_size=len(value),
            producer_id=7,
            sequence=self._sequence,
            min_timestamp_us=1,
            max_timestamp_us=1,
        )

    async def _append(self, batch: bytearray) -> Glsn:
        state = (await self._cluster.describe()).streams[-1].copyset
        alive = [node.storage_node_id for node in state.nodes if node.alive]
        chosen = sequencer_of(state.loglet_id, dict.fromkeys(alive, 1.0))
        address = next(n.address for n in state.nodes if n.storage_node_id == chosen)
        node = Peer()
        await node.connect(address)
        assert node.connection is not None
        try:
            frame = pb.Frame(copyset_append=pb.CopysetAppend(loglet_id=state.loglet_id))
            answer, _ = await node.connection.request(frame, [batch])
            return int(answer.appended.first_glsn)
        finally:
            await node.disconnect()


async def append_ordered(cluster: ChainedCluster, *values: bytes) -> list[Glsn]:
    async with await loomlog.connect(cluster.address) as client:
        log = client.log("events")
        return [(await log.append(value)).position for value in values]


def segments(log: pb.Log) -> list[tuple[str, int, int | None]]:
    """Protocol, start and end of each."""
    return [(s.protocol, s.start, s.end if s.HasField("end") else None) for s in log.segments]


async def test_from_protocol_to_protocol_and_back(tmp_path: Path) -> None:
    async with ChainedCluster(tmp_path) as cluster:
        copysets = CopysetClient(cluster)
        await cluster.create(replicas=2)
        assert await append_ordered(cluster, b"one", b"two") == [1, 2]

        await cluster.switch("copyset", streams=1, replicas=2)
        first = await copysets.append(b"three", 3)
        second = await copysets.append(b"four")
        assert (first, second) == (make(epoch_of(first), 1), first + 3)
        assert await cluster.bounds() == (1, second)

        await cluster.switch("chained", streams=1, replicas=2)
        assert await cluster.bounds() == (1, second)
        assert await cluster.chains.append(b"five") == second + 1

        await cluster.switch("ordered", streams=1, replicas=2)
        assert await append_ordered(cluster, b"six") == [second + 2]

        await cluster.switch("copyset", streams=1, replicas=3)
        last = await copysets.append(b"seven")
        assert last > second + 2
        log = await cluster.describe()
        assert segments(log) == [
            ("ordered", 1, 2),
            ("copyset", 3, second),
            ("chained", second + 1, second + 1),
            ("ordered", second + 2, second + 2),
            ("copyset", second + 3, None),
        ]
        closed = copyset(log)
        assert (closed.state, closed.condition) == (pb.STREAM_SEALED, "")


async def test_the_log_goes_on_when_the_sequencer_is_lost(tmp_path: Path) -> None:
    async with ChainedCluster(tmp_path, nodes=4) as cluster:
        copysets = CopysetClient(cluster)
        await cluster.create(replicas=2)
        await cluster.switch("copyset", streams=1, replicas=2)
        position = await copysets.append(b"one")
        sequencer = (await cluster.describe()).streams[-1].copyset.sequencer
        await cluster.stop_node(sequencer)
        epoch = epoch_of(position)
        log = await cluster.log_is(lambda log: log.streams[-1].copyset.last_clean >= epoch)
        assert log.tail == position, "though nobody appends"
        assert await copysets.append(b"two") > position


async def test_what_was_acknowledged_is_recovered_when_its_sequencer_is_started_anew(
    tmp_path: Path,
) -> None:
    async with ChainedCluster(tmp_path, failure_detection_s=30.0) as cluster:
        copysets = CopysetClient(cluster)
        await cluster.create(replicas=2)
        await cluster.switch("copyset", streams=1, replicas=2)
        position = await copysets.append(b"one")
        sequencer = (await cluster.describe()).streams[-1].copyset.sequencer
        await cluster.stop_node(sequencer)
        await cluster.start_node(sequencer)
        epoch = epoch_of(position)
        log = await cluster.log_is(lambda log: log.streams[-1].copyset.last_clean >= epoch)
        assert log.tail == position


async def test_a_log_goes_on_after_a_takeover(tmp_path: Path) -> None:
    async with ChainedCluster(tmp_path) as cluster:
        copysets = CopysetClient(cluster)
        await cluster.create(replicas=2)
        await cluster.switch("copyset", streams=1, replicas=2)
        position = await copysets.append(b"one")
        await cluster.restart_repository()
        assert await copysets.append(b"two") == position + 1, "its sequencer went on"
        assert await cluster.bounds() == (1, position + 1)
        await cluster.switch("ordered", streams=1, replicas=2)
        assert await append_ordered(cluster, b"three") == [position + 2]


async def test_what_is_deleted_leaves_nothing(tmp_path: Path) -> None:
    async with ChainedCluster(tmp_path) as cluster:
        copysets = CopysetClient(cluster)
        await cluster.create(replicas=2)
        await cluster.switch("copyset", streams=1, replicas=2)
        loglet = (await cluster.describe()).segments[-1].loglet_id
        await copysets.append(b"one")
        await cluster.delete()
        term = cluster.repository.term
        assert term is not None
        keeper = term.keepers["copyset"]
        assert isinstance(keeper, CopysetKeeper)
        await until(lambda: keeper.records.get(loglet) is None)
