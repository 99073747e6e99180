"""Count the bytecodes that an append executes, in the client and all servers together.

    python tests/bench/count_bytecodes.py [protocol]
    PYTHONPATH=OTHER/src python tests/bench/count_bytecodes.py     # those of another checkout

A cluster of three nodes runs in this process, and all threads are counted. The median of many
lone appends hardly depends on what else the machine does, so it shows changes that a busy one
hides; what runs beside appends now and then, such as heartbeats, is in few of them. What C code
does is not counted: the kernel, checksums, protobuf and Arrow. The functions are those of all
appends together.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import Counter
from statistics import median
from types import CodeType, FrameType
from typing import Any

import uvloop

import loomlog
from loomlog.testing import LocalCluster

SOURCE = os.path.dirname(loomlog.__file__)
APPENDS = 101
SHOWN = 40


class Bytecodes:
    """Counts bytecodes and calls while it is on."""

    def __init__(self) -> None:
        self.is_on = False
        self.total = 0
        self.executed: Counter[CodeType] = Counter()
        self.calls: Counter[CodeType] = Counter()

    def call(self, frame: FrameType, event: str, _: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self.calls[frame.f_code] += self.is_on
        return self.step

    def step(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode" and self.is_on:
            self.total += 1
            self.executed[frame.f_code] += 1
        return self.step


async def count(protocol: str = "ordered") -> None:
    counted, value = Bytecodes(), os.urandom(128)
    totals: list[int] = []
    threading.settrace(counted.call)  # first: threads that run already would not be counted
    async with LocalCluster(nodes=3) as cluster:
        log = await cluster.create_log("events", replicas=3, protocol=protocol)
        for _ in range(APPENDS):
            await log.append(value)
        sys.settrace(counted.call)
        counted.is_on = True
        for _ in range(APPENDS):
            before = counted.total
            await log.append(value)
            totals.append(counted.total - before)
        counted.is_on = False
        sys.settrace(None)
    least = sorted(totals)[APPENDS // 10]
    shown = f"{median(totals):,.0f} bytecodes for a lone append, a tenth at most {least:,}"
    print(f"{protocol}: {shown}")
    for code, executed in counted.executed.most_common(SHOWN):
        where = f"{code.co_filename.removeprefix(SOURCE)}:{code.co_firstlineno}"
        shown = f"{executed / APPENDS:9.1f} {counted.calls[code] / APPENDS:8.2f}"
        print(f"{shown}  {where} {code.co_qualname}")


if __name__ == "__main__":
    uvloop.install()
    asyncio.run(count(*sys.argv[1:]))
