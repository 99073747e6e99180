"""Disks confirm writes without making them, and all machines lose power. As long as there are fewer
such disks than replicas, every entry can be read, and none is reported as lost."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest
from forgetful_disks import copy, put_back

from loomlog import Log, connect
from loomlog.cli.processes.local_processes import ClusterPlan, running
from loomlog.protocol_names import CHAINED, COPYSET, ORDERED
from loomlog.types import Gap, Glsn

pytestmark = pytest.mark.timeout(240)

PATIENCE_S = 30.0  # for a node that may have what all others have forgotten
LOGS = 3  # of each protocol: the nodes have other places in each
NODES = [f"vsn-{number}" for number in (1, 2, 3)]


async def append(logs: Sequence[Log], acknowledged: dict[str, list[Glsn]]) -> None:
    for log in logs:
        for _ in range(3):
            acknowledged[log.name].append((await log.append(b"value")).position)


@pytest.mark.parametrize(
    ("replicas", "forgot"),
    [
        pytest.param(2, ["vsn-1"], id="one of two"),
        pytest.param(3, ["vsn-1", "vsn-2"], id="two of three"),
    ],
)
async def test_what_some_disks_forgot_is_read_from_others(
    tmp_path: Path, replicas: int, forgot: list[str]
) -> None:
    acknowledged: dict[str, list[Glsn]] = {}
    async with running(ClusterPlan(tmp_path, nodes=len(NODES))) as servers:
        async with await connect(servers.address) as cluster:
            for protocol, number in product((ORDERED, CHAINED, COPYSET), range(LOGS)):
                name = f"{protocol}-{number}"
                acknowledged[name] = []
                await cluster.create_log(name, protocol, replicas=replicas)
            logs = list(map(cluster.log, acknowledged))
            await append(logs, acknowledged)
            for name in forgot:
                copy(servers, tmp_path, name)
            await append(logs, acknowledged)

        await asyncio.gather(*(servers.end(name, signal.SIGKILL) for name in NODES))
        for name in forgot:
            put_back(tmp_path, name)
        await asyncio.gather(*map(servers.start_again, NODES))

        async with await connect(servers.address) as cluster:
            logs = list(map(cluster.log, acknowledged))
            await append(logs, acknowledged)
            for log in logs:
                await check(log, acknowledged[log.name])


@pytest.mark.parametrize(("protocol", "replicas"), [(CHAINED, 3), (COPYSET, 2)])
async def test_killed_processes_have_forgotten_nothing(
    tmp_path: Path, protocol: str, replicas: int
) -> None:
    """Other than after a power failure, the cluster does not wait for the absent node."""
    acknowledged: dict[str, list[Glsn]] = {"log": []}
    async with running(ClusterPlan(tmp_path, nodes=len(NODES))) as servers:
        async with await connect(servers.address) as cluster:
            await append(
                [await cluster.create_log("log", protocol, replicas=replicas)], acknowledged
            )
        await asyncio.gather(*(servers.end(name, signal.SIGKILL) for name in NODES))
        await asyncio.gather(*map(servers.start_again, NODES[:2]))
        async with asyncio.timeout(PATIENCE_S / 2), await connect(servers.address) as cluster:
            await append([cluster.log("log")], acknowledged)
            await check(cluster.log("log"), acknowledged["log"])


async def check(log: Log, positions: list[Glsn]) -> None:
    found = []
    async for item in log.subscribe(1, positions[-1], gaps=True):
        if isinstance(item, Gap):
            assert item.kind != "dataloss", f"{log.name}: {item}"
        else:
            found.append(item.position)
    assert found == positions, log.name
