"""The program that measures what docs/design/logsdb.md weighs runs. No speed is asserted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("measure_logsdb.py")


def test_everything_is_measured(tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), str(tmp_path), "--partitions", "12", "--seconds", ".1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert sum("families" in line for line in lines) == 2
    assert sum(line.startswith("store") for line in lines) == 4
    assert not any("read back 0/s" in line for line in lines)
    assert lines[-1].startswith("LogsDB, 12 partitions")
    assert not list(tmp_path.iterdir())
