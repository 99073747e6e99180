"""Measure what idle connections and slow handshakes cost a storage node, plain and with TLS.

    python tests/bench/measure_idle_connections.py --connections 10000

A cluster of real processes, and idle clients in a process of their own. Not a test: it takes a
minute, and numbers depend on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil

from loomlog.cli.processes.local_certificates import operator_file
from loomlog.cli.processes.local_processes import (
    CLUSTER_ID,
    ClusterPlan,
    LocalProcesses,
    running,
)
from loomlog.client.cluster import Cluster, connect
from loomlog.core.principal import Principal
from loomlog.errors import Retryable
from loomlog.net.address import split_address
from loomlog.net.certificates import create_certificate
from loomlog.net.credentials import Credentials
from loomlog.net.endpoints import connect as connect_to
from loomlog.net.service import OnlyAnswers
from loomlog.wire.codec import Codec

APPENDS = 300
AT_ONCE = 50  # connections that are being made


async def hold(address: str, count: int, tls: str) -> None:
    """Make idle connections, say so, and keep them until the parent closes our input."""
    files = sorted(Path(tls).glob("client-idle*.pem")) if tls else []
    codecs = [Codec("client", credentials=Credentials.of_client(str(file))) for file in files]
    codecs = codecs or [Codec("client")]
    turns, held = asyncio.Semaphore(AT_ONCE), []

    async def one(number: int) -> None:
        codec = codecs[number % len(codecs)]
        async with turns:
            while True:
                try:
                    held.append(await connect_to(address, codec, OnlyAnswers(), 60.0))
                    return
                except Retryable:  # handshakes give way to newer ones on a busy machine
                    continue

    missing = count
    while missing:  # a server that is busy closes those whose greeting it reads too late
        await asyncio.gather(*map(one, range(missing)))
        held[:] = [each for each in held if not each.closed]
        missing = count - len(held)
    print(len(held), flush=True)
    await asyncio.to_thread(sys.stdin.read)


async def append_ms(cluster: Cluster, log: str) -> float:
    """Return the p50 of lone appends."""
    times = []
    for _ in range(APPENDS):
        begun = time.perf_counter()
        await cluster.log(log).append(b"x" * 100)
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1000


async def measure(connections: int, *, secure: bool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        plan = ClusterPlan(directory=Path(directory), nodes=1, port=0, secure=secure)
        async with running(plan) as processes:
            await _measure(processes, plan, connections)


async def _measure(processes: LocalProcesses, plan: ClusterPlan, connections: int) -> None:
    tls = str(operator_file(plan.directory)) if plan.secure else ""
    node = next(child for child in processes.children if child.name == "vsn-1")
    server = psutil.Process(node.process.pid)
    if plan.secure:  # one name may not have as many connections
        for number in range(20):
            holder = Principal("client", name=f"idle-{number}", cluster=CLUSTER_ID)
            create_certificate(Path(tls).parent, holder)
    async with await connect(processes.address, tls=tls) as cluster:
        await cluster.create_log("idle", replicas=1)
        before_ms, before = await append_ms(cluster, "idle"), server.memory_info().rss
        idle = await asyncio.create_subprocess_exec(
            *(sys.executable, __file__, "--hold", node.address),
            *("--tls", str(Path(tls).parent) if tls else ""),
            *("--connections", str(connections)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert idle.stdout is not None
        assert idle.stdin is not None
        begun = time.perf_counter()
        held = int(await idle.stdout.readline())
        took_s = time.perf_counter() - begun
        rss, idle_ms = server.memory_info().rss, await append_ms(cluster, "idle")
        busy = server.cpu_times()
        await asyncio.sleep(5.0)
        after = server.cpu_times()
        cpu = (after.user + after.system - busy.user - busy.system) / 5.0
        slow_ms = await slow_handshakes(node.address, cluster)
        print(
            f"{'TLS' if plan.secure else 'plain'}: {held:,} idle connections in {took_s:.1f} s: "
            f"{(rss - before) / held / 1024:.1f} KiB each, CPU {cpu:.1%} of a core; "
            f"append p50 {before_ms:.2f} ms, with them {idle_ms:.2f} ms, "
            f"with 500 slow handshakes as well {slow_ms:.2f} ms",
            flush=True,
        )
        idle.stdin.close()
        await idle.wait()


async def slow_handshakes(address: str, cluster: Cluster) -> float:
    """Return the p50 of appends while others connect and say nothing."""
    sockets = []
    for _ in range(500):
        silent = socket.create_connection(split_address(address))
        sockets.append(silent)
    try:
        return await append_ms(cluster, "idle")
    finally:
        for each in sockets:
            each.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=9_900)
    parser.add_argument("--hold", default="")
    parser.add_argument("--tls", default="")
    arguments = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if arguments.hold:
        asyncio.run(hold(arguments.hold, arguments.connections, arguments.tls))
        return
    for secure in (False, True):
        asyncio.run(measure(arguments.connections, secure=secure))


if __name__ == "__main__":
    main()
