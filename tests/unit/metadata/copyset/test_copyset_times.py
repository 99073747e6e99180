"""Retention of copyset logs: by what their nodes say."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_requests import replicas
from small_cluster import SmallCluster, told

from loomlog.core.copyset.record import LSN_MAX, make
from loomlog.errors import Unavailable
from loomlog.wire import loomlog_pb2 as pb

pytestmark = pytest.mark.usefixtures("arrived_long_ago")

WEEK_S = 7 * 86_400


async def started(cluster: SmallCluster) -> int:
    """Return the loglet of a log that ends at e1n9."""
    request = pb.CreateLog(
        name="events", protocol="copyset", streams=1, replicas=2, retention_s=WEEK_S
    )
    loglet = (await cluster.client.ask(pb.Frame(create_log=request))).log.log_id
    await cluster.vsn(1).activate(loglet, 0)
    cluster.tails[loglet] = make(1, 9)
    return loglet


async def trim_all(cluster: SmallCluster) -> None:
    term = cluster.repository.term
    assert term is not None
    await term.retention.trim_all()


async def append_ordered(cluster: SmallCluster) -> None:
    """Append one entry."""
    (stream,) = (s for s in (await cluster.describe()).streams if s.protocol == "ordered")
    nodes = [cluster.vsn(node) for node in replicas(stream)]
    for node in nodes:
        node.write(stream.log_stream_id, 1)
    for node in nodes:
        await told(node, stream.log_stream_id, make(1, 10))


def tell(cluster: SmallCluster, node: int, older: int, young: int = LSN_MAX) -> None:
    """Let the partitions of the node be older up to an offset of epoch 1."""
    landmarks = cluster.vsn(node).landmarks
    landmarks.older, landmarks.young, landmarks.released = make(1, older), young, make(1, 9)


async def test_partitions_go_that_are_old_on_enough_nodes(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=3) as cluster:
        await started(cluster)
        tell(cluster, 1, older=2)
        tell(cluster, 2, older=4)
        cluster.vsn(3).refuse["find_copyset_landmarks"] = Unavailable("not now")
        await trim_all(cluster)
        assert await cluster.bounds() == (make(1, 5), make(1, 9))


async def test_what_is_young_on_one_node_stays_whatever_another_says(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=3) as cluster:
        await started(cluster)
        tell(cluster, 1, older=2, young=make(1, 3))
        tell(cluster, 2, older=9)
        tell(cluster, 3, older=9)
        await trim_all(cluster)
        assert await cluster.bounds() == (make(1, 3), make(1, 9))


async def test_nothing_goes_while_one_node_alone_answers(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=3) as cluster:
        await started(cluster)
        for node in (1, 2, 3):
            tell(cluster, node, older=9)
        for node in (2, 3):
            cluster.vsn(node).refuse["find_copyset_landmarks"] = Unavailable("not now")
        await trim_all(cluster)
        assert await cluster.bounds() == (1, make(1, 9))


async def test_nothing_goes_while_nobody_knows(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=3) as cluster:
        await started(cluster)
        for node in (1, 2, 3):
            cluster.vsn(node).refuse["find_copyset_landmarks"] = Unavailable("not now")
        await trim_all(cluster)
        assert await cluster.bounds() == (1, make(1, 9))


async def test_a_segment_that_has_ended_goes_to_its_last_record(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=3) as cluster:
        await started(cluster)
        await cluster.switch(protocol="ordered", streams=1)
        await append_ordered(cluster)
        for node, older in ((1, 7), (2, 9), (3, 9)):
            tell(cluster, node, older)
        for node in (2, 3):
            cluster.vsn(node).refuse["find_copyset_landmarks"] = Unavailable("not now")
        await trim_all(cluster)
        assert (await cluster.describe()).head == 1  # node 1 alone does not know all
        del cluster.vsn(2).refuse["find_copyset_landmarks"]
        await trim_all(cluster)
        log = await cluster.describe()
        assert log.head == make(1, 11)
        assert [segment.protocol for segment in log.segments] == ["ordered"]
