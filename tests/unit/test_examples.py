"""Every example runs as it is, against a cluster that it knows only by LOOM_CLUSTER."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from loomlog.testing import LocalCluster

EXAMPLES = Path(__file__).parents[2] / "examples"
SAYS = {
    "groups.py": "orders billed",
    "quickstart.py": "three",
    "resume.py": "done up to",
    "sync_quickstart.py": "line 4",
    "tail_arrow.py": "20,000 records",
}


async def run(path: Path, address: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        path,
        env={**os.environ, "LOOM_CLUSTER": address},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode()


@pytest.mark.parametrize("name", sorted(SAYS))
async def test_an_example_runs_twice(name: str) -> None:
    """Twice: the second time its log is there already."""
    local = LocalCluster(nodes=3)
    async with local:
        for _ in range(2):
            code, output = await run(EXAMPLES / name, local.address)
            assert code == 0, output
            assert SAYS[name] in output


def test_no_example_is_forgotten() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} - {"demo.py"} == set(SAYS)
