"""Every example runs as it is, against a cluster that it knows only by LOOM_CLUSTER."""

from __future__ import annotations

import asyncio
import inspect
import os
import runpy
import sys
from pathlib import Path

import pytest

from loomlog.testing import LocalCluster

EXAMPLES = Path(__file__).parents[2] / "examples"
AS_PROGRAM = "quickstart.py"  # the others in this process: a program takes a second to start
SAYS = {
    "event_sourcing.py": "withdrawals refused",
    "groups.py": "orders billed",
    "key_value.py": "in both copies",
    "quickstart.py": "three",
    "resume.py": "done up to",
    "sync_quickstart.py": "line 4",
    "tail_arrow.py": "20,000 records",
    "work_queue.py": "20 images done",
}


async def run_program(path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    print(output.decode())
    assert process.returncode == 0, output.decode()


async def run_main(path: Path) -> None:
    main = runpy.run_path(str(path))["main"]
    if inspect.iscoroutinefunction(main):
        await main()
    else:
        await asyncio.to_thread(main)


async def test_examples_run_twice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twice: the second time their logs are there already."""
    local = LocalCluster(nodes=3)
    async with local:
        monkeypatch.setitem(os.environ, "LOOM_CLUSTER", local.address)
        for name in [*SAYS, *SAYS]:
            run = run_program if name == AS_PROGRAM else run_main
            await run(EXAMPLES / name)
            assert SAYS[name] in capsys.readouterr().out, name


def test_no_example_is_forgotten() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} - {"demo.py"} == set(SAYS)
