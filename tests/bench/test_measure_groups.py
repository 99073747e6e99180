"""The program that measures consumer groups runs. No speed is asserted."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from loomlog.testing import LocalCluster

PROGRAM = Path(__file__).with_name("measure_groups.py")


async def test_members_are_measured() -> None:
    local = LocalCluster(nodes=1)
    async with local:
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, str(PROGRAM), local.address, "--records", "5000", "--members", "2"),
            stdout=asyncio.subprocess.PIPE,
        )
        printed, _ = await program.communicate()
    assert program.returncode == 0
    names = [line.partition(":")[0] for line in printed.decode().splitlines()]
    assert names == ["plain", "received", "passed", "handed out", "bound"]
