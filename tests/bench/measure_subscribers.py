"""Measure many subscribers of one log: how late they get an entry, and what they cost a node.

    python tests/bench/measure_subscribers.py [SUBSCRIBERS] [--clients 50] [--per-s 5]
        [--seconds 10] [--protocol ordered] [--catching-up 0] [--json]

A private cluster of three nodes; a writer appends 1 KiB at a steady rate. The subscribers are
shared by client processes, each of which has its own connections. With --catching-up, so many of
them read the log from its start again and again, and only the others count.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import struct
import sys
import tempfile
import time
from array import array
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

from loomlog import connect
from loomlog.cli.bench.machine import CpuByProcess, memory_mb
from loomlog.cli.bench.measurements import PERCENTILES, fill, percentile_ms
from loomlog.cli.processes.local_processes import ClusterPlan, LocalProcesses, running
from loomlog.protocol_names import CHAINED, COPYSET, ORDERED

NODES: Final = 3
RECORD_BYTES: Final = 1024
CATCH_UP_RECORDS: Final = 50_000
LOG: Final = "news"
PROCESSES: Final = 2
STAMP: Final = struct.Struct("<d")
PAUSE_S: Final = 1.0  # between two times that a subscriber catches up


async def subscribe(address: str, shares: list[int], catching_up: int, ready: Any) -> array[float]:
    """Subscribe from this process until it is cancelled; return how late entries came."""
    late = array("d")
    clients = [await connect(address) for _ in shares]
    begun = asyncio.Semaphore(0)

    async def follow(log: Any, start: int) -> None:
        async with aclosing(log.subscribe(start=start)) as entries:
            begun.release()
            async for entry in entries:
                late.append(time.time() - STAMP.unpack_from(entry.value)[0])

    async def catch_up(log: Any, stop: int) -> None:
        begun.release()
        while True:
            async with aclosing(log.subscribe(start=1, stop=stop)) as entries:
                async for _ in entries:
                    pass
            await asyncio.sleep(PAUSE_S)

    tail = await clients[0].log(LOG).tail()
    tasks = []
    for client, count in zip(clients, shares, strict=True):
        log = client.log(LOG)
        for _ in range(count):
            if catching_up:
                catching_up -= 1
                tasks.append(asyncio.create_task(catch_up(log, tail)))
            else:
                tasks.append(asyncio.create_task(follow(log, tail + 1)))
    for _ in tasks:
        await begun.acquire()
    ready.send(None)
    await asyncio.get_running_loop().run_in_executor(None, ready.recv)
    for task in tasks:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    failed = [error for error in ended if isinstance(error, Exception)]
    if failed:
        raise failed[0]
    for client in clients:
        await client.close()
    return late


def process(address: str, shares: list[int], catching_up: int, ready: Any) -> None:
    ready.send(asyncio.run(subscribe(address, shares, catching_up, ready)).tobytes())


def divide(count: int, parts: int) -> list[int]:
    return [count // parts + (part < count % parts) for part in range(parts)]


async def measure(servers: LocalProcesses, arguments: argparse.Namespace) -> dict[str, Any]:
    async with await connect(servers.address) as cluster:
        log = await cluster.create_log(LOG, arguments.protocol, replicas=NODES)
        if arguments.catching_up:
            await fill(log, CATCH_UP_RECORDS, RECORD_BYTES)
        else:
            await log.append(bytes(RECORD_BYTES))
        before_mb = memory_mb(servers.pids)
        shares = divide(arguments.subscribers, arguments.clients)
        catching_up = divide(arguments.catching_up, PROCESSES)
        spawn = multiprocessing.get_context("spawn")
        readers = []
        began = time.perf_counter()
        for part in range(PROCESSES):
            ours, theirs = spawn.Pipe()
            work = (servers.address, shares[part::PROCESSES], catching_up[part], theirs)
            reader = spawn.Process(target=process, args=work, daemon=True)
            reader.start()
            readers.append((ours, reader))
        for ours, _ in readers:
            await asyncio.to_thread(ours.recv)
        subscribed_s = time.perf_counter() - began
        pids = servers.pids | {f"readers-{n + 1}": r.pid or 0 for n, (_, r) in enumerate(readers)}
        use = CpuByProcess(pids)
        padding = bytes(RECORD_BYTES - STAMP.size)
        count = round(arguments.seconds * arguments.per_s)
        started = time.perf_counter()
        for number in range(count):
            await log.append(STAMP.pack(time.time()) + padding)
            await asyncio.sleep(started + (number + 1) / arguments.per_s - time.perf_counter())
        await asyncio.sleep(PAUSE_S)
        cpu, after_mb = use.percent(), memory_mb(pids)
        late = array("d")
        for ours, reader in readers:
            ours.send(None)
            late.frombytes(await asyncio.to_thread(ours.recv))
            reader.join()
        ordered = sorted(late)
        following = arguments.subscribers - arguments.catching_up
        return {
            "protocol": arguments.protocol,
            "subscribers": following,
            "catching_up": arguments.catching_up,
            "subscribed_s": round(subscribed_s, 2),
            "expected": count * following,
            "delivered": len(ordered),
            **{name: percentile_ms(ordered, share) for name, share in PERCENTILES.items()},
            "cpu_percent": cpu,
            "rss_before_mb": before_mb,
            "rss_mb": after_mb,
            "load": os.getloadavg()[0],
        }


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as path:
        async with running(ClusterPlan(Path(path), nodes=NODES)) as servers:
            return await measure(servers, arguments)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("subscribers", type=int, nargs="?", default=5000)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--per-s", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--catching-up", type=int, default=0)
    parser.add_argument("--protocol", choices=(ORDERED, CHAINED, COPYSET), default=ORDERED)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = asyncio.run(run(arguments))
    if arguments.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:<15} {value}")
    sys.exit(found["delivered"] != found["expected"])


if __name__ == "__main__":
    main()
