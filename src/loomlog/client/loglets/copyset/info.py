"""Descriptions of `copyset` segments for users."""

from __future__ import annotations

from dataclasses import dataclass

from loomlog.core.copyset.shards import node_of, shard_name
from loomlog.types import NodeId
from loomlog.wire import loomlog_pb2 as pb


@dataclass(frozen=True, slots=True)
class EpochsInfo:
    """The nodes that store the entries of a `copyset` segment from epoch `since` on."""

    since: int
    nodeset: tuple[NodeId, ...]
    replicas: int  # copies of each entry, on any of these nodes
    shards: tuple[str, ...]  # volumes of these nodes: 3 is the first one of node 3, 3/1 the next


@dataclass(frozen=True, slots=True)
class CopysetInfo:
    """A segment of protocol `copyset`."""

    sequencer: NodeId | None  # the node that started the newest epoch; None: none has
    last_clean: int  # all epochs up to here are recovered
    closed: bool
    history: tuple[EpochsInfo, ...]  # oldest first; each is valid until the next one


def copyset_info(state: pb.CopysetState) -> CopysetInfo:
    return CopysetInfo(
        sequencer=state.sequencer or None,
        last_clean=state.last_clean,
        closed=state.closed,
        history=tuple(
            EpochsInfo(
                epochs.since,
                tuple(dict.fromkeys(map(node_of, epochs.nodeset))),
                epochs.replication,
                tuple(map(shard_name, epochs.nodeset)),
            )
            for epochs in state.history
        ),
    )
