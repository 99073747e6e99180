"""Disks of server processes that forget their last writes: an earlier copy takes their place."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loomlog.cli.processes.local_processes import LocalProcesses


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def copy(servers: LocalProcesses, directory: Path, name: str) -> None:
    """Keep what is on the disk of a node now. Its files change together."""
    with stopped(servers.pids[name]):
        shutil.copytree(directory / name, directory / f"{name}-copy")


def put_back(directory: Path, name: str) -> None:
    shutil.rmtree(directory / name)
    shutil.move(directory / f"{name}-copy", directory / name)
