"""Programs in the documents that are whole run as they are."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PROGRAM = re.compile(r"^```python\n(import asyncio\n.*?)^```", re.MULTILINE | re.DOTALL)
PROGRAMS = [
    pytest.param(program, id=f"{path.name}-{number}")
    for path in sorted(DOCS.glob("*.md"))
    for number, program in enumerate(PROGRAM.findall(path.read_text()), 1)
]


@pytest.mark.parametrize("program", PROGRAMS)
async def test_it_runs(program: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", "-c", program),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()


def test_there_are_some() -> None:
    assert PROGRAMS
