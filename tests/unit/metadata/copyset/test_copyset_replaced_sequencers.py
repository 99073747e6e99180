"""Nodes that are reachable and do not recover a copyset log are replaced as its sequencers."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from cluster_requests import copyset
from small_cluster import SmallCluster, Times, turns

from loomlog.core.backoff import Backoff
from loomlog.core.copyset import replacements
from loomlog.core.copyset.nodeset import ranked
from loomlog.errors import Sealed
from loomlog.wire import loomlog_pb2 as pb

TIMES: Final[Times] = {"failure_detection_s": 0.2, "heartbeat_s": 0.05}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replacements, "PATIENCE", Backoff(0.4, 3600.0))


def in_order(loglet: int) -> list[int]:
    return ranked(loglet, dict.fromkeys((1, 2, 3), 1.0))


async def test_a_sequencer_that_cannot_recover_is_replaced(tmp_path: Path) -> None:
    """The node took its epoch itself, for an append. Nodes and clients learn of the other one."""
    async with SmallCluster(tmp_path, scripted=3, **TIMES) as cluster:
        loglet = (await cluster.create_copyset()).log_id
        first, second, _ = in_order(loglet)
        cluster.vsn(first).recovers = False
        await cluster.vsn(second).activate(loglet, 0)
        await cluster.vsn(first).activate(loglet, 1)
        log = await cluster.log_is(lambda log: copyset(log).copyset.last_clean == 2)
        state = copyset(log).copyset
        assert (state.epoch, state.sequencer) == (3, second)
        assert state.chosen == second, "the first one is preferred otherwise"
        assert (await cluster.vsn(3).get(loglet)).chosen == second


async def test_so_is_one_that_was_ordered_to_recover(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=3, **TIMES) as cluster:
        loglet = (await cluster.create_copyset()).log_id
        first, second, third = in_order(loglet)
        cluster.vsn(first).recovers = False
        await cluster.vsn(third).activate(loglet, 0)
        await cluster.vsn(third).crash()
        log = await cluster.log_is(lambda log: copyset(log).copyset.last_clean == 2)
        state = copyset(log).copyset
        assert (state.epoch, state.sequencer, state.chosen) == (3, second, second)


async def test_or_refuses_to(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=3, **TIMES) as cluster:
        loglet = (await cluster.create_copyset()).log_id
        first, second, third = in_order(loglet)
        cluster.vsn(first).refuse["recover_copyset"] = Sealed("it is over")
        await cluster.vsn(third).activate(loglet, 0)
        await cluster.vsn(third).crash()
        log = await cluster.log_is(lambda log: copyset(log).copyset.last_clean == 2)
        state = copyset(log).copyset
        assert (state.epoch, state.sequencer, state.chosen) == (3, second, second)


async def test_a_log_that_no_node_recovers_gets_ever_fewer_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replacements, "PATIENCE", Backoff(0.05, 3600.0))
    async with SmallCluster(tmp_path, scripted=3, **TIMES) as cluster:
        loglet = (await cluster.create_copyset()).log_id
        for node in cluster.nodes:
            node.recovers = False
        first, second, third = in_order(loglet)
        await cluster.vsn(third).activate(loglet, 0)
        await cluster.vsn(first).activate(loglet, 1)
        log = await cluster.log_is(lambda log: copyset(log).copyset.epoch == 5)
        assert copyset(log).copyset.sequencer == first, "it failed the longest ago"
        orders = [f"recover {loglet} epoch {epoch}" for epoch in (3, 4, 5)]
        asked = [[o for o in orders if o in cluster.vsn(n).orders] for n in (second, third, first)]
        assert asked == [[order] for order in orders]


async def test_it_keeps_its_sequencer_while_too_few_nodes_are_there(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=3, **TIMES) as cluster:
        log = await cluster.create_copyset(replicas=2, min_replicas=2)
        first, second, third = in_order(log.log_id)
        cluster.vsn(first).recovers = False
        await cluster.vsn(first).activate(log.log_id, 0)
        for node in (second, third):
            await cluster.vsn(node).crash()
            await cluster.node_is(node, lambda node: not node.alive)
        await cluster.vsn(first).activate(log.log_id, 1)
        conditions = (await cluster.status()).conditions
        assert "reads-wait" in {each.kind for each in conditions if each.log == log.name}
        await turns(20)
        assert copyset(await cluster.describe()).copyset.epoch == 2


async def test_an_operator_may_choose_it_again(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=3, **TIMES) as cluster:
        loglet = (await cluster.create_copyset()).log_id
        first, second, _ = in_order(loglet)
        cluster.vsn(first).recovers = False
        await cluster.vsn(second).activate(loglet, 0)
        await cluster.vsn(first).activate(loglet, 1)
        log = await cluster.log_is(lambda log: copyset(log).copyset.last_clean == 2)
        cluster.vsn(first).recovers = True
        stream = copyset(log).log_stream_id
        await cluster.change(pb.ChangeStream.PRIMARY, stream, to_node=first)
        state = copyset(await cluster.describe()).copyset
        assert (state.sequencer, state.last_clean) == (first, 3)
