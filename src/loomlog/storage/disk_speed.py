"""Measure how long a disk takes to make a small write durable."""

from __future__ import annotations

import statistics
import time
from typing import Final, NamedTuple

from loomlog.storage.files import Files, Space

WRITES: Final = 5
_CONTENT: Final = bytes(4096)


class DiskSpeed(NamedTuple):
    """The speed and the space of a disk."""

    sync_s: float  # median time to write and sync 4 KiB
    space: Space
    error: str = ""  # why it could not be measured


def measure(files: Files, directory: str) -> DiskSpeed:
    """Write and sync a file in the directory a few times, then remove it. Blocking."""
    path, taken_s = f"{directory}/sync-probe", []
    try:
        file = files.open(path, create=True)
        try:
            for _ in range(WRITES):
                begun_s = time.perf_counter()
                file.write([_CONTENT], 0)
                file.sync()
                taken_s.append(time.perf_counter() - begun_s)
        finally:
            file.close()
            files.remove(path)
        return DiskSpeed(statistics.median(taken_s), files.space(directory))
    except OSError as error:
        return DiskSpeed(0.0, Space(0, 0), error.strerror or str(error))
