"""Commit rounds over very many log streams: their cost for the leader, and their duration.

The storage nodes are simulated: they answer orders and report that one more entry is durable in
every stream, so that the metadata repository is what is measured, and no disk is filled.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from loomlog.cli.bench.machine import CpuUse
from loomlog.cli.bench.measurements import percentile_ms
from loomlog.cli.bench.played_node import PlayedNodes
from loomlog.cli.bench.private_cluster import Target, private_cluster

CREATE_TIMEOUT_S: Final = 300.0
STREAMS_PER_LOG: Final = 500


@dataclass(frozen=True, slots=True)
class RoundRate:
    """Rounds that each commit one entry of every stream, one after the other."""

    streams: int
    metadata: int
    created_s: float  # until all streams run
    rounds: int
    p50_ms: float  # from the report to the last commit of a round
    p99_ms: float
    leader_cpu_percent: float  # of one core, while rounds follow each other without a pause
    idle_cpu_percent: float


async def measure(target: Target, metadata: int, streams: int, seconds: float) -> RoundRate:
    """Measure commit rounds on a private cluster without storage nodes."""
    private = private_cluster(target, 0, metadata, CREATE_TIMEOUT_S)
    async with private as cluster:
        status = await cluster.client.status()
        leader = cluster.processes.pids[f"vmr-{status.leader or 1}"]
        async with PlayedNodes([1], cluster.processes.address.split(",")) as nodes:
            begun = perf_counter()
            for made in range(0, streams, STREAMS_PER_LOG):
                count = min(STREAMS_PER_LOG, streams - made)
                await cluster.client.create_log(f"bench-streams-{made}", streams=count, replicas=1)
                await nodes.until_running(made + count)
            created_s = perf_counter() - begun
            return await _rounds(nodes, leader, metadata, created_s, seconds)


async def _rounds(
    nodes: PlayedNodes, leader: int, metadata: int, created_s: float, seconds: float
) -> RoundRate:
    idle = CpuUse(leader)
    await asyncio.sleep(seconds)
    idle_percent = idle.percent()
    took: list[float] = []
    busy, begun = CpuUse(leader), perf_counter()
    while not took or perf_counter() - begun < seconds:
        started = perf_counter()
        await nodes.commit_one_each()
        took.append(perf_counter() - started)
    percent = busy.percent()
    took.sort()
    return RoundRate(
        streams=nodes.replicas,
        metadata=metadata,
        created_s=created_s,
        rounds=len(took),
        p50_ms=percentile_ms(took, 0.5) or 0.0,
        p99_ms=percentile_ms(took, 0.99) or 0.0,
        leader_cpu_percent=percent,
        idle_cpu_percent=idle_percent,
    )
