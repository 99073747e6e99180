"""Shards: each volume of a node is one, with a store of its own for copies. Pure.

A shard is named by its node and the index of its volume. The one with index 0 has the number of its
node, so a node with one volume is its own shard. The shards of a node are lost together with it: no
two of them hold copies of one record (nodeset.py).
"""

from __future__ import annotations

from typing import Final

from loomlog.types import NodeId, ShardId

_NODE_BITS: Final = 32
_NODE: Final = (1 << _NODE_BITS) - 1

SHARD_BITS: Final = 48  # enough for all volumes that a node can have
SHARD_MAX: Final = (1 << SHARD_BITS) - 1


def shard_of(node: NodeId, index: int) -> ShardId:
    return node | index << _NODE_BITS


def node_of(shard: ShardId) -> NodeId:
    return shard & _NODE


def index_of(shard: ShardId) -> int:
    return shard >> _NODE_BITS


def shard_name(shard: ShardId) -> str:
    """Return the shard as people see it: 3 is the first of node 3, 3/1 the next."""
    index = index_of(shard)
    return f"{node_of(shard)}/{index}" if index else str(shard)
