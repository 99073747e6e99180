"""Compare appends in order (`Log.pipeline`) with unordered ones, in turns. On a running cluster:

python tests/bench/measure_pipeline.py 127.0.0.1:7400 [--seconds 3] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any

import uvloop

import loomlog

RECORD = bytes(128)
AT_ONCE = 2_000  # appends before the first of them is awaited ...
WINDOW = 10  # ... and so many times that


async def rate(append: Callable[[bytes], Any], seconds: float) -> float:
    """Return appends per second, with a bounded number under way."""
    began_s, count = perf_counter(), 0
    windows: list[list[Any]] = []
    while perf_counter() < began_s + seconds:
        windows.append([append(RECORD) for _ in range(AT_ONCE)])
        count += AT_ONCE
        if len(windows) > WINDOW:
            await asyncio.gather(*windows.pop(0))
        await asyncio.sleep(0)
    for window in windows:
        await asyncio.gather(*window)
    return count / (perf_counter() - began_s)


async def measure(address: str, seconds: float, rounds: int) -> None:
    async with await loomlog.connect(address) as cluster:
        log = await cluster.create_log("measure-pipeline", replicas=1, exist_ok=True)
        unordered, ordered = [], []
        for _ in range(rounds):
            unordered.append(await rate(log.append, seconds))
            async with log.pipeline() as pipeline:
                ordered.append(await rate(pipeline.append, seconds))
        base, kept = median(unordered), median(ordered)
        print(f"unordered: {base:10,.0f} appends/s")
        print(f"ordered:   {kept:10,.0f} appends/s, {kept / base:.2f} x")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("cluster")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    uvloop.run(measure(options.cluster, options.seconds, options.rounds))


if __name__ == "__main__":
    main()
