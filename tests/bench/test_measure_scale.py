"""The program that computes what docs/scale.md reports runs. No speed is asserted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("measure_scale.py")


def test_every_step_is_computed() -> None:
    size = ("--nodes", "12", "--shards", "2", "--racks", "4", "--logs", "50", "--sampled", "10")
    command = [sys.executable, str(PROGRAM), *size]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    steps = ("nodesets", "copysets", "replicas", "metadata", "rebuild", "donors", "check", "rebal")
    lines = done.stdout.splitlines()
    assert all(any(line.startswith(step) for line in lines) for step in steps)
    assert "  copies left of each log: {2: 50}" in lines
    assert lines[-1].startswith("all: ")
