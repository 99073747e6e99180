"""The parts of a storage node, one for each protocol, for tests that look inside."""

from __future__ import annotations

from loomlog.node import StorageNode
from loomlog.node.chained.service import ChainedService
from loomlog.node.copyset.service import CopysetService
from loomlog.node.copyset.shards import Shard
from loomlog.node.ordered.service import OrderedService


def ordered_on(node: StorageNode) -> OrderedService:
    service = node.protocols["ordered"]
    assert isinstance(service, OrderedService)
    return service


def chained_on(node: StorageNode) -> ChainedService:
    service = node.protocols["chained"]
    assert isinstance(service, ChainedService)
    return service


def copyset_on(node: StorageNode) -> CopysetService:
    service = node.protocols["copyset"]
    assert isinstance(service, CopysetService)
    return service


def shard_on(node: StorageNode, index: int = 0) -> Shard:
    return copyset_on(node)._shards.get(index)
