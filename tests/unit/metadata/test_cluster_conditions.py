"""The list of conditions while nodes come and go, for every protocol."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from scrape import values
from scripted_node import PATIENCE_S
from small_cluster import QUICK, SmallCluster

from loomlog.core.conditions import Kind
from loomlog.wire import loomlog_pb2 as pb

PROTOCOLS = ("ordered", "chained", "copyset")
SIZE = 10_000  # of an entry


async def conditions_are(
    cluster: SmallCluster, true: Callable[[list[pb.Condition]], bool]
) -> list[pb.Condition]:
    """Wait until the conditions of the cluster are like that."""
    found: list[pb.Condition] = []
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not true(  # noqa: ASYNC110 - nobody tells
                found := list((await cluster.status()).conditions)
            ):
                await asyncio.sleep(0.01)
    except TimeoutError:
        pytest.fail(f"they stay {found}")
    return found


def has(*kinds: Kind) -> Callable[[list[pb.Condition]], bool]:
    return lambda found: set(kinds) <= {condition.kind for condition in found}


async def with_entries(cluster: SmallCluster, protocol: str) -> None:
    """Make a log of three replicas with 20 entries."""
    await cluster._create("events", protocol, streams=1, replicas=3)
    await cluster.log.append(os.urandom(SIZE), count=20)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_log_is_under_replicated_while_a_node_is_away(
    tmp_path: Path, protocol: str
) -> None:
    async with SmallCluster(tmp_path, real=3, **QUICK) as cluster:
        await with_entries(cluster, protocol)
        await conditions_are(cluster, lambda found: not found)
        await cluster.stop_node(2)
        found = await conditions_are(cluster, has(Kind.NODE_AWAY, Kind.UNDER_REPLICATED))
        (away,) = (c for c in found if c.kind == Kind.NODE_AWAY)
        assert (away.storage_node_id, away.severity) == (2, "warning")
        found = await conditions_are(
            cluster, lambda found: any(c.records == 20 and c.bytes >= 20 * SIZE for c in found)
        )
        (short,) = (c for c in found if c.kind == Kind.UNDER_REPLICATED)
        assert short.log == "events"
        assert short.bytes <= 45 * SIZE, "a recovery may have stored it twice"
        assert cluster.repository.term is not None
        view = cluster.repository.term.view
        metrics = values(await cluster.repository.metrics())
        assert metrics['loomlog_log_underreplicated_bytes{log="events"}'] == short.bytes
        assert short.bytes in [
            condition["bytes"] for condition in (await view.as_dict())["conditions"]
        ]
        await cluster.start_node(2)
        await conditions_are(cluster, lambda found: not found)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_log_is_under_replicated_until_a_lost_disk_is_filled(
    tmp_path: Path, protocol: str
) -> None:
    async with SmallCluster(tmp_path, real=3, **QUICK) as cluster:
        await with_entries(cluster, protocol)
        await cluster.stop_node(3)
        cluster.lose_disk(3)
        await conditions_are(cluster, has(Kind.NODE_AWAY))
        await cluster.replace_node(3)
        (told,) = await cluster.conditions(3)
        assert told == "is to be replaced: start node 3 with empty volumes"
        await cluster.start_node(3)
        await conditions_are(cluster, lambda found: not found)
        assert await cluster.log.entries() == cluster.log.acknowledged


async def test_a_drained_node_and_an_operators_seal_are_conditions(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=4, **QUICK) as cluster:
        await with_entries(cluster, "ordered")
        await cluster.change(pb.ChangeStream.SEAL)
        (held,) = await conditions_are(cluster, has(Kind.STREAM_HELD))
        assert (held.log, held.log_stream_id, held.help) == ("events", 1, "`loom stream unseal 1`")
        await cluster.change(pb.ChangeStream.UNSEAL)
        await conditions_are(cluster, lambda found: not found)
        node = (await cluster.stream()).replicas[0].storage_node_id
        await cluster.change_node(pb.ChangeNode.DRAIN, node)
        found = await conditions_are(
            cluster, lambda f: [c.text for c in f] == ["is drained and empty"]
        )
        assert (found[0].storage_node_id, found[0].severity) == (node, "work")
        assert found[0].help == f"stop it, then run `loom node remove {node}`"


async def test_every_kind_is_a_metric(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, real=3, **QUICK) as cluster:
        await with_entries(cluster, "ordered")
        await cluster.stop_node(1)
        await conditions_are(cluster, has(Kind.NODE_AWAY, Kind.UNDER_REPLICATED))
        lines = (await cluster.repository.metrics()).splitlines()
        for kind in Kind:
            (line,) = (line for line in lines if f'loomlog_conditions{{kind="{kind}"' in line)
            expected = kind in (Kind.NODE_AWAY, Kind.UNDER_REPLICATED)
            if kind not in (Kind.REPAIR, Kind.APPENDS_WAIT, Kind.STREAM_STOPPED):  # come and go
                assert line.endswith(f" {float(expected)}"), line
        assert 'loomlog_log_underreplicated_records{log="events"} 20.0' in lines
        assert cluster.repository.term is not None
        status = await cluster.repository.term.view.as_dict()
        assert {c["kind"] for c in status["conditions"]} >= {"node-away", "under-replicated"}
