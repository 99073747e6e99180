"""Measure the alternatives of docs/adr/0017-lone-appends-stay-awake.md: clients that append one
by one, each a process with a log of its own, asleep while they wait and awake. On a
running cluster:

python tests/bench/measure_spinning.py 127.0.0.1:7400 [--clients 1 2 4 8] [--seconds 3]
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import mean, median
from time import perf_counter, process_time
from typing import NamedTuple

import uvloop

import loomlog
from loomlog import limits

RECORD = bytes(128)


class Measured(NamedTuple):
    """The figures of one client; of several the sum of their rates, and medians."""

    appends_per_s: float
    p50_ms: float
    p99_ms: float
    cpu: float  # of one client; 1.0: all of a core


async def appends(address: str, log_name: str, spin_s: float, seconds: float) -> Measured:
    """Append one after the other, and measure."""
    async with await loomlog.connect(address, spin_s=spin_s) as cluster:
        log = cluster.log(log_name)
        await log.append(RECORD)
        took_s: list[float] = []
        began_s, used_s = perf_counter(), process_time()
        while (start := perf_counter()) < began_s + seconds:
            await log.append(RECORD)
            took_s.append(perf_counter() - start)
        cpu = (process_time() - used_s) / (perf_counter() - began_s)
    took_s.sort()
    p99_s = took_s[len(took_s) * 99 // 100]
    return Measured(len(took_s) / seconds, median(took_s) * 1000, p99_s * 1000, cpu)


def client(address: str, log_name: str, spin_s: float, seconds: float) -> Measured:
    return uvloop.run(appends(address, log_name, spin_s, seconds))


def together(address: str, clients: int, spin_s: float, seconds: float) -> Measured:
    with ProcessPoolExecutor(clients, get_context("spawn")) as pool:
        running = [
            pool.submit(client, address, name, spin_s, seconds) for name in log_names(clients)
        ]
        rates, p50s, p99s, cpus = zip(*(done.result() for done in running), strict=True)
    return Measured(sum(rates), mean(p50s), mean(p99s), mean(cpus))


def log_names(count: int) -> list[str]:
    return [f"spinning-{number}" for number in range(count)]


async def make_logs(address: str, count: int) -> None:
    async with await loomlog.connect(address) as cluster:
        there = {log.name for log in await cluster.logs()}
        for name in set(log_names(count)) - there:
            await cluster.create_log(name, protocol="chained")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--seconds", type=float, default=3.0)
    given = parser.parse_args(arguments)
    asyncio.run(make_logs(given.address, max(given.clients)))
    print("clients           appends/s      p50      p99   CPU of a client")
    for clients in given.clients:
        for how, spin_s in (("asleep", 0.0), ("awake", limits.SPIN_S)):
            found = together(given.address, clients, spin_s, given.seconds)
            print(
                f"{clients:7} {how:8}{found.appends_per_s:11,.0f}{found.p50_ms:6.2f} ms"
                f"{found.p99_ms:6.2f} ms{found.cpu:13.0%}"
            )


if __name__ == "__main__":
    main()
