"""Ports of tests that run in parallel."""

from __future__ import annotations

import subprocess
import sys

from loomlog.testing.ports import free_address

PROGRAM = "from loomlog.testing.ports import free_address as f; print(*(f() for _ in range(300)))"


def test_processes_do_not_get_the_same_ports() -> None:
    free_address()  # from now on a slice is ours
    others = subprocess.check_output([sys.executable, "-c", PROGRAM], text=True).split()
    assert len(set(others[:200])) == 200  # two servers of a test never get the same one
    assert not {free_address() for _ in range(300)}.intersection(others)
