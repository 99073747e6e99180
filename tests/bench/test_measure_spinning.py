"""The program that measures what docs/adr/0017-lone-appends-stay-awake.md weighs runs. No speed is
asserted."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from loomlog.testing import LocalCluster

PROGRAM = Path(__file__).with_name("measure_spinning.py")


async def test_clients_are_measured_asleep_and_awake(tmp_path: Path) -> None:
    local = LocalCluster(nodes=3, directory=tmp_path)
    async with local:
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, str(PROGRAM), local.address, "--clients", "2", "--seconds", ".1"),
            stdout=asyncio.subprocess.PIPE,
        )
        printed, _ = await program.communicate()
    assert program.returncode == 0
    lines = printed.decode().splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["2", "asleep"], ["2", "awake"]]
    assert all(float(line.split()[2].replace(",", "")) > 0 for line in lines[1:])
