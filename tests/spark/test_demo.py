"""`make demo`: what a new user sees first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


def test_the_demo_runs_and_shows_all_of_it() -> None:
    done = subprocess.run([sys.executable, DEMO], capture_output=True, text=True, timeout=220)
    assert done.returncode == 0, done.stderr
    for word in (
        *("up", "created", "appended", "read", "3 of 3 nodes alive", "stopped"),
        *("access-counts in", "12:02", "/search"),
    ):
        assert word in done.stdout
