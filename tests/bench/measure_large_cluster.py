"""Measure one metadata repository, or several, with very many storage nodes, streams and clients.

    python tests/bench/measure_large_cluster.py [--nodes 1000] [--logs 20] [--streams 10000]
        [--replicas 3] [--clients 1000] [--metadata 1] [--rounds 5] [--json]

The storage nodes are played (loomlog/cli/bench/played_node.py): real connections, registrations,
reports and commits, but no disks. They and the clients share the machine with the servers, so times
say little; the CPU time and the memory of the vmr that leads do. With several metadata
repositories, the leader is killed at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import resource
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from loomlog import connect
from loomlog.cli.bench.machine import memory_mb
from loomlog.cli.bench.played_node import PlayedNodes
from loomlog.cli.processes.local_processes import ClusterPlan, LocalProcesses, running

PLAYERS: Final = 2  # processes
IDLE_S: Final = 10.0
TIMEOUT_S: Final = 600.0
CONNECTING_AT_ONCE: Final = 64


async def play(pipe: Connection, node_ids: range, clients: int, addresses: list[str]) -> None:
    """Play nodes and clients in this process, as the pipe says."""
    loop = asyncio.get_running_loop()
    connected: list[Any] = []
    at_once = asyncio.Semaphore(CONNECTING_AT_ONCE)

    async def add_client() -> None:
        async with at_once:
            connected.append(await connect(",".join(addresses)))

    async def use_client(client: Any) -> None:
        async with at_once:
            await client.log("log-0").tail()

    async with PlayedNodes(node_ids, addresses) as nodes:
        pipe.send(None)
        while True:
            match await loop.run_in_executor(None, pipe.recv):
                case "run", replicas:
                    await nodes.until_running(replicas)
                case "commit":
                    await nodes.commit_one_each()
                case "connect":
                    await asyncio.gather(*(add_client() for _ in range(clients)))
                case "use":
                    await asyncio.gather(*map(use_client, connected))
                case "count":
                    pipe.send(nodes.replicas)
                    continue
                case "end":
                    await asyncio.gather(*(client.close() for client in connected))
                    return
            pipe.send(None)


def player(pipe: Connection, node_ids: range, clients: int, addresses: list[str]) -> None:
    asyncio.run(play(pipe, node_ids, clients, addresses))


@dataclass
class Players:
    """The processes that play nodes and clients."""

    pipes: list[Connection]

    async def all(self, order: Any = None) -> list[Any]:
        """Give an order to all, and wait for their answers."""
        if order is not None:
            for pipe in self.pipes:
                pipe.send(order)
        return await asyncio.gather(*(asyncio.to_thread(pipe.recv) for pipe in self.pipes))


class Meter:
    """The CPU time of a process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    @property
    def used_s(self) -> float:
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    async def during(self, work: Callable[[], Awaitable[object]]) -> dict[str, float]:
        used_s, began = self.used_s, time.perf_counter()
        await work()
        seconds = time.perf_counter() - began
        return {"seconds": round(seconds, 2), "cpu_s": round(self.used_s - used_s, 2)}


async def measure(servers: LocalProcesses, arguments: argparse.Namespace) -> dict[str, Any]:
    spawn, addresses = multiprocessing.get_context("spawn"), servers.address.split(",")
    pipes, processes = [], []
    async with await connect(servers.address, request_timeout_s=TIMEOUT_S) as cluster:
        leader = (await cluster.status()).leader or 1
        pid = servers.pids[f"vmr-{leader}"]
        meter, found = Meter(pid), {}

        async def join() -> None:
            for part in range(PLAYERS):
                ours, theirs = spawn.Pipe()
                nodes = range(part + 1, arguments.nodes + 1, PLAYERS)
                work = (theirs, nodes, arguments.clients // PLAYERS, addresses)
                process = spawn.Process(target=player, args=work, daemon=True)
                process.start()
                pipes.append(ours)
                processes.append(process)
            await players.all()

        async def create() -> None:
            for number in range(arguments.logs):
                streams = arguments.streams // arguments.logs
                name = f"log-{number}"
                await cluster.create_log(name, streams=streams, replicas=arguments.replicas)
            counts = await players.all("count")
            for pipe, count in zip(pipes, counts, strict=True):
                pipe.send(("run", count))
            await players.all()

        async def rounds() -> None:
            for _ in range(arguments.rounds):
                await players.all("commit")

        players = Players(pipes)
        steps: dict[str, Callable[[], Awaitable[object]]] = {
            "nodes register": join,
            "streams are created": create,
            "idle": lambda: asyncio.sleep(IDLE_S),
            f"{arguments.rounds} rounds of all streams": rounds,
            "clients connect": lambda: players.all("connect"),
            "each client asks for a tail": lambda: players.all("use"),
        }
        for name, step in steps.items():
            found[name] = await meter.during(step)
            found[name]["vmr_mb"] = round(memory_mb({"vmr": pid})["vmr"])
            print(name, found[name], flush=True)
        if arguments.metadata > 1:
            name = "the leader is killed, and all streams get an entry"
            found[name] = await take_over(servers, leader, players)
            print(name, found[name], flush=True)
        for pipe in pipes:
            pipe.send("end")
        for process in processes:
            await asyncio.to_thread(process.join)
        return found


async def take_over(servers: LocalProcesses, leader: int, players: Players) -> dict[str, float]:
    began = time.perf_counter()
    await servers.end(f"vmr-{leader}", signal.SIGKILL)
    await players.all("commit")
    return {"seconds": round(time.perf_counter() - began, 2)}


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as path:
        plan = ClusterPlan(Path(path), nodes=0, metadata=arguments.metadata)
        async with running(plan) as servers:
            return await measure(servers, arguments)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--logs", type=int, default=20)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--metadata", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    found = asyncio.run(run(arguments))
    if arguments.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
