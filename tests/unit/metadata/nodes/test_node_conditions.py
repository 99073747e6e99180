"""Operators see what is wrong with a node, and the rest of the node serves."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_requests import chained, is_whole, nodes_of
from node_services import chained_on
from poll import until
from small_cluster import QUICK, SmallCluster

from loomlog import limits
from loomlog.metadata.nodes.connected_nodes import conditions_of
from loomlog.wire import loomlog_pb2 as pb


@pytest.mark.parametrize(
    ("directory", "named"), [("chains", "the chains at"), ("logs", "the copies at")]
)
async def test_a_store_that_cannot_be_opened_is_a_condition_and_the_node_starts(
    tmp_path: Path, directory: str, named: str
) -> None:
    async with SmallCluster(tmp_path, real=3, **QUICK) as cluster:
        await cluster.stop_node(2)
        store = tmp_path / "vsn-2/cid=test/snid=2" / directory
        store.mkdir()
        (store / "CURRENT").write_text("no manifest\n")
        await cluster.start_node(2)
        (condition,) = await cluster.conditions(2)
        assert condition.startswith(f"{named} {store} cannot be opened")
        assert not await cluster.conditions(1)
        assert cluster.repository.term is not None
        told = cluster.repository.term.nodes.restrictions(2)
        assert any(shard.stores_no_copies for shard in told.shards) is (directory == "logs")
        assert told.chains_unserved is (directory == "chains")


async def test_chains_that_cannot_be_opened_are_made_anew_elsewhere(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=4, **QUICK) as cluster:
        log = await cluster.create_chained()
        for number in range(10):
            await cluster.log.append(b"%d" % number)
        damaged = nodes_of(chained(log))[0][0]
        store = tmp_path / f"vsn-{damaged}/cid=test/snid={damaged}/chains"
        await cluster.stop_node(damaged)
        (store / "CURRENT").write_text("no manifest\n")
        kept = sorted(file.name for file in store.glob("*.[ls][os][gt]"))
        await cluster.start_node(damaged)
        log = await cluster.log_is(
            lambda log: is_whole(log) and damaged not in nodes_of(chained(log))[0]
        )
        await cluster.log.append(b"whole again")
        assert await cluster.log.entries() == cluster.log.acknowledged
        aside = store.with_name("chains.damaged")
        await until(aside.exists)
        assert sorted(file.name for file in aside.glob("*.[ls][os][gt]")) == kept, "all stays"
        await cluster.stop_node(damaged)
        await cluster.start_node(damaged)
        [text] = await cluster.conditions(damaged)
        assert text.startswith(f"{aside} is damaged and was set aside")


async def test_a_condition_that_is_over_is_not_shown_any_more(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=3, **QUICK) as cluster:
        node = cluster.storage[2]
        chained_on(node)._volumes._volumes[0].problem = "it does not work"
        await cluster.conditions_are(2, "it does not work")
        chained_on(node)._volumes._volumes[0].problem = ""
        await cluster.conditions_are(2)


def test_conditions_are_bounded() -> None:
    many = pb.NodeConditions(conditions=[pb.Condition(text="x" * 10_000, log="x")] * 10_000)
    kept = conditions_of(3, many)
    assert len(kept) == limits.NODE_CONDITIONS_MAX
    assert {len(condition.text) for condition in kept} == {limits.NODE_CONDITION_CHARS_MAX}
    assert {condition.node for condition in kept} == {3}
    assert not any(condition.log for condition in kept), "logs are not for nodes to judge"
