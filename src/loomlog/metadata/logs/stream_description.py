"""Describe one stream with its replicas: their state here, and their location on nodes."""

from __future__ import annotations

import asyncio
from typing import Final

from loomlog.errors import LoomError, NotFound
from loomlog.metadata.nodes.connected_nodes import ConnectedNodes
from loomlog.metadata.protocol import Keepers
from loomlog.metadata.status import StatusView
from loomlog.types import NodeId, StreamId
from loomlog.wire import loomlog_pb2 as pb

WAIT_S: Final = 3.0  # for a node; less than a client waits for its answer


async def describe_stream(
    stream_id: StreamId, view: StatusView, keepers: Keepers, nodes: ConnectedNodes
) -> pb.StreamDescription:
    """Return everything known about a stream of any protocol, without the locations on nodes that
    do not answer in time."""
    for keeper in keepers.values():
        if not keeper.has_stream(stream_id):
            continue
        for log in map(view.log, view.logs()):
            for stream in log.streams:
                if stream.log_stream_id == stream_id:
                    replicas = keeper.describe_replicas(stream_id)
                    await _add_stored(stream, replicas, nodes)
                    return pb.StreamDescription(log=log.name, stream=stream, replicas=replicas)
    raise NotFound(f"there is no stream {stream_id}: look at `loom stream list`")


async def _add_stored(
    stream: pb.LogStream, replicas: list[pb.ReplicaDescription], nodes: ConnectedNodes
) -> None:
    asked = sorted({replica.storage_node_id for replica in replicas})
    answers = await asyncio.gather(*(_stored_on(node, stream, nodes) for node in asked))
    stored = dict(zip(asked, answers, strict=True))
    for replica in replicas:
        node = replica.storage_node_id
        replica.alive = nodes.reachable(node)
        for found in stored[node]:
            if found.part == replica.part:
                if path := replica.stored.path:  # on another volume, too
                    found.path = f"{path}, {found.path}"
                replica.stored.CopyFrom(found)


async def _stored_on(
    node: NodeId, stream: pb.LogStream, nodes: ConnectedNodes
) -> list[pb.StoredReplica]:
    question = pb.ListStored(log_stream_id=stream.log_stream_id, loglet_id=stream.loglet_id)
    try:
        answer = await nodes.request(node, pb.Frame(list_stored=question), WAIT_S)
    except LoomError:
        return []
    return list(answer.stored_list.replicas)
