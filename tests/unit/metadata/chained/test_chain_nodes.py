"""The conditions under which a chain does without a node."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.chained.nodes import REPORTED_S, ChainNodes
from loomlog.metadata.nodes.connected_nodes import ConnectedNodes
from loomlog.metadata.nodes.placement import LostNodes

LOGLET, NODE = 7, 2


class Nodes(SimpleNamespace):
    """One node, in place of all that are connected."""

    is_silent = was_gone = is_stopping_now = False
    is_alive = True

    def silent(self, node: int) -> bool:
        return self.is_silent

    def was_lost(self, node: int) -> bool:
        return self.was_gone

    def alive(self, node: int) -> bool:
        return self.is_alive

    def reachable(self, node: int) -> bool:
        return self.is_alive and not self.was_gone

    def is_stopping(self, node: int) -> bool:
        return self.is_stopping_now


async def chain_nodes(connected: Nodes) -> tuple[ChainNodes, SimpleNamespace]:
    nodes = ChainNodes(cast(Catalog, None), cast(ConnectedNodes, connected), cast(LostNodes, None))
    clock = SimpleNamespace(now_s=0.0)
    nodes._loop = cast(asyncio.AbstractEventLoop, SimpleNamespace(time=lambda: clock.now_s))
    return nodes, clock


async def test_a_report_alone_or_a_miss_alone_is_not_enough() -> None:
    connected = Nodes()
    nodes, _ = await chain_nodes(connected)
    nodes.reported(LOGLET, NODE)
    assert not nodes.silent(LOGLET, NODE), "the metadata repository hears it"
    connected.is_alive = False
    assert nodes.silent(LOGLET, NODE)
    assert not nodes.silent(LOGLET + 1, NODE), "nobody waits for it there"


async def test_a_report_counts_for_a_while() -> None:
    connected = Nodes(is_alive=False)
    nodes, clock = await chain_nodes(connected)
    nodes.reported(LOGLET, NODE)
    clock.now_s = REPORTED_S
    assert not nodes.silent(LOGLET, NODE)
    nodes.reported(LOGLET, NODE)
    assert nodes.silent(LOGLET, NODE)
    nodes.came_back(NODE)
    assert not nodes.silent(LOGLET, NODE)


async def test_a_node_that_is_silent_for_long_needs_no_report() -> None:
    nodes, _ = await chain_nodes(Nodes(is_silent=True))
    assert nodes.silent(LOGLET, NODE)
