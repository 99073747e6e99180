"""An append is short to follow: it crosses few files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("files_crossed.py")
MOST = {"ordered": 28, "chained": 30, "copyset": 35}


def test_an_append_crosses_few_files() -> None:
    # A process of its own: every call of any thread is noted.
    printed = subprocess.check_output([sys.executable, str(PROGRAM), "--list"], text=True)
    lines = [line.split() for line in printed.splitlines() if not line.startswith(" ")]
    counts = {protocol.removesuffix(":"): int(count) for protocol, count, _ in lines}
    assert counts.keys() == MOST.keys()
    assert all(count <= MOST[protocol] for protocol, count in counts.items()), printed
