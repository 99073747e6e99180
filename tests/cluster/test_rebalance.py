"""`loom rebalance` uses a node that is new, for all protocols, while logs are written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cli_rig import Loom, loom_up, storage_node
from poll import until

import loomlog
from loomlog.client.operator_results import PlannedLoad
from loomlog.errors import InvalidArgument, NotFound
from loomlog.protocol_names import CHAINED, COPYSET, ORDERED
from loomlog.testing import LocalCluster

PATIENCE_S = 60.0


@asynccontextmanager
async def writing(address: str, name: str, written: list[int]) -> AsyncIterator[None]:
    """Append to a log, one entry after the other, until the end of the block."""
    stop = False

    async def write() -> None:
        while not stop:
            await log.append(b"%d" % len(written))
            written.append(len(written))
            await asyncio.sleep(0.01)

    async with await loomlog.connect(address) as client:
        log = client.log(name)
        task = asyncio.create_task(write())
        try:
            yield
        finally:
            stop = True
            await task


def nodes_of(stream: dict[str, Any]) -> list[set[int]]:
    return [set(chain) for chain in stream["chains"]] or [{r["node"] for r in stream["replicas"]}]


async def test_a_new_node_takes_its_share_and_an_even_cluster_stays_as_it_is(
    tmp_path: Path,
) -> None:
    logs = {ORDERED: "4", CHAINED: "4", COPYSET: "1"}
    with loom_up(tmp_path, "--nodes", "3", "--sync", "none") as up:
        loom = Loom(up.mr)
        for name, streams in logs.items():
            loom.says("log", "create", name, "--protocol", name, "--streams", streams)
            loom.says("append", name, given="\n".join(map(str, range(200))))
        assert "even enough" in loom.says("rebalance")
        with storage_node(up.mr, 4, tmp_path / "vsn-4"):
            plan = loom.json("rebalance", "--dry-run")
            assert {move["to_node"] for move in plan["moves"]} == {4}
            assert {move["log"] for move in plan["moves"]} == {ORDERED, CHAINED}
            assert [renewal["log"] for renewal in plan["renewals"]] == [COPYSET]
            assert plan["imbalance_before"] > 0.3 > plan["imbalance_after"]
            assert "node 4" in loom.says("rebalance", "--dry-run")
            written: dict[str, list[int]] = {name: list(range(200)) for name in logs}
            async with (
                writing(up.mr, ORDERED, written[ORDERED]),
                writing(up.mr, CHAINED, written[CHAINED]),
                writing(up.mr, COPYSET, written[COPYSET]),
            ):
                said = await asyncio.to_thread(loom.says, "rebalance", "--timeout", "50")
            assert "finished after" in said
            assert "skipped" not in said
            on_new = [
                4 in nodes
                for name in logs
                for stream in loom.json("stream", "list", "--log", name)
                for nodes in nodes_of(stream)
            ]
            assert sum(on_new) == len(plan["moves"]) + 1
            is_even = partial(asyncio.to_thread, loom.json, "rebalance", "--dry-run")
            await until(is_even, lambda plan: not plan["moves"])
            for name in logs:
                shown = loom.says("tail", name, "--from", "earliest").split()
                assert shown == [str(n) for n in written[name]]


def _has_bytes(load: PlannedLoad) -> bool:
    return (load.bytes_before > 0) == (load.replicas_before > 0)


async def test_a_replica_of_a_chain_moves_to_the_node_that_is_named() -> None:
    async with LocalCluster(nodes=4) as cluster:
        log = await cluster.create_log("events", CHAINED, streams=2)
        at, _ = await log.append(b"before"), await log.append(b"on the other chain")
        (stream,) = (await log.describe()).streams
        await until(cluster.plan_rebalance, lambda plan: all(_has_bytes(x) for x in plan.loads))
        (spare,) = {1, 2, 3, 4}.difference(stream.chains[1])
        origin = stream.chains[1][0]
        for wrong, error in (
            ((origin, 9), NotFound),
            ((origin, stream.chains[1][1]), InvalidArgument),
            ((spare, origin), InvalidArgument),
        ):
            with pytest.raises(error):
                await cluster.move_stream(stream.id, *wrong, part=1)
        with pytest.raises(InvalidArgument, match="chain 7"):
            await cluster.move_stream(stream.id, origin, spare, part=7)
        await cluster.move_stream(stream.id, origin, spare, part=1)
        async with asyncio.timeout(PATIENCE_S):
            while origin in (now := (await log.describe()).streams[0]).chains[1]:
                await log.append(b"meanwhile")
        assert spare in now.chains[1]
        assert now.chains[0] == stream.chains[0], "the other chain stays where it is"
        assert (await log.read(at.position)).value == b"before"


async def test_streams_of_other_protocols_are_not_renewed() -> None:
    async with LocalCluster(nodes=1) as cluster:
        log = await cluster.create_log("events", replicas=1)
        with pytest.raises(InvalidArgument):
            await cluster.renew_stream((await log.describe()).streams[0].id)
        plan = await cluster.plan_rebalance()
        assert (plan.moves, plan.renewals) == ((), ())
        assert [load.replicas_before for load in plan.loads] == [1]
